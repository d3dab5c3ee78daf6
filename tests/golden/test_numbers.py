"""Every number that five tutorials print comes out of the ladder; see README.md here."""

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead import stages
from clearhead.ladder import (
    EXAMPLE_EMBEDDINGS,
    BatchedAttention,
    ConcatenatedHeads,
    CrossAttention,
    MaskedAttention,
    SelfAttention,
    SelfAttentionWithLayers,
    SimpleAttention,
    SplitHeads,
    context_by_loops,
    dot_product,
    embed_words,
    hide,
    merge_heads,
    naive_softmax,
    renormalise,
    scores_by_loops,
    scores_of_query,
    weights_by_sum,
)
from clearhead.stages import Stages

RECORDS = json.loads((Path(__file__).parent / "numbers.json").read_text(encoding="utf-8"))
NEVER = {"001.00 torch.__version__": "the version of PyTorch that the author had, not a result"}

JOURNEY = EXAMPLE_EMBEDDINGS
TWICE = torch.stack([JOURNEY, JOURNEY])
DESSERT = embed_words("Life is short, eat dessert first")
BLOG = torch.tensor(
    [
        [0.23, 0.87, 0.45],
        [0.12, 0.76, 0.34],
        [0.98, 0.54, 0.21],
        [0.67, 0.39, 0.88],
        [0.53, 0.29, 0.74],
        [0.41, 0.65, 0.32],
    ]
)
CAUSAL = ch.causal().to_dense(6, 6)


def row(index: int, steps: Stages) -> Stages:
    """The stages of one query."""
    return Stages(*(stage[index] for stage in steps))


def simple(x: Tensor) -> Stages:
    return SimpleAttention().stages(x)


def normal() -> SelfAttention:
    torch.manual_seed(123)
    return SelfAttention(3, head_dim=2)


def layer_after_normal() -> Tensor:
    """The weight of the layer that is drawn next."""
    normal()
    return SelfAttentionWithLayers(2, head_dim=3).query_projection.weight


def draws() -> list[Tensor]:
    """Six times torch.randn(3, 2) after the seed: the matrices of two rungs in a row."""
    first, second = normal(), SelfAttention(3, head_dim=2)
    return [*first.parameters(), *second.parameters()]


def shuffled(query: int, key: int, value: int) -> SelfAttention:
    """The rung that the cells of a notebook make which were run in another order."""
    drawn = draws()
    return SelfAttention(3, head_dim=2).with_weights(drawn[query], drawn[key], drawn[value])


def uniform(value_head_dim: int) -> SelfAttention:
    torch.manual_seed(123)
    return SelfAttention(3, head_dim=2, value_head_dim=value_head_dim, init="uniform")


def dessert() -> Stages:
    return uniform(4).stages(DESSERT.embeddings)


def layers(bias: bool) -> Stages:
    torch.manual_seed(123)
    return SelfAttentionWithLayers(3, head_dim=2, bias=bias).stages(JOURNEY)


def causal_layers() -> Stages:
    torch.manual_seed(123)
    return MaskedAttention(3, head_dim=2, mask=ch.causal()).stages(JOURNEY)


