"""The comparison of outputs and gradients, with ranks in one process: each is handed its part of the whole."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead._common.layouts import LAYOUTS
from clearhead.checking.contract import Contract
from clearhead.checking.ranks import comparing
from clearhead.checking.ranks.comparing import positions_of
from clearhead.checking.ranks.rank_calls import Failure, RankCall, RankResult
from clearhead.checking.subject.subject import Subject

Attend = Callable[..., Tensor]

MASKS: list[tuple[dict[str, Any], ch.Mask | None]] = [
    ({}, None),
    ({"causal": True}, ch.causal()),
    ({"causal": True, "window": (4, 0)}, ch.causal() & ch.sliding_window(left=4, right=0)),
    ({"window": (4, 2)}, ch.sliding_window(left=4, right=2)),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("declared", "mask"), MASKS)
def test_the_layout_of_check_is_that_of_across(
    layout: str, declared: dict[str, Any], mask: ch.Mask | None
) -> None:
    for tokens, world in ((20, 2), (23, 3), (64, 4)):
        found = positions_of(tokens, Contract(world=world, layout=layout, **declared))
        shared = [
            ch.across(world=world, rank=rank, tokens=tokens, layout=layout, mask=mask)
            for rank in range(world)
        ]
        for rank, positions in enumerate(found):
            assert torch.equal(positions, shared[rank].positions_of(rank))


class OneProcess:
    """Ranks whose subject attends from all tokens to all: rows and gradients are cut into their parts."""

    own = True

    def __init__(self, subject: Subject, world: int) -> None:
        pass

    def close(self) -> None:
        pass

    def run(self, subject: Subject, call: RankCall) -> list[Any]:
        leaves = [each.to(subject.dtype).requires_grad_() for each in call.inputs[:3]]
        try:
            output = subject.run(*leaves, *call.inputs[3:])
        except RuntimeError as error:
            return [Failure("raises", str(error)) for _ in call.positions]
        grads: tuple[Tensor, ...] = ()
        if call.grad is not None:
            grads = torch.autograd.grad(output, leaves, call.grad.to(output))
        parts = [
            [each.detach().double()[:, :, here] for each in (output, *grads)]
            for here in call.positions
        ]
        return [
            self.changed(rank, RankResult(each[0], tuple(each[1:])))
            for rank, each in enumerate(parts)
        ]

    def changed(self, rank: int, result: RankResult) -> RankResult:
        return result


def checked(
    attend: Attend, world: int = 2, ranks: type[OneProcess] = OneProcess, **declared: Any
) -> Any:
    with mock.patch.object(comparing, "StartedRanks", ranks):
        return ch.check(attend, **{"takes": "qkv", "world": world, **declared})


def causally(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return ch.attend(query, key, value, mask=ch.causal())


def only_float32(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    if query.dtype != torch.float32:
        raise RuntimeError("float32 alone")
    return causally(query, key, value)


@pytest.mark.parametrize("attend", [causally, only_float32])
@pytest.mark.parametrize("causal", [True, None])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_definition_is_right(attend: Attend, causal: bool | None, world: int) -> None:
    """In the one precision in which it works as well, and whether the mask is declared or not."""
    assert checked(attend, world, causal=causal).outcome == "right"


def changing(part: int, index: int, change: Callable[[Tensor], Tensor]) -> type[OneProcess]:
    """Ranks of which one returns another output (index 0) or gradient of query, key or value."""

    class Changed(OneProcess):
        def changed(self, rank: int, result: RankResult) -> RankResult:
            found = [result.output, *result.grads]
            if rank == part and index < len(found):
                found[index] = change(found[index])
            return replace(result, output=found[0], grads=tuple(found[1:]))

    return Changed


def one_row(tensor: Tensor) -> Tensor:
    return torch.cat([tensor[:, :, :3], tensor[:, :, 3:4] * 1.01, tensor[:, :, 4:]], 2)


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("part", [0, 1])
def test_one_row_of_one_rank_is_named(index: int, part: int) -> None:
    report = checked(causally, ranks=changing(part, index, one_row), causal=True)
    (found,) = report.findings
    assert found.code == ("grad.wrong" if index else "differs")
    # Of 20 tokens the ranks have 10 each, in a row.
    assert f"20 tokens: rank {part} at tokens {part * 10 + 3}, by up to" in found.measured
    assert f"rank {1 - part}" not in found.measured


@pytest.mark.parametrize("index", range(4))
def test_sixteen_bits_are_a_difference(index: int) -> None:
    ranks = changing(1, index, lambda each: each.bfloat16().double())
    (found,) = checked(causally, ranks=ranks, causal=True).findings
    assert found.code == ("grad.wrong" if index else "differs")


def test_rows_that_are_missing_at_some_lengths() -> None:
    ranks = changing(0, 0, lambda each: each[:, :, :11])
    (found,) = checked(causally, ranks=ranks, causal=True).findings
    assert found.code == "differs"
    assert found.measured.startswith("23 tokens: rank 0 has 12 queries and returns ")
