"""Every stage by name, for everything that can be traced."""

import re

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead import ladder, stages
from clearhead.errors import (
    ArgumentError,
    SelectionError,
)
from clearhead.ladder import EXAMPLE_EMBEDDINGS, EXAMPLE_TOKENS
from tests.refusals import refusals, run

STAGES = list(stages.NAMES)
HOSTILE = ["<script>", "```", "\x1b[31m", "\u202eabc", "[red]", "&amp;"]


def inputs(*lead: int, query_len: int = 5, kv_len: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    query = torch.randn(*lead, query_len, 3, dtype=torch.float64)
    key = torch.randn(*lead, kv_len, 3, dtype=torch.float64)
    return query, key, torch.randn(*lead, kv_len, 2, dtype=torch.float64)


@pytest.mark.parametrize("lead", [(), (4,), (2, 4)])
def test_attend(lead: tuple[int, ...]) -> None:
    query, key, value = inputs(*lead)
    steps = ch.trace(ch.attend, query, key, value, mask=ch.causal(), softcap=2.0)
    assert list(steps) == ["query", "key", "value", *STAGES]
    visible = ch.causal().to_dense(5, 7)
    expected = stages.compute(query, key, value, scale=3**-0.5, softcap=2.0, visible=visible)
    for name, tensor in expected._asdict().items():
        torch.testing.assert_close(steps[name], tensor, msg=name)
    axes = ("batch", "num_heads")[2 - len(lead) :] if lead else ()
    assert steps.steps["weights"].axes == (*axes, "query_len", "kv_len")
    assert steps.difference < 1e-14


def test_layer_with_grouped_heads_and_dropout() -> None:
    layer = ch.MultiHeadAttention(
        12, num_heads=6, num_kv_heads=2, value_head_dim=5, mask=ch.causal(), dropout=0.5
    ).double()
    x = torch.randn(3, 7, 12, dtype=torch.float64)
    steps = ch.trace(layer, x)
    assert list(steps) == ["x", "query", "key", "value", *STAGES, "output"]
    assert steps["key"].shape == (3, 2, 7, 2)
    assert steps["context"].shape == (3, 6, 7, 5)
    weights, dropped = steps["weights"], steps["dropped_weights"]
    assert torch.allclose(weights.sum(-1), torch.ones(3, 6, 7, dtype=torch.float64))
    kept = dropped != 0
    assert 0 < int(kept.sum()) < int((weights != 0).sum())
    assert torch.allclose(dropped[kept], weights[kept] * 2)
    assert steps.steps["dropped_weights"].same_as is None
    assert steps.difference < 1e-14  # of the kernel without dropout
    layer.eval()
    calm = ch.trace(layer, x)
    assert torch.allclose(calm["output"], layer(x))
    assert calm.steps["dropped_weights"].same_as == "weights"
    assert calm.steps["capped_scores"].same_as == "scaled_scores"


def test_layer_across_two_inputs() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2, context_dim=6)
    steps = ch.trace(layer, torch.randn(5, 8), torch.randn(3, 6))
    assert list(steps)[:2] == ["x", "source"]
    assert steps["weights"].shape == (2, 5, 3)
    assert steps["output"].shape == (5, 8)
    assert steps.steps["source"].shape == "source_tokens=3, context_dim=6"


def test_explained_as_a_teacher_would() -> None:
    steps = ch.trace(ladder.SimpleAttention(), EXAMPLE_EMBEDDINGS, tokens=EXAMPLE_TOKENS)
    text = steps.explain(query=1)
    assert text.splitlines()[0] == "query 1 journey: [0.55, 0.87, 0.66]"
    assert "  0 Your     0.55·0.43 + 0.87·0.15 + 0.66·0.89 = 0.9544" in text
    assert "the weights to 1.0000" in text
    mixing = "0.1385·0.43 + 0.2379·0.55 + 0.2333·0.57 + 0.124·0.22 + 0.1082·0.77 + 0.1581·0.05"
    assert f"  {mixing} = 0.4419" in text
    assert steps.explain(query=-5) == text


def test_what_is_hidden_is_said_to_be() -> None:
    query, key, value = inputs(1, 1)
    text = ch.trace(ch.attend, query, key, value, mask=ch.causal(offset=0)).explain(0)
    assert text.count("hidden") == 6
    nothing = ch.trace(ch.attend, query, key, value, mask=~ch.full()).explain(0)
    assert "no key is visible, so that every weight is 0" in nothing
    assert "nothing to attend to: 0" in nothing


def test_a_sink_takes_its_share() -> None:
    query, key, value = inputs(2)
    sinks = torch.tensor([0.0, 3.0], dtype=torch.float64)
    steps = ch.trace(ch.attend, query, key, value, sinks=sinks)
    total = float(steps["weights"][1, 2].sum())
    text = steps.explain(2, head=1)
    assert "and the sink of this head: exp(" in text
    assert f"the weights to {total:.4f}" in text
    assert total < 0.99


def test_a_head_reads_its_group_of_keys() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=4, num_kv_heads=2)
    steps = ch.trace(layer, torch.randn(1, 3, 8))
    text = steps.show(head=3)
    rows = text.split("\nkey  [")[1].split("\n\n")[0]
    assert "kv_head 1" in rows
    first = f"{steps['key'][0, 1, 0, 0]:.4f}".replace("-", "−")
    assert first in rows


