"""Non-finite numbers: they show to the queries that see them, and to no other, forward and backward."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead.attention.kernels import _fused_calls, _lowering, _nonfinite, fused
from clearhead.attention.problem import make_problem
from tests.attention.kernels.definition import (
    Tensors,
    close,
    context,
    draw,
    gradient_terms,
    outcome,
    take_apart,
)
from tests.masks.expressions import Sizes, expressions_for
from tests.on_device import Recorded, empty

NAN, INF = float("nan"), float("inf")
LONG = 1e25
"""Finite, in a query or a key whose scores may overflow: it counts as not finite."""


WAYS = ["eager", "fused", "fused, in parts", "fused, without looking"]


@pytest.fixture(params=WAYS)
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kernels, and the ways on which the fused one goes."""
    with pytest.MonkeyPatch.context() as patch:
        if "parts" in request.param:
            take_apart(patch)
        if "looking" in request.param:
            patch.setattr(fused, "can_read_now", lambda query: False)
        yield request.param.partition(",")[0]


class Reach(NamedTuple):
    """The queries and keys that non-finite entries reach, over (batch, num_heads, …)."""

    shows: Tensor
    """Entries of the context that must be NaN."""
    queries: Tensor
    """Queries that see something of it; their gradients may be anything."""
    keys: Tensor
    """Keys and values that one of these queries sees, (batch, num_kv_heads, kv_len)."""


def reach(tensors: Tensors, visible: Tensor) -> Reach:
    """Worked out from the tensors, pair by pair; `visible` has all four dimensions."""
    query, key, value = tensors["query"], tensors["key"], tensors["value"]
    groups = query.shape[1] // key.shape[1]
    bad_query = ~(query.abs() < LONG).all(-1)
    bad_key = (~(key.abs() < LONG).all(-1)).repeat_interleave(groups, dim=1)
    bad_value = (~value.isfinite()).repeat_interleave(groups, dim=1)
    whole = (visible & (bad_query[..., :, None] | bad_key[..., None, :])).any(-1)
    entries = (visible[..., None] & bad_value[:, :, None]).any(3)
    shows = whole[..., None] | entries
    queries = shows.any(-1)
    keys = (visible & queries[..., None]).any(2)
    return Reach(shows, queries, keys.unflatten(1, (-1, groups)).any(2))


def assert_stays_hidden(kernel: str, tensors: Tensors, mask: ch.Mask) -> None:
    """Hold the kernel to a computation on the finite part of the tensors, where it matters; of a
    value nothing may be LONG."""
    query, value = tensors["query"], tensors["value"]
    sizes = (*query.shape[:3], tensors["key"].shape[2])
    visible = mask.to_dense(*sizes[2:]).expand(sizes)
    touched = reach(tensors, visible)
    clean = {
        name: tensor.masked_fill(~(tensor.abs() < LONG), 0.0) for name, tensor in tensors.items()
    }
    grad = torch.randn(*sizes[:3], value.shape[3])
    # A query that sees something not finite passes nothing on, so that the rest can be compared.
    grad = grad.masked_fill(touched.queries[..., None], 0.0)
    actual = outcome(lambda **given: ch.attend(**given, mask=mask, kernel=kernel), tensors, grad)
    plain = outcome(lambda **given: context(**given, mask=mask), clean, grad)
    doubled = {name: tensor.double() for name, tensor in clean.items()}
    truth = outcome(lambda **given: context(**given, mask=mask), doubled, grad)

    assert torch.equal(actual["context"].isnan(), touched.shows)
    assert not actual["context"].isinf().any()
    kept = {"query": ~touched.queries, "key": ~touched.keys, "value": ~touched.keys}

    def contexts(result: Tensors) -> Tensor:
        return result["context"][~touched.shows]

    def gradients(result: Tensors) -> Tensor:
        return torch.cat([result[name][where].flatten() for name, where in kept.items()])

    close(contexts(actual), contexts(truth), contexts(plain), "the context")
    terms = gradient_terms(doubled, grad, mask=mask)
    close(gradients(actual), gradients(truth), gradients(plain), "a gradient", terms)


