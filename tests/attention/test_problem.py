"""Bad input is refused by name, with what was expected and what came, before any computation."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import clearhead as ch
from clearhead.attention.problem import make_problem
from clearhead.masks.spans import Extent, Spans
from tests.test_errors import PROBLEMS

# The sizes of the rows below: batch 2, length 5, dim 8, 2 heads of 4.
QUERY, KEY, VALUE = torch.randn(3, 2, 2, 5, 4, generator=torch.Generator()).unbind()
CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()


class Computation(TorchDispatchMode):
    """Records every operation that makes new floating numbers, which no refusal needs."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(x, Tensor) and x.is_floating_point() for x in tree_leaves(result)):
            self.operations += [] if func.is_view else [str(func)]
        return result


@pytest.mark.parametrize("case", PROBLEMS, ids=lambda case: f"{case[1]}: {case[-1][:60]}")
def test_bad_input_is_refused_before_any_computation(case: tuple[Any, ...]) -> None:
    with Computation() as computed, pytest.raises(ch.errors.ClearheadError):
        case[0]()
    assert computed.operations == []


def test_computation_is_seen() -> None:
    with Computation() as computed:
        ch.attend(QUERY, KEY, VALUE)
    assert computed.operations


ANYTHING: list[object] = [
    None, True, False, 0, -1, 7, 2**70, 10**400, 0.5, math.nan, math.inf, 1j, "x", b"x", [], [1], (0.5, 0.5), {1},
    {"a": 1}, object(), int, len, np.ones((5, 5)), np.float32(0.5), Fraction(1, 3), torch.ones(()), torch.ones(2),
    torch.ones(0), torch.ones(5, 5), torch.ones(5, 5, dtype=torch.bool), torch.ones(2, 2, 5, 4, dtype=torch.int32),
    torch.ones(2, 2, 5, 4, device="meta"), torch.ones(2, 2, 5, 5, dtype=torch.bool, device="meta"),
    torch.ones(2, 2, 0, 4), torch.ones(0, 2, 5, 4), torch.ones(5, 5).to_sparse(), torch.ones(1, 1, 1, 1, 1),
    ch.causal(), ch.causal(offset=[1, 2, 3]), ch.alibi(2), ch.alibi(5),
]  # fmt: skip


@pytest.mark.parametrize(
    "argument", ["query", "key", "value", "mask", "bias", "scale", "softcap", "sinks", "dropout"]
)
def test_whatever_is_given_is_taken_or_refused_on_purpose(argument: str) -> None:
    """No AttributeError, IndexError or message from inside PyTorch."""
    for anything in ANYTHING:
        arguments: dict[str, Any] = {"query": QUERY, "key": KEY, "value": VALUE, argument: anything}
        query, key, value = (arguments.pop(name) for name in ("query", "key", "value"))
        try:
            context = ch.attend(query, key, value, **arguments)
        except ch.errors.ClearheadError:
            continue
        query_len = 0 if argument == "query" else 5
        assert context.shape in ((2, 2, 5, 4), (2, 2, query_len, 4)), f"{argument}={anything!r}"


@pytest.mark.parametrize(
    "number",
    [0.5, np.float32(0.5), np.float64(0.5), Fraction(1, 2)],
    ids=lambda n: type(n).__name__,
)
def test_a_number_of_any_kind_is_a_number(number: Any) -> None:
    problem = make_problem(QUERY, KEY, VALUE, scale=number, softcap=number, dropout=number)
    for found in (problem.scale, problem.softcap, problem.dropout):
        assert type(found) is float
        assert found == 0.5


def test_what_changes_nothing_is_left_out() -> None:
    problem = make_problem(QUERY, KEY, VALUE, mask=ch.full(), dropout=0.0)
    assert problem.mask is None
    assert problem.dropout is None
    assert problem.scale == 0.5
    assert problem.visible() is None
    assert problem.bias_block() is None


def test_the_description_names_everything_that_was_asked_for() -> None:
    problem = make_problem(
        QUERY,
        KEY,
        VALUE,
        mask=ch.causal(),
        bias=torch.zeros(5, 5),
        softcap=30,
        sinks=torch.zeros(2),
        dropout=0.1,
    )
    assert problem.describe() == (
        "query  [batch=2, num_heads=2, query_len=5, head_dim=4] float32 cpu\n"
        "key    [batch=2, num_kv_heads=2, kv_len=5, head_dim=4] float32 cpu\n"
        "value  [batch=2, num_kv_heads=2, kv_len=5, value_head_dim=4] float32 cpu\n"
        "mask=causal(), bias=<1 × 1 × 5 × 5>, scale=0.5, softcap=30, sinks, dropout=0.1"
    )


@pytest.mark.parametrize("mask", [None, ch.causal(), ch.padding([3, 5])], ids=str)
def test_shapes_can_be_worked_out_without_numbers(mask: ch.Mask | None) -> None:
    meta = [each.to("meta") for each in (QUERY, KEY, VALUE)]
    context = ch.attend(*meta, mask=mask)
    assert (context.shape, context.device.type) == ((2, 2, 5, 4), "meta")


class CountedMask(ch.Mask):
    """A causal mask that counts how often its spans are asked for."""

    def __init__(self) -> None:
        self.times = 0

    def visible(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        return ch.causal().visible(query_index, key_index, extent)

    def spans(self, extent: Extent) -> Spans | None:
        self.times += 1
        return ch.causal().spans(extent)

    def describe(self) -> str:
        return "counted()"


@pytest.mark.parametrize("tokens", [200, 1024])
def test_spans_are_computed_once_a_call(tokens: int) -> None:
    """With gradients too, where a kernel that defers reads the mask before the one that runs."""
    mask = CountedMask()
    query = torch.randn(1, 2, tokens, 8, requires_grad=True)
    ch.attend(query, query, query, mask=mask).sum().backward()
    assert mask.times == 1


def test_a_changed_problem_keeps_the_spans_where_they_are_the_same() -> None:
    mask = CountedMask()
    problem = make_problem(*torch.randn(3, 1, 2, 7, 8).unbind(), mask=mask)
    spans = problem.spans
    assert problem.with_value(problem.key).spans is spans
    assert problem.replace(dropout=0.5, query=problem.query * 2).spans is spans
    assert mask.times == 1
    shorter = problem.replace(key=problem.key[:, :, :5], value=problem.value[:, :, :5])
    assert shorter.spans is not None
    assert int(shorter.spans.stop.max()) == 5
    assert problem.replace(mask=None).spans is None


def test_another_value_is_not_known_to_be_finite() -> None:
    problem = make_problem(*torch.randn(3, 1, 2, 7, 8).unbind()).replace(keys_finite=True)
    other = problem.with_value(problem.value * 2)
    assert (problem.keys_finite, other.keys_finite) == (True, False)
    assert other.query is problem.query
