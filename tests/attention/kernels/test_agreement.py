"""Every kernel against the definition, forward and backward."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import clearhead as ch
from tests.attention.kernels.definition import (
    RUNNABLE,
    assert_agrees,
    context,
    draw,
    outcome,
    take_apart,
)
from tests.attention.kernels.problems import Problem, problems
from tests.turns import in_turn

NAMES = RUNNABLE
BATCH, HEADS = 3, 6

kernels = pytest.mark.parametrize("kernel", NAMES)


WAYS = ["fused", "fused, in parts", "eager, in parts"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kernels, and the ways on which they go."""
    with pytest.MonkeyPatch.context() as patch:
        if "in parts" in request.param:
            take_apart(patch)
        yield request.param.partition(",")[0]


def drawn_mask(*shape: int) -> ch.Mask:
    return ch.dense(torch.rand(*shape) < 0.4)


def holes(kv_len: int) -> ch.Mask:
    return ch.padding(torch.rand(BATCH, kv_len) < 0.6)


def ids(kv_len: int, *shape: int) -> Tensor:
    """Documents in order, three or so."""
    return torch.randint(0, 3, (*shape, kv_len)).sort(-1).values


def lengths(kv_len: int) -> list[int]:
    """A row of which all is real, one of which some is, and one of which nothing is."""
    return [kv_len, (kv_len + 1) // 2, 0]


MASKS: dict[str, Callable[[int, int], ch.Mask]] = {
    "full": lambda n, m: ch.full(),
    "causal": lambda n, m: ch.causal(),
    "causal from the first key": lambda n, m: ch.causal(offset=0),
    "causal, offset": lambda n, m: ch.causal(offset=3),
    "causal, offset below 0": lambda n, m: ch.causal(offset=-2),
    "causal, offset beyond": lambda n, m: ch.causal(offset=100),
    "causal, offset per row": lambda n, m: ch.causal(offset=[0, 4, -3]),
    "window": lambda n, m: ch.sliding_window(left=3, right=2),
    "window, itself": lambda n, m: ch.sliding_window(left=0, right=0),
    "window, right": lambda n, m: ch.sliding_window(right=2),
    "window, offset per row": lambda n, m: ch.sliding_window(left=2, right=1, offset=[0, 7, -9]),
    "prefix": lambda n, m: ch.prefix(5),
    "prefix, none": lambda n, m: ch.prefix(0),
    "prefix per row": lambda n, m: ch.prefix([1, 0, 40]),
    "prefix of a language model": lambda n, m: ch.causal() | ch.prefix([2, 0, 5]),
    "padding": lambda n, m: ch.padding(lengths(m)),
    "padding on the left": lambda n, m: ch.padding(lengths(m), side="left"),
    "padding, one length": lambda n, m: ch.padding(m // 2),
    "padding, all": lambda n, m: ch.padding(0),
    "padding with holes": lambda n, m: holes(m),
    "padding with holes, one row": lambda n, m: ch.padding(torch.rand(m) < 0.6),
    "causal and padding": lambda n, m: ch.causal() & ch.padding(lengths(m)),
    "causal and padding on the left": lambda n, m: (
        ch.causal() & ch.padding(lengths(m), side="left")
    ),
    "causal and the same padding": lambda n, m: ch.causal() & ch.padding([m // 2] * BATCH),
    "causal and padding with holes": lambda n, m: ch.causal() & holes(m),
    "causal window": lambda n, m: ch.causal() & ch.sliding_window(left=2),
    "dense": lambda n, m: drawn_mask(n, m),
    "dense per head": lambda n, m: drawn_mask(1, HEADS, n, m),
    "dense per sample, for all queries": lambda n, m: drawn_mask(BATCH, 1, 1, m),
    "dense per query, for all keys": lambda n, m: drawn_mask(BATCH, 1, n, 1),
    "dense per head, for all pairs": lambda n, m: drawn_mask(1, HEADS, 1, 1),
    "dense per sample and head": lambda n, m: drawn_mask(BATCH, HEADS, n, m),
    "dense, nothing": lambda n, m: ch.dense(torch.zeros(n, m, dtype=torch.bool)),
    "dense, room of a cache": lambda n, m: ch.dense((torch.arange(m) < m // 2).expand(n, m)),
    "not causal": lambda n, m: ~ch.causal(),
    "not padding": lambda n, m: ~ch.padding(lengths(m)),
    "a mixture": lambda n, m: ~(ch.causal() & ch.padding(lengths(m))) & holes(m) | ch.prefix(1),
}
OF_ENOUGH_KEYS: dict[str, Callable[[int, int], ch.Mask]] = {
    "documents": lambda n, m: ch.documents(ids(m)),
    "documents per row": lambda n, m: ch.documents(ids(m, BATCH)),
    "documents that come back": lambda n, m: ch.documents(torch.randint(0, 2, (m,))),
    "causal and documents": lambda n, m: ch.causal() & ch.documents(ids(m, BATCH)),
}


@kernels
@pytest.mark.parametrize(
    ("batch", "query_len", "kv_len", "value_head_dim"),
    [(2, 3, 0, 5), (2, 0, 3, 5), (0, 3, 3, 5), (2, 3, 4, 0), (0, 0, 0, 0)],
)
def test_empty_axes(
    kernel: str, batch: int, query_len: int, kv_len: int, value_head_dim: int
) -> None:
    tensors = draw(batch, 2, 2, query_len, kv_len, 5, value_head_dim)
    for mask in (None, ch.causal(), ch.prefix(1)):
        if kernel == "fused":
            nothing = "an empty axis: there is nothing to fuse"
            with pytest.raises(ch.errors.UnsupportedError, match=nothing):
                ch.attend(**tensors, mask=mask, kernel="fused")
        assert_agrees("auto" if kernel == "fused" else kernel, tensors, mask=mask)


def minus_infinity_at_random(*shape: int) -> Tensor:
    """A bias that hides some keys, and every key of the first query and of the last."""
    bias = torch.randn(*shape).masked_fill(torch.rand(*shape) < 0.3, -torch.inf)
    bias[..., [0, -1], :] = -torch.inf
    return bias


BIASES: dict[str, Callable[[], ch.Bias | Tensor]] = {
    "queries × keys": lambda: torch.randn(19, 23) * 3,
    "per key": lambda: torch.randn(1, 23),
    "per query": lambda: torch.randn(19, 1),
    "one number": lambda: torch.randn(1, 1),
    "per head": lambda: torch.randn(1, 6, 19, 23),
    "per sample": lambda: torch.randn(3, 1, 1, 23),
    "per sample and head": lambda: torch.randn(3, 6, 19, 23),
    "per head, one number": lambda: torch.randn(1, 6, 1, 1),
    "turned": lambda: torch.randn(23, 19).T,
    "every second column": lambda: torch.randn(19, 46)[:, ::2],
    "minus infinity": lambda: minus_infinity_at_random(1, 6, 19, 23),
    "alibi": lambda: ch.alibi(6),
    "alibi with slopes": lambda: ch.alibi(slopes=torch.randn(6)),
    "relative": lambda: ch.relative(torch.randn(6, 9)),
}


@pytest.mark.parametrize(
    "mask", [None, ch.causal(), ch.padding([31, 7, 0]) & ch.causal(), ch.sliding_window(left=2)]
)
def test_sinks(way: str, mask: ch.Mask | None) -> None:
    """A sink that is next to nothing, one that takes nearly all, and some between."""
    sinks = torch.tensor([-100.0, -1.0, 0.0, 1.0, 5.0, 100.0])
    assert_agrees(way, draw(BATCH, HEADS, 3, 31) | {"sinks": sinks}, mask=mask)


OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"mask": ch.causal()},
    "causal and padding": {"mask": ch.causal() & ch.padding([37, 9])},
    "window": {"mask": ch.sliding_window(left=3, right=1)},
    "alibi": {"mask": ch.causal(), "bias": ch.alibi(4)},
    "bias": {"bias": torch.linspace(-9.0, 9.0, 37 * 37).view(37, 37)},
}


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@kernels
@pytest.mark.parametrize(
    ("dtype", "name", "with_sinks"),
    in_turn(DTYPES * 5, [*OPTIONS, "nothing"], [False, True, True]),
)
def test_dtypes(kernel: str, dtype: torch.dtype, name: str, with_sinks: bool) -> None:
    tensors = draw(2, 4, 2, 37, 37, 8, 8, dtype)
    if with_sinks:
        tensors["sinks"] = torch.randn(4).to(dtype)
    assert_agrees(kernel, tensors, **OPTIONS[name])


@kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_float32_beside_another_dtype(kernel: str, dtype: torch.dtype) -> None:
    """A float32 bias and float32 sinks are not rounded to 16 bits, where they would lose much."""
    tensors = draw(2, 4, 4, 37, 41, 8, 8, dtype)
    bias = torch.randn(4, 37, 41)[None] * 20
    sinks = torch.randn(4) * 20
    assert_agrees(kernel, tensors, bias=bias)
    assert_agrees(kernel, tensors, bias=bias, sinks=sinks, mask=ch.causal())
    assert_agrees(kernel, tensors, bias=ch.alibi(slopes=torch.rand(4)))


@kernels
@pytest.mark.parametrize(("name", "dtype"), in_turn(OPTIONS, [torch.bfloat16, torch.float16]))
def test_autocast(kernel: str, dtype: torch.dtype, name: str) -> None:
    """The same as the inputs brought to 16 bits by hand; float64 stays."""
    tensors = draw(2, 4, 2, 37, 37, 8, 8)
    tensors["sinks"] = torch.randn(4)
    by_hand = {name: t.to(dtype) if name != "sinks" else t for name, t in tensors.items()}
    grad = torch.randn(2, 4, 37, 8).to(dtype)

    def attended(**given: Any) -> Tensor:
        return ch.attend(**given, **OPTIONS[name], kernel=kernel)

    def under_autocast(**given: Any) -> Tensor:
        with torch.autocast("cpu", dtype):
            return attended(**given)

    expected = outcome(attended, by_hand, grad)
    actual = outcome(under_autocast, tensors, grad)
    assert torch.equal(actual.pop("context"), expected.pop("context"))
    for of, gradient in actual.items():
        assert torch.equal(gradient, expected[of].float()), of
    doubled = {name: tensor.double() for name, tensor in tensors.items()}
    assert torch.equal(under_autocast(**doubled), attended(**doubled))


@kernels
def test_no_gradient_where_none_is_asked_for(kernel: str) -> None:
    tensors = draw(2, 4, 2, 37, 37, 8, 8)
    for name in ("query", "key", "value"):
        leaf = tensors[name].clone().requires_grad_()
        for options in OPTIONS.values():
            result = ch.attend(**(tensors | {name: leaf}), **options, kernel=kernel)
            (grad,) = torch.autograd.grad(result.sum(), leaf)
            assert grad.shape == leaf.shape
    with torch.inference_mode():
        for options in OPTIONS.values():
            assert not ch.attend(**tensors, **options, kernel=kernel).requires_grad


@kernels
def test_inputs_are_left_alone(kernel: str) -> None:
    tensors = draw(2, 4, 2, 37, 37, 8, 6) | {"sinks": torch.randn(4)}
    tensors["key"][0, 0, 0, 0] = torch.nan
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    for options in OPTIONS.values():
        ch.attend(**tensors, **options, kernel=kernel)
    for name, tensor in tensors.items():
        assert torch.equal(tensor.nan_to_num(7.0), before[name].nan_to_num(7.0)), name


@pytest.mark.parametrize("way", ["auto", "auto, in parts", "eager, in parts"])
@settings(max_examples=50)
@given(problem=problems())
def test_any_problem(way: str, problem: Problem) -> None:
    tensors, options = problem
    with pytest.MonkeyPatch.context() as patch:
        if "in parts" in way:
            take_apart(patch)
        assert_agrees(way.partition(",")[0], tensors, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bits_are_rounded_once(dtype: torch.dtype) -> None:
    """On the kernels of our own; PyTorch's rounds the weights too, and is off by a little more."""
    query, key, value = (each.to(dtype) for each in torch.randn(3, 1, 4, 67, 16).unbind())
    exact = context(query=query.double(), key=key.double(), value=value.double())
    off = {
        kernel: ch.attend(query, key, value, kernel=kernel)
        for kernel in ("eager", "blockwise", "fused")
    }
    nearest = {name: float((each == exact.to(dtype)).double().mean()) for name, each in off.items()}
    assert nearest["eager"] > 0.99
    assert nearest["blockwise"] > 0.99
    error = {
        name: float((each.double() - exact).square().mean()) ** 0.5 for name, each in off.items()
    }
    assert error["fused"] < 2 * error["eager"]


@pytest.mark.parametrize("kernel", ["fused", "blockwise"])
@pytest.mark.parametrize("sinks", [None, torch.zeros(2)], ids=["", "sinks"])
def test_second_derivatives_are_refused(kernel: str, sinks: Tensor | None) -> None:
    tensors = {name: tensor.requires_grad_() for name, tensor in draw(1, 2, 2, 7).items()}
    result = ch.attend(**tensors, mask=ch.causal(), sinks=sinks, kernel=kernel)
    (first,) = torch.autograd.grad(result.square().sum(), tensors["key"], create_graph=True)
    with pytest.raises(ch.errors.UnsupportedError) as raised:
        torch.autograd.grad(first.sum(), tensors["query"])
    assert str(raised.value) == (
        f'[kernel.second-derivative] kernel="{kernel}" has first derivatives only; '
        'kernel="eager" has all of them.'
    )


def test_second_derivatives_of_the_definition() -> None:
    tensors = draw(1, 2, 1, 3, 4, 2, 1, dtype=torch.float64)
    leaves = [tensor.requires_grad_() for tensor in tensors.values()]

    def attended(*given: Tensor) -> Tensor:
        return ch.attend(*given, mask=ch.causal(), softcap=2.0, kernel="eager")

    assert torch.autograd.gradgradcheck(attended, leaves)
