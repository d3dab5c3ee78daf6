"""Random calls held against the definition in float64, drawn and shrunk by hypothesis.

A case is plain values, so a failure can be pasted.
"""

import contextlib
import random
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import hypothesis
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from tests.attention.kernels import definition
from tests.soak.edits import edit_case

DTYPES = ("float32", "float64", "bfloat16", "float16")
LENGTHS = (0, 1, 2, 3, 7, 17, 65, 131, 257)
STRIDES = ("plain", "heads last", "every other", "overlapping", "expanded", "offset")
KINDS = ("attend", "matrix", "cache", "edit")
CONTEXTS = ("grad", "no_grad", "inference", "autocast", "vmap", "func")


@dataclass(frozen=True)
class Case:
    """A call. The defaults are the simplest values."""

    seed: int = 0
    what: str = "attend"
    batch: int = 1
    num_heads: int = 1
    groups: int = 1
    query_len: int = 3
    kv_len: int = 3
    head_dim: int = 4
    value_head_dim: int = 4
    dtype: str = "float32"
    mask: str = "None"
    bias: str = "None"
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    kernel: str = "auto"
    strides: str = "plain"
    context: str = "grad"
    spread: float = 1.0


@st.composite
def cases(draw: st.DrawFn, what: str | None = None) -> Case:
    """Any case, of one kind or any; its first values are what a failure is shrunk to."""

    def pick(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    seed, kind = draw(st.integers(0, 2**31)), str(what or pick(*KINDS))
    if kind == "edit":
        return Case(seed, kind)  # which draws the rest by its seed
    query_len = pick(*LENGTHS)
    batch, groups, kv_len = pick(1, 3), pick(1, 2, 3), pick(query_len, *LENGTHS)
    num_heads, head_dim = groups * pick(1, 2), pick(4, 1, 8, 13, 64)
    dtype, context = pick("float32", *DTYPES), pick("grad", *CONTEXTS)
    if context == "autocast" and dtype.endswith("16"):
        dtype = "float32"  # which it casts, the bias and the sinks aside
    if draw(st.integers(0, 1999)) == 1999:
        context = "compile"  # which takes seconds
    sinks = pick(False, False, True) and context not in ("vmap", "func")  # which they do not take
    # Float64 and gradients are held to their own rounding, which large numbers magnify.
    large = [8.0] if dtype != "float64" and context != "grad" else []
    return Case(
        seed, kind, batch, num_heads, groups, query_len, kv_len, head_dim,
        pick(head_dim, 1, 5, 16), dtype, draw(st.just("None") | masks(batch, query_len, kv_len)),
        pick("None", f"ch.alibi({num_heads})", "'tensor'"),
        pick(None, 0.3, 2.0, 0.0, -0.7), pick(None, 0.5, 30.0), sinks,
        pick("auto", "eager", "blockwise"), pick(*STRIDES), context, pick(1.0, 0.0, 1e-3, *large),
    )  # fmt: skip


def masks(batch: int, query_len: int, kv_len: int) -> st.SearchStrategy[str]:
    """Expressions of masks as code."""

    def rows(number: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(number, min_size=batch, max_size=batch)

    def numbers(most: int) -> st.SearchStrategy[int | list[int]]:
        return st.integers(0, most) | rows(st.integers(0, most))

    near, ids = st.integers(0, 9), st.lists(st.integers(0, 3), min_size=kv_len, max_size=kv_len)
    leaves = [
        st.just("ch.causal()"),
        st.builds("ch.causal(offset={})".format, numbers(9)),
        st.builds("ch.prefix({})".format, numbers(kv_len)),
        st.builds("ch.sliding_window(left={})".format, st.integers(0, 40)),
        st.builds("ch.sliding_window(left={}, right={})".format, near, near),
        st.builds("ch.padding({}, side={!r})".format, numbers(kv_len), st.sampled_from(("right", "left"))),
        st.builds(f"drawn({{}}, {batch}, {query_len}, {kv_len})".format, st.integers(0, 99)),
    ]  # fmt: skip
    if query_len == kv_len:
        leaves.append(st.builds("ch.documents({})".format, rows(ids.map(sorted))))

    def joined(each: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        pair = st.builds("({} {} {})".format, each, st.sampled_from("&|"), each)
        return pair | pair.map("~{}".format)

    return st.recursive(st.one_of(leaves), joined, max_leaves=4)


def drawn(seed: int, *shape: int) -> ch.Mask:
    """A mask that is a random tensor."""
    batch, query_len, kv_len = shape
    generator = torch.Generator().manual_seed(seed)
    return ch.dense(torch.rand(batch, 1, query_len, kv_len, generator=generator) < 0.6)


class Drawn:
    """The tensors of a case."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._generator = torch.Generator().manual_seed(case.seed)
        kv_heads = case.num_heads // case.groups
        self.tensors = {
            "query": self._of(case.num_heads, case.query_len, case.head_dim),
            "key": self._of(kv_heads, case.kv_len, case.head_dim),
            "value": self._of(kv_heads, case.kv_len, case.value_head_dim),
        }
        if case.bias == "'tensor'":
            shape = 1, case.num_heads, case.query_len, case.kv_len
            self.tensors["bias"] = self._numbers(*shape)
        if case.sinks:
            self.tensors["sinks"] = self._numbers(case.num_heads)
        self.grad = self._numbers(case.batch, case.num_heads, case.query_len, case.value_head_dim)

    def _numbers(self, *shape: int) -> Tensor:
        values = torch.randn(shape, generator=self._generator, dtype=torch.float64)
        return (values * self._case.spread).to(getattr(torch, self._case.dtype))

    def _of(self, heads: int, length: int, dim: int) -> Tensor:
        batch, strides = self._case.batch, self._case.strides
        if strides == "heads last":
            return self._numbers(batch, length, heads, dim).transpose(1, 2)
        if strides == "every other":
            return self._numbers(batch, heads, 2 * length, dim)[:, :, ::2]
        if strides == "overlapping":
            return self._numbers(batch, heads, length + dim).unfold(-1, dim, 1)[:, :, :length]
        if strides == "expanded":
            return self._numbers(1, heads, length, dim).expand(batch, -1, -1, -1)
        if strides == "offset":
            return self._numbers(batch, heads, length + 3, dim + 1)[:, :, 3:, 1:]
        return self._numbers(batch, heads, length, dim)


def run(case: Case) -> None:
    """Make the call, and hold it against the definition.

    Raises:
        AssertionError: it is wrong.
    """
    if case.what == "edit":
        edit_case(case.seed)
        return
    compute = {"attend": _attend, "matrix": _matrix, "cache": _cache}[case.what]
    try:
        compute(case, Drawn(case))
    except AssertionError:
        # A few in 10 000 lose more than one plain computation, by large scores or long sums.
        compute(case, Drawn(case), orders=32)


def _options(case: Case) -> dict[str, Any]:
    names = {"ch": ch, "drawn": drawn}
    mask, bias = eval(case.mask, names), eval(case.bias, names)
    options: dict[str, Any] = {"mask": mask, "scale": case.scale, "softcap": case.softcap}
    return options if bias == "tensor" else options | {"bias": bias}


def _attend(case: Case, given: Drawn, orders: int = 1) -> None:
    options = _options(case)
    if case.context == "grad":
        torch.manual_seed(0)
        definition.assert_agrees(case.kernel, given.tensors, orders, **options)
        return
    tensors = _cast(given.tensors) if case.context == "autocast" else given.tensors
    truth = definition.context(**_doubled(tensors), **options)
    computations = definition.in_orders(definition.context, case.head_dim, orders)
    plain = definition.lossiest(truth, [each(**tensors, **options) for each in computations])

    def attend(**tensors: Any) -> Tensor:
        return ch.attend(**tensors, **options, kernel=case.kernel)

    with _within(case.context):
        if case.context == "vmap":
            names = list(given.tensors)
            several = [each.expand(2, *each.shape) for each in given.tensors.values()]
            found = torch.vmap(lambda *each: attend(**dict(zip(names, each, strict=True))))(
                *several
            )[1]
        elif case.context == "func":
            name = ("query", "key", "value")[case.seed % 3]
            rest = {other: each for other, each in given.tensors.items() if other != name}
            one = given.tensors[name]
            found = torch.func.vjp(lambda one: attend(**{name: one}, **rest), one)[0]
        elif case.context == "compile":
            torch._dynamo.reset()
            found = torch.compile(attend, backend="eager")(**given.tensors).detach()
        else:
            found = attend(**given.tensors)
    definition.close(found, truth, plain, "the context")


def _cast(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Query, key and value as autocast hands them on; float64 keeps its precision."""
    three = {
        name: each.bfloat16()
        for name, each in tensors.items()
        if name in ("query", "key", "value") and each.dtype != torch.float64
    }
    return tensors | three


def _doubled(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: each.double() for name, each in tensors.items()}


@contextlib.contextmanager
def _within(context: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "There is a performance drop")  # of vmap, by PyTorch
        if context in ("no_grad", "inference"):
            stack.enter_context(torch.no_grad() if context == "no_grad" else torch.inference_mode())
        if context == "autocast":
            stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        yield


def _entropy(weights: Tensor) -> Tensor:
    return torch.special.entr(weights).sum(dim=-1)


def _matrix(case: Case, given: Drawn, orders: int = 1) -> None:
    """Statistics, products and parts of the matrix."""
    options, tensors = _options(case), given.tensors
    named = {name: each for name, each in tensors.items() if name != "value"}
    matrix = ch.AttentionMatrix(**named, **options)
    with torch.no_grad():
        truth = definition.defined(**_doubled(tensors), **options)
        computations = definition.in_orders(definition.defined, case.head_dim, orders)
        plain = [each(**tensors, **options) for each in computations]
        last = max(case.query_len - 1, 0)
        queries, keys = slice(last // 2, case.query_len), slice(0, (case.kv_len + 1) // 2)
        asked: dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], Tensor]]] = {
            "dense": (matrix.dense, lambda weights: weights),
            "rectangle": (
                lambda: matrix[:, :, queries, keys], lambda weights: weights[:, :, queries, keys],
            ),
            "entropy": (matrix.entropy, _entropy),
        }  # fmt: skip
        if case.kv_len:
            asked["max"] = (matrix.max, lambda weights: weights.amax(dim=-1))
        if case.groups == 1:
            asked["received"] = (matrix.received, lambda weights: weights.sum(dim=-2))
        _hold(asked, truth.weights, [each.weights for each in plain])
        product = matrix @ tensors["value"]
    lesser = definition.lossiest(truth.context, [each.context for each in plain])
    definition.close(product, truth.context, lesser, "product")


