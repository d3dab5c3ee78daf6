"""Random calls held against the definition in float64; a case is plain values, so it can be pasted."""

import contextlib
import itertools
import random
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import clearhead as ch
from clearhead import stages
from clearhead.matrix.rollout import WeightGradients
from tests.attention.kernels import definition
from tests.soak.edits import edit_case

DTYPES = ("float32", "float64", "bfloat16", "float16")
LENGTHS = (0, 1, 2, 3, 7, 17, 65, 131, 257)
STRIDES = ("plain", "heads last", "every other", "overlapping", "expanded", "offset")
CONTEXTS = ("grad", "no_grad", "inference", "autocast", "vmap", "func")


@dataclass(frozen=True)
class Case:
    """A call. The defaults are the simplest values, which a failure is shrunk to."""

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

    def __str__(self) -> str:
        given = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)
            if getattr(self, each.name) != each.default
        ]
        return f"from tests.soak.cases import Case, run\ncase = Case({', '.join(given)})\nrun(case)"


def random_case(seed: int, what: str | None = None) -> Case:
    """The case of a seed, the same on every machine, of one kind or any."""
    draw = random.Random(seed)

    def often(usual: Any, *others: Any) -> Any:
        return usual if draw.random() < 0.6 else draw.choice(others)

    query_len = draw.choice(LENGTHS)
    kv_len = query_len if draw.random() < 0.5 else draw.choice(LENGTHS)
    batch, groups, kv_heads = draw.choice((1, 3)), draw.choice((1, 1, 2, 3)), draw.choice((1, 2))
    num_heads = groups * kv_heads
    what = str(what or often("attend", "matrix", "cache", "norms", "gradients", "edit"))
    if what == "edit":
        return Case(seed, what)  # which draws the rest by its seed
    dtype, context = often("float32", *DTYPES), often("grad", *CONTEXTS)
    if context == "autocast" and dtype.endswith("16"):
        dtype = "float32"  # which it casts, the bias and the sinks aside
    if draw.random() < 0.0005:
        context = "compile"  # which takes seconds
    sinks = draw.random() < 0.2 and context not in ("vmap", "func")  # which they do not take
    # Float64 and gradients are held to their own rounding, which large numbers magnify, and norms more.
    large = [8.0] if dtype != "float64" and context != "grad" and what != "norms" else []
    spread = often(1.0, 0.0, 1e-3, *large)
    head_dim = draw.choice((1, 4, 8, 13, 64))
    masks = _masks(draw, batch, query_len, kv_len)
    return Case(
        seed, what, batch, num_heads, groups, query_len, kv_len, head_dim,
        often(head_dim, 1, 5, 16), dtype, masks,
        often("None", f"ch.alibi({num_heads})", "'tensor'"),
        often(None, 0.3, 2.0, 0.0, -0.7), often(None, 0.5, 30.0), sinks,
        often("auto", "eager", "blockwise"), often("plain", *STRIDES), context, spread,
    )  # fmt: skip


def _masks(draw: random.Random, batch: int, query_len: int, kv_len: int) -> str:
    """An expression of masks as code."""

    def numbers(most: int) -> str:
        several = [draw.randint(0, most) for _ in range(batch)]
        return repr(several if draw.random() < 0.5 else several[0])

    def leaf() -> str:
        side = draw.choice(("left", "right"))
        ids = [sorted(draw.randint(0, 3) for _ in range(kv_len)) for _ in range(batch)]
        known = [
            "ch.causal()", f"ch.causal(offset={numbers(9)})", f"ch.prefix({numbers(kv_len)})",
            f"ch.sliding_window(left={draw.randint(0, 40)})",
            f"ch.sliding_window(left={draw.randint(0, 9)}, right={draw.randint(0, 9)})",
            f"ch.padding({numbers(kv_len)}, side={side!r})",
            f"drawn({draw.randint(0, 99)}, {batch}, {query_len}, {kv_len})",
        ]  # fmt: skip
        if query_len == kv_len:
            known.append(f"ch.documents({ids!r})")
        return draw.choice(known)

    if draw.random() < 0.25:
        return "None"
    found = leaf()
    while draw.random() < 0.35:
        found = f"({found} {draw.choice('&|')} {leaf()})"
        found = f"~{found}" if draw.random() < 0.15 else found
    return found


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
    every = {"attend": _attend, "matrix": _matrix, "cache": _cache}
    compute = (every | {"norms": _norms, "gradients": _gradients})[case.what]
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


