"""The laws of attention, on every kernel: what may be done to a call without changing its result or its gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from tests.attention.kernels.definition import Tensors, close, flat, outcome, take_apart
from tests.attention.kernels.problems import Problem, problems

Attend = Callable[..., Tensor]
Change = Callable[[Attend, Tensors, dict[str, Any]], Tensor]

LENGTHS = (0, 1, 2, 3, 7)
# A kernel, and whether small problems are taken apart as only large ones are.
WAYS = [("auto", False), ("auto", True), ("eager", True), ("blockwise", True)]
ways = st.sampled_from(WAYS)
small = problems(LENGTHS, torch.float64)
without_sinks = small.map(
    lambda each: ({k: t for k, t in each[0].items() if k != "sinks"}, each[1])
)
some = settings(max_examples=20)


def attending(way: tuple[str, bool], patch: pytest.MonkeyPatch) -> Attend:
    kernel, parts = way
    if parts:
        take_apart(patch)
    return lambda *given, **options: ch.attend(*given, **options, kernel=kernel)


def assert_same(way: tuple[str, bool], problem: Problem, change: Change) -> None:
    """The changed call gives the context of the plain one, and each tensor the gradient that it had."""
    tensors, options = problem
    query, value = tensors["query"], tensors["value"]
    grad = torch.randn(*query.shape[:3], value.shape[3], dtype=query.dtype)
    with pytest.MonkeyPatch.context() as patch:
        attend = attending(way, patch)
        expected = outcome(lambda **given: attend(**given, **options), tensors, grad)
        found = outcome(lambda **given: change(attend, given, options), tensors, grad)
    for name in expected:
        assert found[name].shape == expected[name].shape, name
    close(flat(found), flat(expected), flat(expected), "the changed call")


def dense(tensors: Tensors, options: dict[str, Any]) -> dict[str, Any]:
    """The options with mask and bias as tensors of all four dimensions."""
    sizes = (*tensors["query"].shape[:3], tensors["key"].shape[2])
    mask, bias = options.get("mask"), options["bias"]
    seen = torch.ones(sizes, dtype=torch.bool) if mask is None else mask.to_dense(*sizes[2:])
    if isinstance(bias, ch.Bias):
        bias = bias.within(torch.float64).to_dense(*sizes[2:])
    added = torch.zeros(()) if bias is None else bias
    return options | {"mask": seen.expand(sizes), "bias": added.double().expand(sizes)}


def taken(
    tensors: Tensors, options: dict[str, Any], dim: int, places: Tensor
) -> tuple[Tensors, dict[str, Any]]:
    """Some samples, queries or keys of a call with dense options, by the dimension of the scores."""
    of = {0: ("query", "key", "value"), 2: ("query",), 3: ("key", "value")}[dim]
    axis = min(dim, 2)
    chosen = {
        name: each.index_select(axis, places) if name in of else each
        for name, each in tensors.items()
    }
    return chosen, options | {
        name: options[name].index_select(dim, places) for name in ("mask", "bias")
    }


@some
@given(ways, small)
def test_keys_come_in_any_order(way: tuple[str, bool], problem: Problem) -> None:
    order = torch.randperm(problem[0]["key"].shape[2])

    def change(attend: Attend, tensors: Tensors, options: dict[str, Any]) -> Tensor:
        tensors, options = taken(tensors, dense(tensors, options), 3, order)
        return attend(**tensors, **options)

    assert_same(way, problem, change)


@some
@given(ways, small, st.sampled_from([0, 2]), st.data())
def test_samples_and_queries_go_alone(
    way: tuple[str, bool], problem: Problem, dim: int, data: st.DataObject
) -> None:
    """In two portions, each in an order of its own."""
    count = problem[0]["query"].shape[dim]
    order = torch.randperm(count)
    cut = data.draw(st.integers(0, count))

    def change(attend: Attend, tensors: Tensors, options: dict[str, Any]) -> Tensor:
        options = dense(tensors, options)
        parts = [taken(tensors, options, dim, places) for places in (order[:cut], order[cut:])]
        found = torch.cat([attend(**part, **own) for part, own in parts], dim=dim)
        return found.index_select(dim, order.argsort())

    assert_same(way, problem, change)


@some
@given(ways, small)
def test_heads_come_in_any_order(way: tuple[str, bool], problem: Problem) -> None:
    """The key heads, each with the group of query heads that it serves."""
    num_heads, kv_heads = (problem[0][name].shape[1] for name in ("query", "key"))
    order = torch.randperm(kv_heads)
    of_query = torch.arange(num_heads).view(kv_heads, -1)[order].flatten()

    def change(attend: Attend, tensors: Tensors, options: dict[str, Any]) -> Tensor:
        options = dense(tensors, options)
        places = {"query": of_query, "key": order, "value": order}
        turned = {name: tensors[name][:, each] for name, each in places.items()}
        if "sinks" in tensors:
            turned["sinks"] = tensors["sinks"][of_query]
        masks = {name: options[name][:, of_query] for name in ("mask", "bias")}
        return attend(**turned, **options | masks)[:, of_query.argsort()]

    assert_same(way, problem, change)


@some
@given(ways, small)
def test_a_head_of_keys_that_serves_some_is_each_of_theirs(
    way: tuple[str, bool], problem: Problem
) -> None:
    group = problem[0]["query"].shape[1] // problem[0]["key"].shape[1]

    def change(attend: Attend, tensors: Tensors, options: dict[str, Any]) -> Tensor:
        own = {name: tensors[name].repeat_interleave(group, dim=1) for name in ("key", "value")}
        return attend(**tensors | own, **options)

    assert_same(way, problem, change)


@some
@given(ways, small, st.floats(-3, 3))
def test_it_is_linear_in_the_value(way: tuple[str, bool], problem: Problem, share: float) -> None:
    def change(attend: Attend, tensors: Tensors, options: dict[str, Any]) -> Tensor:
        parts = [share * tensors["value"] + 1, (1 - share) * tensors["value"] - 1]
        return sum(
            (attend(**tensors | {"value": part}, **options) for part in parts), torch.zeros(())
        )

    assert_same(way, problem, change)


@some
@given(ways, small, st.sampled_from([0.25, -0.5, 2.0]))
def test_a_factor_goes_with_the_query_the_key_or_the_scale(
    way: tuple[str, bool], problem: Problem, factor: float
) -> None:
    def change(attend: Attend, tensors: Tensors, options: dict[str, Any]) -> Tensor:
        query, key = tensors["query"] * factor, tensors["key"] * factor
        scale = options["scale"]
        scale = query.shape[3] ** -0.5 if scale is None else scale
        return attend(
            **tensors | {"query": query, "key": key}, **options | {"scale": scale / factor**2}
        )

    assert_same(way, problem, change)


@some
@given(ways, small)
def test_the_space_of_queries_and_keys_may_be_turned(
    way: tuple[str, bool], problem: Problem
) -> None:
    dim = problem[0]["query"].shape[3]
    turn = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64)).Q

    def change(attend: Attend, tensors: Tensors, options: dict[str, Any]) -> Tensor:
        turned = {name: tensors[name] @ turn for name in ("query", "key")}
        return attend(**tensors | turned, **options)

    assert_same(way, problem, change)


@some
@given(ways, without_sinks)
def test_what_is_added_to_all_scores_of_a_query_changes_nothing(
    way: tuple[str, bool], problem: Problem
) -> None:
    def change(attend: Attend, tensors: Tensors, options: dict[str, Any]) -> Tensor:
        options = dense(tensors, options)
        added = torch.randn(*tensors["query"].shape[:3], 1, dtype=torch.float64)
        return attend(**tensors, **options | {"bias": options["bias"] + added})

    assert_same(way, problem, change)


@some
@given(ways, small.filter(lambda each: "sinks" in each[0]))
def test_a_sink_is_a_key_of_that_score_that_says_nothing(
    way: tuple[str, bool], problem: Problem
) -> None:
    """Of all queries but those that see nothing, whose sink changes nothing either."""

    def change(attend: Attend, tensors: Tensors, options: dict[str, Any]) -> Tensor:
        options = dense(tensors, options)
        sinks = tensors["sinks"][:, None, None].expand(*options["bias"].shape[:3], 1)
        with_one = {
            name: torch.nn.functional.pad(tensors[name], (0, 0, 0, 1)) for name in ("key", "value")
        }
        return attend(
            tensors["query"], **with_one, **options | {
                "mask": torch.nn.functional.pad(options["mask"], (0, 1), value=True),
                "bias": torch.cat([options["bias"], sinks], dim=-1),
            },
        )  # fmt: skip

    assert_same(way, problem, change)


@some
@given(ways, small, st.sampled_from([0.0, torch.nan, torch.inf, -torch.inf]))
def test_hidden_keys_may_be_anything_and_none(
    way: tuple[str, bool], problem: Problem, poison: float
) -> None:
    """As many as there are, between the others, and a query that sees nothing."""

    def change(attend: Attend, tensors: Tensors, options: dict[str, Any]) -> Tensor:
        options = dense(tensors, options)
        more = {
            name: torch.stack([each, torch.full_like(each, poison)], dim=3).flatten(2, 3)
            for name, each in tensors.items() if name in ("key", "value")
        }  # fmt: skip
        mask, bias = options["mask"], options["bias"]
        mask = torch.stack([mask, torch.zeros_like(mask)], dim=4).flatten(3)
        bias = bias.repeat_interleave(2, dim=3)
        query = torch.cat(
            [tensors["query"], torch.full_like(tensors["query"][:, :, :1], poison)], dim=2
        )
        alone = query.shape[2] - tensors["query"].shape[2]
        mask = torch.nn.functional.pad(mask, (0, 0, 0, alone))
        bias = torch.nn.functional.pad(bias, (0, 0, 0, alone))
        found = attend(
            **tensors | more | {"query": query}, **options | {"mask": mask, "bias": bias}
        )
        assert bool((found[:, :, query.shape[2] - alone :] == 0).all())
        return found[:, :, : query.shape[2] - alone]

    assert_same(way, problem, change)


@some
@given(ways, without_sinks)
def test_of_values_that_are_all_one_whoever_sees_something_gets_it(
    way: tuple[str, bool], problem: Problem
) -> None:
    tensors, options = problem
    seen = dense(tensors, options)
    seen = (seen["mask"] & (seen["bias"] > -torch.inf)).any(-1, keepdim=True)
    one = torch.randn(tensors["value"].shape[3], dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        attend = attending(way, patch)
        found = attend(**tensors | {"value": one.expand(tensors["value"].shape)}, **options)
    expected = seen * one
    close(found, expected, expected, "the context of one value")


@some
@given(ways, small.filter(lambda each: len(each[0]["query"]) > 0), st.integers(1, 2))
def test_dimensions_in_front_may_be_left_out(
    way: tuple[str, bool], problem: Problem, fewer: int
) -> None:
    tensors, options = problem
    options = dense(tensors, options)
    tensors, options = taken(tensors, options, 0, torch.tensor([0]))
    if fewer == 2:
        tensors = {
            name: each[:, :1] if name != "sinks" else each[:1] for name, each in tensors.items()
        }
        options = options | {name: options[name][:, :1] for name in ("mask", "bias")}
    with pytest.MonkeyPatch.context() as patch:
        attend = attending(way, patch)
        expected = attend(**tensors, **options)
        less = {
            name: each[(0,) * fewer] if name != "sinks" else each for name, each in tensors.items()
        }
        found = attend(**less, **options)
    close(found, expected[(0,) * fewer], found, "the context of fewer dimensions")