MASKS: dict[str, Callable[[], ch.Mask]] = {
    "causal": ch.causal,
    "window": lambda: ch.sliding_window(left=2, right=1),
    "padding": lambda: ch.padding([19, 7, 0]),
    "padding on the left, causal": lambda: ch.causal() & ch.padding([19, 7, 0], side="left"),
    "causal and padding": lambda: ch.causal() & ch.padding([19, 7, 0]),
    "documents": lambda: ch.documents([0] * 4 + [1] * 9 + [2] * 6),
    "prefix": lambda: ch.causal() | ch.prefix(3),
    "nothing": lambda: ch.padding(0),
    "dense per head": lambda: ch.dense(torch.rand(1, 4, 19, 19) < 0.3),
    "holes": lambda: ch.padding(torch.rand(3, 19) < 0.5),
}


OVERFLOWS: list[dict[str, Any]] = [
    {}, {"scale": -2.0}, {"softcap": 0.3}, {"sinks": torch.tensor([0.5, INF, -INF, NAN])}
]  # fmt: skip
# Compiling takes long: a cap behind a window, and sinks in the open.
ONE_ANSWER = [
    (way, options, mask)
    for way in ("blockwise", "fused", "fused, without looking", "compiled")
    for turn, options in enumerate(OVERFLOWS)
    for place, mask in enumerate([None, ch.causal(), ch.sliding_window(left=1)])
    if "fused" not in way or "softcap" not in options  # it has none
    if way != "compiled" or (turn, place) in ((2, 2), (3, 0))
]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    ("way", "options", "mask"),
    ONE_ANSWER,
    ids=lambda each: (
        next(iter(each), "plain")
        if isinstance(each, dict)
        else each.describe()
        if isinstance(each, ch.Mask)
        else str(each)
    ),
)
def test_one_answer_where_scores_may_overflow(
    way: str, options: dict[str, Any], mask: ch.Mask | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is that of the definition, forward and backward; and where a sink is not finite."""
    tensors = draw(2, 4, 2, 19, 19, 5, 5)
    tensors["query"][:, 1, 3] *= LONG
    tensors["key"][1, 0, 11] *= LONG
    if "scale" in options:
        tensors["query"][0, 2, 4] = 3e18  # too long with the scale only
    grad = torch.randn(2, 4, 19, 5)
    attended: Callable[..., Tensor] = ch.attend
    if way == "compiled":
        torch._dynamo.reset()
        attended = torch.compile(ch.attend, fullgraph=True, backend="eager")
    if "looking" in way:
        monkeypatch.setattr(fused, "can_read_now", lambda query: False)
    kernel = "auto" if way == "compiled" else way.partition(",")[0]
    found = outcome(
        lambda **given: attended(**given, mask=mask, kernel=kernel, **options), tensors, grad
    )
    right = outcome(lambda **given: context(**given, mask=mask, **options), tensors, grad)
    assert right["context"].isnan().any()
    assert right["context"].isfinite().any()
    for name, tensor in right.items():
        torch.testing.assert_close(found[name], tensor, equal_nan=True)


# The sizes at which PyTorch's kernel goes other ways, and some of them on the others.
OPEN = [
    (way, kv_len, dtype)
    for turn, way in enumerate(WAYS)
    for row, kv_len in enumerate([1, 3, 8, 9, 33, 513])
    for column, dtype in enumerate([torch.float64, torch.float32, torch.bfloat16])
    if way == "fused" or (turn + row + column) % 3 == 0
]


@pytest.mark.parametrize(("kernel", "kv_len", "dtype"), OPEN, indirect=["kernel"])
def test_nan_in_the_open_is_never_swallowed(kernel: str, kv_len: int, dtype: torch.dtype) -> None:
    """PyTorch's own kernel takes a NaN for −∞ where a row of scores holds nothing else."""
    masks = [ch.causal(), ch.padding(1), ch.sliding_window(left=0)]
    for tensor in ("query", "key", "value"):
        tensors = draw(1, 2, 2, kv_len, kv_len, 4, 4, dtype)
        tensors[tensor][...] = NAN
        for mask in [None, *masks]:
            assert ch.attend(**tensors, mask=mask, kernel=kernel).isnan().all(), (tensor, mask)


@st.composite
def poisoned(draw_: st.DrawFn) -> tuple[Tensors, ch.Mask]:
    """Any mask, and tensors with a few entries that are not finite anywhere."""
    lengths = st.sampled_from((1, 2, 3, 5, 17))
    heads = draw_(st.sampled_from([1, 2, 4]))
    sizes = Sizes(draw_(st.integers(1, 3)), heads, draw_(lengths), draw_(lengths))
    expression = draw_(expressions_for(sizes))
    num_kv_heads = draw_(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0]))
    widths = draw_(st.sampled_from([(3, 3), (2, 5), (5, 1)]))
    tensors = draw(*sizes[:2], num_kv_heads, *sizes[2:], *widths)
    for _ in range(draw_(st.integers(1, 3))):
        tensor = draw_(st.sampled_from(["query", "key", "value"]))
        poisons = [NAN, INF, -INF, *([] if tensor == "value" else [LONG])]
        flat = tensors[tensor].view(-1)
        flat[draw_(st.integers(0, len(flat) - 1))] = draw_(st.sampled_from(poisons))
    return tensors, expression.mask