def _norms(case: Case, given: Drawn, orders: int = 1) -> None:
    """Weights times the norms of values, with an output projection or without."""
    options, tensors = _options(case), given.tensors
    output = given._numbers(5, case.num_heads * case.value_head_dim) if case.seed % 2 else None
    norms = ch.AttentionMatrix(**tensors, **options).norms(output)

    def defined(output: Tensor | None, **tensors: Any) -> Tensor:
        value = stages.upcast(tensors["value"]).repeat_interleave(case.groups, dim=1)
        if output is not None:
            value = value @ stages.upcast(output).unflatten(1, (case.num_heads, -1)).permute(
                1, 2, 0
            )
        return definition.defined(**tensors, **options).weights * value.norm(dim=-1)[:, :, None]

    def shares(each: Tensor) -> Tensor:
        return each / each.sum(dim=-1, keepdim=True).where(each.sum(dim=-1, keepdim=True) > 0, 1)

    with torch.no_grad():
        truth = defined(None if output is None else output.double(), **_doubled(tensors))
        computations = definition.in_orders(partial(defined, output), case.head_dim, orders)
        plain = [each(**tensors) for each in computations]
        asked: dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], Tensor]]] = {
            "dense": (norms.dense, lambda each: each),
            "total": (norms.total, lambda each: each.sum(dim=-1)),
            "received": (norms.received, lambda each: each.sum(dim=-2)),
        }
        if (
            case.spread and not case.sinks
        ):  # else weights that sum to less are the shares of no norms
            asked["shares"] = (norms.shares().dense, shares)
        _hold(asked, truth, plain, _summed(case, orders))


def _gradients(case: Case, given: Drawn, orders: int = 1) -> None:
    """Gradients of weights, and what is passed on by them."""
    options, tensors = _options(case), given.tensors
    named = {name: each for name, each in tensors.items() if name != "value"}
    matrix = ch.AttentionMatrix(**named, **options)
    gradients = WeightGradients(matrix, tensors["value"], given.grad)
    rows = given._numbers(case.batch, case.query_len, 2).to(matrix.dtype)

    def passed(rows: Tensor, grad: Tensor, **tensors: Any) -> Tensor:
        value = stages.upcast(tensors["value"]).repeat_interleave(case.groups, dim=1)
        products = definition.defined(**tensors, **options).weights * (
            stages.upcast(grad) @ value.mT
        )
        return products.relu().mean(dim=1).mT @ rows

    with torch.no_grad():
        truth = passed(rows.double(), given.grad.double(), **_doubled(tensors))
        compute = partial(passed, rows, given.grad)
        plain = [each(**tensors) for each in definition.in_orders(compute, case.head_dim, orders)]
        asked = {"passed on": (lambda: gradients.pass_on(rows), lambda each: each)}
        _hold(asked, truth, plain, _summed(case, orders))


def _summed(case: Case, orders: int) -> float:
    """By how much a long sum of positive numbers may round more in another order: each addition rounds a
    partial sum, and all to one side where the numbers are equal."""
    return 1 + max(case.query_len, case.kv_len) / 8 if orders > 1 else 1.0


def _hold(
    asked: dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], Tensor]]],
    truth: Tensor,
    plain: list[Tensor],
    sums: float = 1.0,
) -> None:
    """Hold what is asked to what is defined; by so much more than rounding where numbers are long sums."""
    for name, (ask, define) in asked.items():
        expected = define(truth)
        lesser = definition.lossiest(expected, [define(each) for each in plain])
        terms = sums * max(expected.abs().flatten().tolist(), default=0.0) if sums > 1 else 0.0
        definition.close(ask().to(lesser.dtype), expected, lesser, name, terms)


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


def failure(case: Case) -> str | None:
    """The fault of a case; None if there is none."""
    try:
        run(case)
    except AssertionError as error:
        return str(error)
    except (ch.errors.UnsupportedError, ch.errors.MaskError):
        return None  # refused by name
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def shrunk(case: Case) -> Case:
    """A simpler case that fails in the same way: by an error of the same class, or a wrong number."""
    simpler, kind = True, _kind(case)
    while simpler:
        simpler = False
        for each in fields(Case):
            if each.name in ("seed", "what") or getattr(case, each.name) == each.default:
                continue
            values = [each.default]
            value = getattr(case, each.name)
            if isinstance(value, int) and not isinstance(value, bool):
                values += [number for number in (1, 2, 3, value // 2) if number < value]
            for value in values:
                other = replace(case, **{each.name: value})
                if _kind(other) == kind:
                    case, simpler = other, True
                    break
    return case


def _kind(case: Case) -> str | None:
    """The name of a failure, or None. A case that cannot be is no failure."""
    if case.num_heads % case.groups:
        return None
    found = failure(case)
    return found and found.partition(":")[0].partition(" (")[0]


def soak(
    seconds: float, first: int = 0, most: int | None = None, what: str | None = None
) -> tuple[int, list[Case]]:
    """Run cases from a seed on, for so long or so many, of one kind or any; returns their number and those
    that fail."""
    end, failed, count = time.monotonic() + seconds, [], 0
    for seed in itertools.count(first):
        if time.monotonic() > end or count == most:
            break
        case, count = random_case(seed, what), count + 1
        if failure(case) is not None:
            failed.append(shrunk(case))
    return count, failed
