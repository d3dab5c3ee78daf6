"""Every number that five tutorials print comes out of the ladder; see README.md here."""

import json
import math
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead import ladder, stages
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
    embed_words,
    merge_heads,
)
from clearhead.stages import Stages

FOLDER = Path(__file__).parent
RECORDS = json.loads((FOLDER / "numbers.json").read_text(encoding="utf-8"))
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


COMES_OUT: dict[str, str] = tomllib.loads((FOLDER / "comes_out.toml").read_text("utf-8"))


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
    names = {name: getattr(ladder, name) for name in ladder.__all__}
    wrong = difference(eval(COMES_OUT[record["id"]], globals() | names), record)
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