def test_what_fills_a_screen_is_summed_up() -> None:
    query, key, value = inputs(1, 1, query_len=50, kv_len=60)
    text = str(ch.trace(ch.attend, query, key, value))
    assert "50 × 60 numbers, too many to print: from" in text
    assert max(map(len, text.splitlines())) < 120
    assert len(text.splitlines()) < 60
    explained = ch.trace(ch.attend, query, key, value).explain(3)
    assert "… and 44 more keys" in explained


def test_the_verdict_names_the_kernel() -> None:
    query, key, value = inputs(1, 1)
    steps = ch.trace(ch.attend, query, key, value, softcap=1.0)
    assert steps.steps["capped_scores"].same_as is None
    text = str(steps)
    verdict = r"largest distance to the context of kernel 'blockwise': \d\.\de[+-]\d\d"
    assert re.fullmatch(verdict, text.splitlines()[-1])


def test_tokens_are_data() -> None:
    steps = ch.trace(ladder.SimpleAttention(), EXAMPLE_EMBEDDINGS, tokens=HOSTILE)
    page = steps._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    for text in (str(steps), page, steps.explain(0)):
        assert "\x1b" not in text
        assert "\u202e" not in text


LAYER, RUNG, TEXT = (
    ch.MultiHeadAttention(8, num_heads=2),
    ladder.SimpleAttention(),
    torch.zeros(3, 8),
)
HEADED = ladder.SelfAttention(3, head_dim=2)
EVERY = "x, query, key, value, scores, scaled_scores, capped_scores, masked_scores, weights, dropped_weights, context"


test_what_trace_refuses = refusals(
    run,
    (lambda: ch.trace(LAYER), "trace.inputs", "missing a required argument: 'x'"),
    (lambda: ch.trace(RUNG), "trace.thing", "SimpleAttention // nothing"),
    (lambda: ch.trace(ch.attend, TEXT), "trace.inputs", "missing a required argument: 'key'"),
    (lambda: ch.trace(RUNG, EXAMPLE_EMBEDDINGS)["weight"], "trace.stage", "'weight'", EVERY),
    (lambda: ch.trace(RUNG, EXAMPLE_EMBEDDINGS).explain(6), "trace.part", "6 // 6"),
    (lambda: ch.trace(LAYER, TEXT).show(head=2), "trace.part", "2 // num_heads // 2"),
    (lambda: ch.trace(HEADED, TEXT[:, :3]).explain(1, head=3), "trace.part", "1 // num_heads // 3"),
    (lambda: ch.trace(HEADED, TEXT[:, :3]).explain(1, sample=3), "trace.part", "1 // batch // 3"),
    (lambda: ch.trace(RUNG, TEXT, tokens=["a"]), "trace.tokens", "tokens // 3 // 1"),
    (
        lambda: ch.trace(torch.nn.Embedding(2, 2), torch.tensor([0, 1, 0])),
        "trace.thing",
        "Embedding // Tensor",
    ),
)


@pytest.mark.parametrize("kernel", ["eager", "fused"])
def test_the_kernel_that_is_asked_for(kernel: str) -> None:
    assert ch.trace(ch.attend, *inputs(1, 1), kernel=kernel).kernel == kernel
    with pytest.raises(ArgumentError, match="kernel must be"):
        ch.trace(ch.attend, *inputs(1, 1), kernel="other")
    if kernel == "fused":
        with pytest.raises(ch.errors.UnsupportedError, match="softcap"):
            ch.trace(ch.attend, *inputs(1, 1), kernel=kernel, softcap=1.0)


def test_signs_and_what_is_not_finite_in_the_arithmetic() -> None:
    query, key, value = inputs()
    below = ch.trace(ch.attend, query, key, value, bias=torch.full((5, 7), -9.0).double())
    assert re.search(r"exp\(score − \(−\d+\.\d+\), the largest\)", below.explain(0))
    key[2, 0] = torch.nan
    text = ch.trace(ch.attend, query, key, value).explain(0)
    assert "exp(nan) = nan   weight nan" in text
    assert "the exps add up to nan, the weights to nan" in text


@pytest.mark.parametrize("size", [(0, 3, 8), (2, 0, 8)])
def test_an_empty_axis_leaves_shapes_and_formulas(size: tuple[int, int, int]) -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2, num_kv_heads=1, mask=ch.causal())
    steps = ch.trace(layer, torch.zeros(size))
    assert repr(steps).startswith("Trace of MultiHeadAttention(8, num_heads=2")
    expected = f"batch={size[0]}, num_heads=2, query_len={size[1]}, kv_len={size[1]}"
    assert f"[{expected}]" in str(steps)
    assert "capped_scores, −∞ where causal() hides" in str(steps)
    with pytest.raises(
        SelectionError, match=r"^\[trace.part\] there are 0 queries; got query=0\.$"
    ):
        steps.explain(0)
    with pytest.raises(ArgumentError, match=r"^\[plot.empty\] there is nothing to draw"):
        steps.plot()
    with pytest.raises(SelectionError, match=rf"there are {size[0]} along batch; got 2\.$"):
        steps.show(sample=2)