def dropped(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Dropout of ones, and then of the weights."""
    torch.manual_seed(123)
    ones = stages.dropped_weights(torch.ones(6, 6), 0.5)
    return ones, stages.dropped_weights(weights, 0.5)


def batched() -> Tensor:
    torch.manual_seed(123)
    return BatchedAttention(3, head_dim=2, mask=ch.causal(), dropout=0.0)(TWICE)


def two_heads() -> Tensor:
    torch.manual_seed(123)
    heads = [BatchedAttention(3, head_dim=2, mask=ch.causal()) for _ in range(2)]
    return ConcatenatedHeads(heads)(TWICE)


def split() -> Tensor:
    torch.manual_seed(123)
    return SplitHeads(3, num_heads=2, head_dim=1, output_dim=2, mask=ch.causal())(TWICE)


def four_heads() -> Tensor:
    torch.manual_seed(123)
    heads = [SelfAttention(3, head_dim=2, value_head_dim=1, init="uniform") for _ in range(4)]
    return ConcatenatedHeads(heads)(DESSERT.embeddings)


def cross() -> tuple[Tensor, Tensor]:
    """The second sentence, and what the first one finds in it, with matrices from torch.rand."""
    drawn = uniform(4)
    second = torch.rand(8, 3)
    rung = CrossAttention(3, head_dim=2, value_head_dim=4).with_weights(*drawn.parameters())
    return second, rung(DESSERT.embeddings, second)


def blog_rung() -> SelfAttention:
    torch.manual_seed(246)
    return SelfAttention(3, head_dim=2, init="uniform")


def blog_heads(bias: bool = False, dropout: float | None = None) -> Tensor:
    torch.manual_seed(246)
    rung = SplitHeads(
        3, num_heads=2, head_dim=2, output_dim=4, bias=bias, mask=ch.causal(), dropout=dropout
    )
    return rung(torch.stack([BLOG, BLOG]))


def inverted(num_heads: int) -> ConcatenatedHeads:
    """Heads that hide the past and the present: the mask that is 1 where it should be 0."""
    torch.manual_seed(123)
    return ConcatenatedHeads(
        BatchedAttention(3, head_dim=2, mask=~ch.causal(), dropout=0.5) for _ in range(num_heads)
    )


def by_the_plain_formula(rung: ConcatenatedHeads) -> Tensor:
    """Our context, and NaN where the plain softmax has nothing to share among."""
    steps = rung.stages(TWICE)
    nothing = torch.softmax(steps.masked_scores, dim=-1).isnan().any(dim=-1)
    assert nothing.any()
    assert (steps.context[nothing] == 0).all()
    return merge_heads(steps.context.masked_fill(nothing[..., None], torch.nan))


COMES_OUT: dict[str, Callable[[], Any]] = {
    "000.01 attn_scores_2": lambda: scores_of_query(JOURNEY[1], JOURNEY),
    "000.02 attn_weights_2": lambda: weights_by_sum(scores_of_query(JOURNEY[1], JOURNEY)),
    "000.02 sum": lambda: weights_by_sum(scores_of_query(JOURNEY[1], JOURNEY)).sum(),
    "000.03 attn_weights_2": lambda: simple(JOURNEY).weights[1],
    "000.03 sum": lambda: simple(JOURNEY).weights[1].sum(),
    "000.04 context_vec_2": lambda: context_by_loops(simple(JOURNEY).weights[1:2], JOURNEY)[0],
    "000.05 attn_scores": lambda: scores_by_loops(JOURNEY, JOURNEY),
    "000.06 attn_scores": lambda: simple(JOURNEY).scores,
    "000.07 attn_weights": lambda: simple(JOURNEY).weights,
    "000.08 all_context_vecs": lambda: simple(JOURNEY).context,
    "000.08 previous context vector": lambda: simple(JOURNEY).context[1],
    "000.09 query_2": lambda: normal().project(JOURNEY)[0][1],
    "000.10 keys.shape": lambda: normal().project(JOURNEY)[1].shape,
    "000.10 values.shape": lambda: normal().project(JOURNEY)[2].shape,
    # Called ω₂₂ there, and read from the third key.
    "000.11 attn_score_22": lambda: normal().stages(JOURNEY).scores[1, 2],
    "000.12 attn_scores_2": lambda: normal().stages(JOURNEY).scores[1],
    "000.13 attn_weights_2": lambda: normal().stages(JOURNEY).weights[1],
    "000.14 context_vec_2": lambda: normal().stages(JOURNEY).context[1],
    # The weights of attention without matrices, on the values of attention with them.
    "000.15 all_context_vecs": lambda: stages.context(
        simple(JOURNEY).weights, normal().project(JOURNEY)[2]
    ),
    "000.16 output": lambda: normal()(JOURNEY),
    "000.17 output": lambda: layers(bias=True).context,
    "000.18 attn_weights": lambda: layers(bias=True).weights,
    "000.19 mask_simple": lambda: CAUSAL,
    "000.20 masked_simple": lambda: hide(layers(bias=True).weights, CAUSAL),
    "000.21 masked_simple_norm": lambda: renormalise(hide(layers(bias=True).weights, CAUSAL)),
    "000.22 dropout(example)": lambda: dropped(torch.ones(6, 6))[0],
    "000.23 dropout(attn_weights)": lambda: dropped(layers(bias=True).weights)[1],
    "000.24 batch.shape": lambda: TWICE.shape,
    "000.25 shape": lambda: batched().shape,
    "000.25 context_vecs": batched,
    "000.26 context_vecs": two_heads,
    "000.26 shape": lambda: two_heads().shape,
    "000.27 context_vecs": split,
    "000.27 shape": lambda: split().shape,
    "001.01 vocabulary": lambda: embed_words("Life is short eat dessert first").vocabulary,
    "001.02 sentence_integer_encoding": lambda: DESSERT.ids,
    "001.03 shape": lambda: DESSERT.embeddings.shape,
    "001.03 embedded_sentence": lambda: embed_words("Life is short eat dessert first").embeddings,
    "001.04 query_2.shape": lambda: uniform(4).project(DESSERT.embeddings)[0][1].shape,
    "001.04 key_2.shape": lambda: uniform(4).project(DESSERT.embeddings)[1][1].shape,
    "001.04 value_2.shape": lambda: uniform(4).project(DESSERT.embeddings)[2][1].shape,
    "001.05 keys.shape": lambda: uniform(4).project(DESSERT.embeddings)[1].shape,
    "001.05 values.shape": lambda: uniform(4).project(DESSERT.embeddings)[2].shape,
    # Called ω₂₄ there, counting the key from 0 and the query from 1.
    "001.06 omega_24": lambda: dessert().scores[1, 4],
    "001.07 omega_2": lambda: dessert().scores[1],
    "001.08 attention_weights_2": lambda: dessert().weights[1],
    "002.00 shape": lambda: BLOG.shape,
    "002.01 example_attention_scores": lambda: scores_of_query(BLOG[1], BLOG),
    "002.02 normalized": lambda: simple(BLOG).weights[1],
    "002.03 example_context_vector": lambda: context_by_loops(simple(BLOG).weights[1:2], BLOG)[0],
    "002.04 all_attention_scores": lambda: simple(BLOG).scores,
    "002.05 all_normalized_attention_scores": lambda: simple(BLOG).weights,
    "002.06 all_example_context_vectors": lambda: simple(BLOG).context,
    "002.07 context_vectors": lambda: blog_rung()(BLOG),
    "002.08 example_query": lambda: blog_rung().project(BLOG)[0][1],
    "002.08 example_key": lambda: blog_rung().project(BLOG)[1][1],
    "002.08 example_value": lambda: blog_rung().project(BLOG)[2][1],
    "002.09 MultiHeadAttention": lambda: blog_heads(),
    "002.10 MultiHeadAttention with bias": lambda: blog_heads(bias=True),
    "002.11 MultiHeadAttention with dropout": lambda: blog_heads(dropout=0.5),
    "003.00 dc": lambda: DESSERT.vocabulary,
    "003.01 sentence_int": lambda: DESSERT.ids,
    "003.02 embedded_sentence": lambda: DESSERT.embeddings,
    "003.02 shape": lambda: DESSERT.embeddings.shape,
    "003.03 query_2.shape": lambda: uniform(4).project(DESSERT.embeddings)[0][1].shape,
    "003.03 key_2.shape": lambda: uniform(4).project(DESSERT.embeddings)[1][1].shape,
    "003.03 value_2.shape": lambda: uniform(4).project(DESSERT.embeddings)[2][1].shape,
    "003.04 keys.shape": lambda: uniform(4).project(DESSERT.embeddings)[1].shape,
    "003.04 values.shape": lambda: uniform(4).project(DESSERT.embeddings)[2].shape,
    "003.05 omega_24": lambda: dessert().scores[1, 4],
    "003.06 omega_2": lambda: dessert().scores[1],
    "003.07 attention_weights_2": lambda: dessert().weights[1],
    "003.08 shape": lambda: dessert().context[1].shape,
    "003.08 context_vector_2": lambda: dessert().context[1],
    "003.09 output": lambda: uniform(4)(DESSERT.embeddings),
    "003.10 output": lambda: uniform(1)(DESSERT.embeddings),
    "003.11 context_vecs": four_heads,
    "003.11 shape": lambda: four_heads().shape,
    "003.12 first shape": lambda: DESSERT.embeddings.shape,
    "003.12 second shape": lambda: cross()[0].shape,
    "003.13 context_vectors": lambda: cross()[1],
    "003.13 shape": lambda: cross()[1].shape,
    "003.14 attn_scores": lambda: dessert().scores,
    "003.14 shape": lambda: dessert().scores.shape,
    "003.15 attn_weights": lambda: dessert().weights,
    # Printed without its last column.
    "003.16 mask_simple": lambda: CAUSAL[:, :5],
    "003.17 masked_simple": lambda: hide(dessert().weights, CAUSAL),
    "003.18 masked_simple_norm": lambda: renormalise(hide(dessert().weights, CAUSAL)),
    "003.19 masked": lambda: stages.masked_scores(dessert().scores, None, CAUSAL),
    "003.20 attn_weights": lambda: stages.weights(
        stages.masked_scores(dessert().scaled_scores, None, CAUSAL)
    ),
    "004.00 inputs.shape": lambda: JOURNEY.shape,
    "004.01 input_query": lambda: JOURNEY[1],
    "004.02 input_1": lambda: JOURNEY[0],
    "004.03 by hand": lambda: dot_product(JOURNEY[1], JOURNEY[0]),
    "004.04 dot": lambda: dot_product(JOURNEY[1], JOURNEY[0]),
    "004.05 res": lambda: dot_product(JOURNEY[3], JOURNEY[1]),
    "004.06 res": lambda: stages.scores(JOURNEY[3:4], JOURNEY[1:2])[0, 0],
    "004.07 inputs.shape[0]": lambda: len(JOURNEY),
    "004.08 attn_scores_2": lambda: scores_of_query(JOURNEY[1], JOURNEY),
    "004.09 attn_weights_2_tmp": lambda: weights_by_sum(scores_of_query(JOURNEY[1], JOURNEY)),
    "004.09 In 216 sum": lambda: weights_by_sum(scores_of_query(JOURNEY[1], JOURNEY)).sum(),
    "004.10 softmax_naive": lambda: naive_softmax(scores_of_query(JOURNEY[1], JOURNEY)),
    "004.11 attn_weights_2": lambda: simple(JOURNEY).weights[1],
    "004.11 sum": lambda: simple(JOURNEY).weights[1].sum(),
    "004.12 printed weight 0": lambda: simple(JOURNEY).weights[1, 0],
    "004.12 printed weight 1": lambda: simple(JOURNEY).weights[1, 1],
    "004.12 printed weight 2": lambda: simple(JOURNEY).weights[1, 2],
    "004.12 printed weight 3": lambda: simple(JOURNEY).weights[1, 3],
    "004.12 printed weight 4": lambda: simple(JOURNEY).weights[1, 4],
    "004.12 printed weight 5": lambda: simple(JOURNEY).weights[1, 5],
    "004.12 printed row 0": lambda: JOURNEY[0],
    "004.12 printed row 1": lambda: JOURNEY[1],
    "004.12 printed row 2": lambda: JOURNEY[2],
    "004.12 printed row 3": lambda: JOURNEY[3],
    "004.12 printed row 4": lambda: JOURNEY[4],
    "004.12 printed row 5": lambda: JOURNEY[5],
    "004.12 context_vec_2": lambda: context_by_loops(simple(JOURNEY).weights[1:2], JOURNEY)[0],
    "004.13 inputs.shape[0]": lambda: len(JOURNEY),
    "004.14 attn_scores": lambda: scores_by_loops(JOURNEY, JOURNEY),
    "004.15 attn_scores": lambda: simple(JOURNEY).scores,
    "004.16 attn_weights": lambda: simple(JOURNEY).weights,
    "004.17 inputs": lambda: JOURNEY,
    "004.17 inputs.T": lambda: JOURNEY.mT,
    "004.18 attn_weights": lambda: stages.weights(stages.scores(JOURNEY, JOURNEY)),
    "004.19 shape": lambda: simple(JOURNEY).context.shape,
    "004.19 context_vec": lambda: simple(JOURNEY).context,
    "004.20 inputs": lambda: JOURNEY,
    # The matrices as shown are the second, sixth and fifth draw; what follows came from others.
    "004.22 W_query": lambda: draws()[1],
    "004.23 W_key": lambda: draws()[5],
    "004.24 W_value": lambda: draws()[4],
    "004.25 query_2": lambda: shuffled(0, 1, 3).project(JOURNEY)[0][1],
    "004.26 keys": lambda: shuffled(0, 1, 3).project(JOURNEY)[1],
    "004.27 values": lambda: shuffled(0, 1, 3).project(JOURNEY)[2],
    "004.28 keys_2": lambda: shuffled(0, 1, 3).project(JOURNEY)[1][1],
    "004.29 attention_score_22": lambda: shuffled(0, 1, 3).stages(JOURNEY).scores[1, 1],
    "004.30 attention_scores_2": lambda: shuffled(0, 1, 3).stages(JOURNEY).scores[1],
    "004.31 d_k": lambda: shuffled(0, 1, 3).project(JOURNEY)[1].shape[1],
    "004.31 attn_weights_2": lambda: shuffled(0, 1, 3).stages(JOURNEY).weights[1],
    "004.31 In 280 sum": lambda: shuffled(0, 1, 3).stages(JOURNEY).weights[1].sum(),
    "004.32 context_vec_2": lambda: shuffled(0, 1, 3).stages(JOURNEY).context[1],
    "004.33 output": lambda: normal()(JOURNEY),
    "004.34 m.weight": layer_after_normal,
    "004.35 output": lambda: layers(bias=False).context,
    "004.36 attn_weights": lambda: layers(bias=False).weights,
    "004.37 mask_simple": lambda: CAUSAL,
    "004.38 attn_weights_masked_simple": lambda: hide(layers(bias=False).weights, CAUSAL),
    "004.39 masked_simple_norm": lambda: renormalise(hide(layers(bias=False).weights, CAUSAL)),
    "004.40 masked": lambda: stages.masked_scores(layers(bias=False).scores, None, CAUSAL),
    "004.41 attn_weights": lambda: causal_layers().weights,
    "004.42 layer(example)": lambda: dropped(torch.ones(6, 6))[0],
    "004.43 layer(attn_weights)": lambda: dropped(causal_layers().weights)[1],
    "004.44 inputs": lambda: JOURNEY,
    "004.45 batch.shape": lambda: TWICE.shape,
    # One head, and then two, that see the future only; the last token sees nothing.
    "004.46 ca(batch)": lambda: by_the_plain_formula(inverted(1)),
    "004.47 multi_head_attn(batch)": lambda: by_the_plain_formula(inverted(2)),
}


def difference(got: Any, record: dict[str, Any]) -> str | None:
    """The first number that differs from the printed one, or None."""
    expected, decimals = record["expected"], record["decimals"]
    if isinstance(expected, dict):
        return None if got == expected else f"got {got}"
    if isinstance(got, torch.Size):
        return None if list(got) == expected else f"got {got}"
    got = torch.as_tensor(got).detach().double()
    if list(got.shape) != record["shape"]:
        return f"got shape {tuple(got.shape)}, printed was {record['shape']}"
    allowed = 0.0 if decimals == 0 else 0.5 * 10.0**-decimals + 1e-6
    numbers = expected if isinstance(expected, list) else [expected]
    for at, (value, printed) in enumerate(zip(got.flatten().tolist(), numbers, strict=True)):
        wanted = float(printed)
        same = value == wanted or (math.isnan(value) and math.isnan(wanted))
        if not same and not abs(value - wanted) <= allowed:
            return f"number {at} is {value:.6f}, printed was {printed}"
    return None


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"])
def test_number_comes_out(record: dict[str, Any]) -> None:
    if record["id"] in NEVER:
        assert record["comes_out"] == "never"
        return
    wrong = difference(COMES_OUT[record["id"]](), record)
    assert wrong is None, f"{record['id']} ({record['step']}): {wrong}"


def test_no_record_is_left_out() -> None:
    assert {record["id"] for record in RECORDS} == COMES_OUT.keys() | NEVER.keys()
    assert not COMES_OUT.keys() & NEVER.keys()
    assert Counter(record["comes_out"] for record in RECORDS) == {
        "as printed": 128,
        "with the fix": 13,
        "never": 1,
        "derived": 14,
    }


@pytest.mark.parametrize(
    ("got", "wrong"),
    [
        ([1.23461, math.nan], None),
        ([1.23466, math.nan], "number 0"),
        ([1.2346, 0.0], "number 1"),
        ([math.nan, math.nan], "number 0"),
        ([1.2346], "got shape"),
    ],
)
def test_the_comparison_compares(got: list[float], wrong: str | None) -> None:
    found = difference(
        torch.tensor(got, dtype=torch.float64),
        {"expected": [1.2346, "nan"], "decimals": 4, "shape": [2]},
    )
    assert found is None if wrong is None else found is not None and found.startswith(wrong)


@pytest.mark.parametrize("num_heads", [1, 2])
def test_a_query_that_sees_nothing_gets_zeros_here(num_heads: int) -> None:
    context = inverted(num_heads)(TWICE)
    assert (context[:, -1] == 0).all()
    assert not context.isnan().any()
