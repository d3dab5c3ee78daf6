"""Attention over tokens that real processes share, held against one process."""

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.attention.sharded import by_gather, by_ring
from clearhead.testing.tolerances import assert_no_worse
from tests.sharding import ranks
from tests.sharding.calls import (
    CALLS,
    TOKENS,
    Call,
    Outcome,
    alone,
    together,
)

LAYOUTS = ("balanced", "contiguous", "zigzag", "interleaved")


def differences(actual: Outcome, expected: Outcome) -> dict[str, float]:
    """The largest difference of the context and of each gradient."""
    pairs = {"context": (actual.context, expected.context)}
    pairs |= {name: (actual.grads[name], grad) for name, grad in expected.grads.items()}
    found = {}
    for name, (one, other) in pairs.items():
        assert one.shape == other.shape, (name, one.shape, other.shape)
        found[name] = float((one - other).abs().max()) if one.numel() else 0.0
    return found


def every_call(group: Any, ways: tuple[str, ...]) -> dict[str, dict[str, dict[str, float]]]:
    worst: dict[str, dict[str, dict[str, float]]] = {how: {} for how in ways}
    for place, (name, call) in enumerate(CALLS.items()):
        layout = LAYOUTS[(place + group.size()) % len(LAYOUTS)]
        expected = alone(call) if group.rank() == 0 else None
        for how in ways:
            if how not in call.only or (how == "heads" and call.heads[0] < group.size()):
                continue
            actual = together(call, group, how, layout)
            if expected is not None:
                worst[how][f"{name}, {layout}"] = differences(actual, expected)
    return worst


# Key heads are as many as ranks, fewer, and shared by several ranks each.
@pytest.mark.parametrize(
    ("world", "ways"),
    [(2, ("gather", "ring", "heads")), (3, ("gather", "ring", "heads")), (4, ("heads",))],
)
def test_ranks_compute_what_one_process_does(world: int, ways: tuple[str, ...]) -> None:
    for how, worst in ranks.run(world, every_call, ways)[0].items():
        assert len(worst) >= 24, how
        far = {name: each for name, each in worst.items() if not max(each.values()) <= 1e-13}
        assert not far, how


def in_any_order(group: Any) -> dict[str, float]:
    order = torch.arange(TOKENS) * 11 % TOKENS
    layout = [order[:9], order[9:9], order[9:]]
    found = {}
    for how in ("gather", "ring", "heads"):
        for name in ("window", "alibi", "holes"):
            apart = differences(together(CALLS[name], group, how, layout), alone(CALLS[name]))
            found |= {f"{how} {name} {each}": size for each, size in apart.items()}
    return found


def test_positions_come_in_any_order() -> None:
    worst = ranks.run(3, in_any_order)[2]
    assert len(worst) == 36
    assert max(worst.values()) <= 1e-13


def portion_by_portion(group: Any) -> dict[str, float]:
    found = {}
    with mock.patch.object(by_gather, "GATHERED", 1), mock.patch.object(by_ring, "PORTION", 4):
        for how in ("gather", "ring"):
            for name in ("sinks", "relative", "window"):
                apart = differences(together(CALLS[name], group, how, "zigzag"), alone(CALLS[name]))
                found |= {f"{how} {name} {each}": size for each, size in apart.items()}
    return found


def test_heads_and_queries_go_in_portions() -> None:
    worst = ranks.run(2, portion_by_portion)[1]
    assert len(worst) == 28
    assert max(worst.values()) <= 1e-13


def lower_precision(group: Any) -> dict[str, Any]:
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        call = Call(lambda: {"mask": ch.causal()}, dtype=dtype, tokens=67)
        plain = alone(call)
        truth = alone(replace(call, dtype=torch.float64), dtype)
        for how in ("gather", "ring", "heads"):
            found[f"{how} {dtype}"] = together(call, group, how, "zigzag"), plain, truth
    return found


def test_the_precision_is_that_of_one_process() -> None:
    for name, (actual, plain, truth) in ranks.run(3, lower_precision)[0].items():
        assert_no_worse(actual.context, truth.context, plain.context, what=name)
        for tensor, grad in actual.grads.items():
            assert_no_worse(grad, truth.grads[tensor], plain.grads[tensor], what=f"{name} {tensor}")


def not_finite(group: Any, how: str) -> tuple[Tensor, Tensor]:
    call = CALLS["window"]
    tensors = call.tensors()
    tensors["key"][0, 0, 11], tensors["value"][1, 1, 7, 0] = torch.nan, torch.inf
    tensors["query"][0, 1, 3] = torch.nan
    del tensors["grad"]
    where = ch.across(group, tokens=TOKENS, layout="zigzag", how=how)
    held = {name: where.shard(each) for name, each in tensors.items()}
    context = where.gather(ch.attend(**held, **call.options(), across=where))
    return context, ch.attend(**tensors, **call.options())


@pytest.mark.parametrize("how", ["gather", "ring", "heads"])
def test_what_is_not_finite_shows_where_it_may_be_seen(how: str) -> None:
    actual, expected = ranks.run(2, not_finite, how)[0]
    assert expected.isnan().any()
    torch.testing.assert_close(actual, expected, equal_nan=True)