def _hold(
    asked: dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], Tensor]]],
    truth: Tensor,
    plain: list[Tensor],
) -> None:
    """Hold what is asked to what is defined."""
    for name, (ask, define) in asked.items():
        lesser = definition.lossiest(define(truth), [define(each) for each in plain])
        definition.close(ask().to(lesser.dtype), define(truth), lesser, name)


def _cache(case: Case, given: Drawn, orders: int = 1) -> None:
    """Chunks through a cache, some dropped again and rows taken in another order, against the whole
    text at once."""
    torch.manual_seed(case.seed)
    draw, width = random.Random(case.seed), 2 * case.num_heads * ((case.head_dim + 1) // 2)
    tokens = max(1, case.query_len)
    layer = ch.MultiHeadAttention(
        width, num_heads=case.num_heads, num_kv_heads=case.num_heads // case.groups,
        mask=draw.choice([ch.causal(), ch.causal() & ch.sliding_window(left=5)]),
    )  # fmt: skip
    x = torch.randn(case.batch, tokens, width)
    kinds: list[Callable[[], ch.layers.Cache]] = [
        ch.layers.GrowingCache,
        lambda: ch.layers.StaticCache(tokens),
        lambda: ch.layers.FixedCache(tokens),
        lambda: ch.layers.SlidingCache(tokens),
    ]
    cache = draw.choice(kinds)()
    context = case.context if case.context in ("no_grad", "inference") else "no_grad"
    with _within(context), torch.no_grad():
        done, found = 0, torch.empty_like(x)
        while done < tokens:
            step = draw.randint(1, max(1, (tokens - done + 1) // 2))
            found[:, done : done + step] = layer(x[:, done : done + step], cache=cache)
            done += step
            if draw.random() < 0.2:
                done = draw.randint(done // 2, done)
                cache.truncate(done)
            if draw.random() < 0.2:
                order = [draw.randrange(case.batch) for _ in range(case.batch)]
                cache.reorder(order)
                x, found = x[order], found[order]
        plain = layer(x, kernel="eager")
        truth = layer.double()(x.double(), kernel="eager")
    definition.close(found, truth, plain, "the output through a cache")


def hold(case: Case) -> None:
    """Run a case; raise if it is wrong. Refused by name is not wrong."""
    with contextlib.suppress(ch.errors.UnsupportedError, ch.errors.MaskError):
        run(case)


def soak(seconds: float, first: int = 0, what: str | None = None) -> int:
    """Run hundreds of cases by each seed from one on, for so long, of one kind or any; return the last seed.

    Raises what the simplest case that is wrong raises; hypothesis prints the case.
    """
    end, number = time.monotonic() + seconds, first
    while time.monotonic() < end:
        many = settings(max_examples=100, deadline=None, database=None)
        hypothesis.seed(number)(many(given(cases(what))(hold)))()
        number += 1
    return number - 1
