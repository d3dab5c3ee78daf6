"""Attention rollout, held against the product of whole matrices."""

from typing import Any

import torch
from torch import Tensor

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.attention.kernels import eager
from tests.matrix.test_reductions import close
from tests.refusals import refusals

BATCH, HEADS, TOKENS, DIM = 2, 6, 7, 5


def layer(
    heads: int = HEADS, kv_heads: int = 3, tokens: int = TOKENS, **options: Any
) -> AttentionMatrix:
    query = torch.randn(BATCH, heads, tokens, DIM, dtype=torch.float64)
    key = torch.randn(BATCH, kv_heads, tokens, DIM, dtype=torch.float64)
    return AttentionMatrix(query, key, **options)


def three() -> list[AttentionMatrix]:
    """Layers that are not alike: in their heads, and in who sees whom."""
    return [
        layer(mask=ch.causal()),
        layer(heads=5, kv_heads=5, mask=ch.causal() & ch.sliding_window(left=2)),
        layer(heads=3, mask=ch.causal()),
    ]


def by_the_formula(layers: list[AttentionMatrix], head: str | int, residual: float) -> Tensor:
    """All rows, (batch, outputs, tokens): the product of whole matrices, the last layer first."""
    product = torch.eye(layers[0].shape[-1], dtype=torch.float64)
    for each in layers:
        whole = eager.compute(each.problem).weights
        mixed = whole.mean(dim=1) if head == "mean" else whole[:, int(head)]
        identity = torch.eye(mixed.shape[-1], dtype=torch.float64)
        product = ((1 - residual) * mixed + residual * identity) @ product
    return product


def test_the_defaults() -> None:
    layers = three()
    found = ch.reading.rollout(tuple(layers))
    assert torch.equal(found, ch.reading.rollout(layers, output=-1, head="mean", residual=0.5))
    assert torch.equal(found, ch.reading.rollout(layers, output=TOKENS - 1))


def test_heads_count_from_the_end() -> None:
    layers = [layer(mask=ch.causal()), layer(mask=ch.causal())]
    assert ch.reading.rollout(layers, head=-1).equal(ch.reading.rollout(layers, head=HEADS - 1))


def test_what_a_sink_or_an_empty_row_keeps_is_gone() -> None:
    sinks = torch.full((HEADS,), 3.0, dtype=torch.float64)
    layers = [layer(mask=ch.causal(offset=-2), sinks=sinks), layer(mask=ch.causal())]
    expected = by_the_formula(layers, "mean", 0.5)
    found = ch.reading.rollout(layers, output=range(TOKENS))
    close(found, expected, layers[0])
    assert bool((found.sum(dim=-1) < 1).all())


PLAIN = "AttentionMatrix [batch=2, num_heads=6, query_len=7, kv_len=7]"
FLAT = AttentionMatrix(torch.zeros(TOKENS, DIM).double(), torch.zeros(TOKENS, DIM).double())


test_refused_matrices = refusals(
    ch.reading.rollout,
    ([1, 2], "rollout.type", "[1, 2]"),
    (None, "rollout.type", "None"),
    ([], "rollout.empty"),
    (
        [layer(), layer(tokens=11)],
        "rollout.shape",
        f"{PLAIN} // 1 // AttentionMatrix [batch=2, num_heads=6, query_len=11, kv_len=11]",
    ),
    (
        [AttentionMatrix(torch.zeros(3, 2), torch.zeros(5, 2))],
        "rollout.shape",
        "AttentionMatrix [query_len=3, kv_len=5] // 0 // AttentionMatrix [query_len=3, kv_len=5]",
    ),
    (
        [layer(), FLAT],
        "rollout.shape",
        f"{PLAIN} // 1 // AttentionMatrix [query_len=7, kv_len=7]",
    ),
    (
        [FLAT, AttentionMatrix(torch.zeros(TOKENS, DIM), torch.zeros(TOKENS, DIM))],
        "rollout.dtype",
        "torch.float64 // 1 // torch.float32",
    ),
)


test_refused_options = refusals(
    lambda options: ch.reading.rollout(three(), **options),
    *(
        ({"head": head}, "rollout.head", f"2 // {got}")
        for head, got in [("max", "'max'"), (3, "3"), (-4, "-4"), (True, "True"), (1.0, "1.0")]
    ),
    *(
        (
            {"residual": residual},
            "residual.value",
            f"residual // a number from 0 to 1 // {residual}",
        )
        for residual in (-0.1, 1.5, float("nan"))
    ),
    ({"output": 7}, "matrix.range", "7 // -2 // 7"),
    ({"output": [0, -8]}, "matrix.range", "-8 // -2 // 7"),
    ({"output": slice(2)}, "matrix.index", "slice(None, 2, None)"),
    ({"output": 1.0}, "matrix.index", "-2 // 1.0"),
)