@pytest.mark.parametrize("way", ["eager", "fused", "fused, without looking"])
@settings(max_examples=40)
@given(case=poisoned())
def test_any_mask(way: str, case: tuple[Tensors, ch.Mask]) -> None:
    tensors, mask = case
    with pytest.MonkeyPatch.context() as patch:
        take_apart(patch)
        if "looking" in way:
            patch.setattr(fused, "can_read_now", lambda query: False)
        assert_stays_hidden(way.partition(",")[0], tensors, mask)


@pytest.mark.parametrize("mask", [None, ch.causal()])
@pytest.mark.parametrize("kv_heads", [8, 2])
def test_the_kernel_of_a_device_runs_as_it_is(
    kv_heads: int, mask: ch.Mask | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One launch, nothing else is made, and the plan says what that means."""
    monkeypatch.setattr(
        _fused_calls.F,
        "scaled_dot_product_attention",
        lambda query, *_, **__: torch.empty_like(query),
    )
    query, key, value = (empty(1, heads, 4096, 128) for heads in (8, kv_heads, kv_heads))
    with Recorded() as recorded:
        ch.attend(query, key, value, mask=mask)
    assert [name for name, _ in recorded.operations] == ["empty_like"]
    assert recorded.waits == []
    assert "not contained" in ch.plan(query, key, value, mask=mask).how


def test_flex_reads_a_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Tensor] = []
    monkeypatch.setattr(Tensor, "item", lambda each: read.append(each) or 1.0)
    tensors = (empty(1, heads, 256, 16) for heads in (4, 2, 2))
    assert _nonfinite.all_finite(make_problem(*tensors))
    assert len(read) == 1


@pytest.mark.parametrize(
    ("mask", "calls"),
    [
        (ch.causal() & ch.sliding_window(left=63), 2),
        (ch.causal() & ch.documents(lengths=[128] * 32), 1),
        (ch.causal() & ch.padding([4000]), 2),
    ],
    ids=["window", "documents", "padding"],
)
def test_masks_on_a_device_are_linear(
    mask: ch.Mask, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces are found without reading it, in a few calls, and nothing of tokens × tokens is made."""
    called: list[int] = []

    def run(problem: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
        called.append(query.shape[0] * query.shape[2])
        return torch.empty_like(query)

    monkeypatch.setattr(_fused_calls, "fused_call", run)
    monkeypatch.setattr(_lowering, "is_concrete", lambda tensor: True)
    query, key, value = (empty(1, heads, 4096, 16) for heads in (4, 2, 2))
    with Recorded() as recorded:
        ch.attend(query, key, value, mask=mask)
    assert len(called) == calls
    assert max(each.numel() for _, made in recorded.operations for each in made) <= 64 * 4096 * 4
    assert recorded.waits == []
