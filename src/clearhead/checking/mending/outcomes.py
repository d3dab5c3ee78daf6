"""The outcome that a lesson asks for: the numbers given on many calls, beside what the definition gives with the
parameters of the same names.

It says nothing of how something is written: products in another order, a division behind the values, loops and
fused calls are all the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead import stages
from clearhead._common.foreign_names import is_output, role
from clearhead._common.lessons import LessonRow
from clearhead.checking import lessons
from clearhead.checking.evidence.parts import CALLS, PARTS
from clearhead.checking.hypotheses.matching import distance
from clearhead.checking.hypotheses.recipe import rotated
from clearhead.checking.thresholds import ROUNDING, SPREAD_HEADS
from clearhead.recording.thresholds import SUMS

# Numbers of tokens that a class is called with: fewer than any example has, and more.
LENGTHS = (5, 1, 7, 9)

Inputs = tuple[Tensor, ...]


class Outcome(NamedTuple):
    """One call: what went in, what came, what is right, and which of the inputs was written to."""

    inputs: Inputs
    found: Tensor
    expected: Tensor
    written: int | None = None

    @property
    def right(self) -> bool:
        """True if what is right came, to what tables in float32 lose."""
        return distance(self.found.double(), self.expected) <= ROUNDING[torch.float32]


@contextmanager
def doubles() -> Iterator[None]:
    """The block with tables of float64, where nothing else is said."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class NamedMatrix(NamedTuple):
    """A projection: its matrix as (in, out), and its bias."""

    matrix: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        made = x @ self.matrix
        return made if self.bias is None else made + self.bias


def outcomes(
    thing: Any,
    row: LessonRow,
    promised: Mapping[str, Any],
    order: str = "qkv",
    *,
    zeros: bool = True,
    samples: int | None = None,
) -> Iterator[Outcome]:
    """The calls of a lesson, one after the other.

    Args:
        thing: a function, or an instance of a class.
        row: of the lesson.
        promised: what it promises, of those that the lesson takes for right.
        order: the names of query, key and value in the places of these.
        zeros: one of the tokens is 0 throughout, so that scores are 0.
        samples: so many in each batch; None of two and of three.

    Raises:
        LookupError: if it is not known what would be right, as of parameters without names.
        Exception: whatever the code of another raises.
    """
    generator = torch.Generator().manual_seed(row.number)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64) * SPREAD_HEADS

    with torch.set_grad_enabled(torch.is_grad_enabled() and isinstance(thing, nn.Module)):
        if row.takes in PARTS:
            for inputs, right in calls_of(row.takes, row.number):
                yield _called(thing, inputs, right)
        elif row.takes == "qkv":
            for queries, keys, width in CALLS:
                inputs = drawn(queries, width), drawn(keys, width), drawn(keys, width + 2)
                yield _called(thing, inputs, attended(*inputs, promised))
        elif not isinstance(thing, nn.Module):
            if row.names[0] != "rotate" or isinstance(thing, type) or not callable(thing):
                raise LookupError
            for shape in ((5, 4), (2, 7, 6), (2, 3, 7, 8), (1, 6)):
                (rows,) = inputs = (drawn(*shape),)
                right = rotated(rows, 0, 10000.0, promised["rope"]["layout"])
                yield _called(thing, inputs, right)
        else:
            yield from _of_modules(thing, row, promised, drawn, order, zeros=zeros, samples=samples)


@cache
def calls_of(takes: str, seed: int) -> tuple[tuple[Inputs, Tensor], ...]:
    """Return what goes into each call of a part, and what is right."""
    part, generator = PARTS[takes], torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64) * SPREAD_HEADS

    given = [tuple(drawn(*shape) for shape in part.shapes(*sizes)) for sizes in CALLS]
    if part.names[0] == "weights":
        given = [(each[0].softmax(-1), *each[1:]) for each in given]
    if takes == "scores":  # rows that lie far apart
        given.append((drawn(4, 3) - 800 * torch.arange(4, dtype=torch.float64)[:, None],))
    return tuple((each, part.right(*each)) for each in given)


def _called(run: Callable[..., Any], inputs: Inputs, expected: Tensor) -> Outcome:
    handed = tuple(each.clone() for each in inputs)
    found = run(*handed)
    if not isinstance(found, Tensor):
        raise TypeError("a tensor was expected")
    written = (
        at
        for at, (one, other) in enumerate(zip(handed, inputs, strict=True))
        if not torch.equal(one, other)
    )
    return Outcome(inputs, found, expected, next(written, None))


def layers_of(module: nn.Module) -> dict[str, NamedMatrix]:
    """By its role, q, k, v or o, each projection.

    Raises:
        LookupError: if there is another parameter, two of a role, or no query, key or value.
    """
    found: dict[str, dict[str, Tensor]] = {}
    for name, each in module.named_parameters():
        name, _, last = name.rpartition(".")
        if last not in ("weight", "bias"):
            name, last = f"{name}.{last}", "matrix"
        own = "o" if is_output(name.rpartition(".")[2]) else role(name)
        if own not in ("q", "k", "v", "o") or last in found.setdefault(str(own), {}):
            raise LookupError(name)
        found[str(own)][last] = each.detach()
    if not {"q", "k", "v"} <= set(found):
        raise LookupError
    made = {}
    for own, each in found.items():
        matrix = each["weight"].mT if "weight" in each else each.get("matrix")
        if matrix is None or matrix.ndim != 2:
            raise LookupError(own)
        made[own] = NamedMatrix(matrix, each.get("bias"))
    return made


def is_sized(module: nn.Module, args: Mapping[str, Any] | None) -> bool:
    """False where values are of another width than the constructor was told."""
    width = dict(args or {}).get("d_out")
    try:
        layers = layers_of(module)
    except LookupError:
        return True
    return width is None or layers["v"].matrix.shape[1] == width


def attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    promised: Mapping[str, Any],
    seen: Tensor | None = None,
) -> Tensor:
    """The context of the definition; of the last queries where there are fewer than keys."""
    rope = promised.get("rope")
    if rope is not None:
        query, key = (rotated(each, 0, 10000.0, rope["layout"]) for each in (query, key))
    scale = promised.get("scale") or query.shape[-1] ** -0.5
    scores = stages.scores(query, key) * scale
    if promised.get("causal"):
        new, keys = scores.shape[-2:]
        past = torch.ones(new, keys, dtype=torch.bool).tril(keys - new)
        seen = past if seen is None else seen & past
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    return stages.matmul(stages.weights(scores), value)


def _of_modules(
    module: Any,
    row: LessonRow,
    promised: Mapping[str, Any],
    drawn: Callable[..., Tensor],
    order: str = "qkv",
    *,
    zeros: bool = True,
    samples: int | None = None,
) -> Iterator[Outcome]:
    layers = layers_of(module)
    with torch.no_grad():
        for layer in layers.values():  # whatever they began with
            for each in filter(torch.is_tensor, layer):
                each.copy_(drawn(*each.shape) * each.shape[0] ** -0.5)
    heads, width = promised.get("num_heads") or 1, layers["q"].matrix.shape[0]
    sides = [layers[each] for each in order]

    def right(x: Tensor, of: Tensor, seen: Tensor | None = None) -> Tensor:
        query, key, value = (
            layer(each).unflatten(-1, (heads, -1)).transpose(-3, -2)
            for layer, each in zip(sides, (x, of, of), strict=True)
        )
        context = attended(query, key, value, promised, seen).transpose(-3, -2).flatten(-2)
        return layers["o"](context) if "o" in layers else context

    for number, tokens in enumerate(LENGTHS):
        batch = () if row.number < lessons.BATCHES else (samples or 2 + number % 2,)
        x = drawn(*batch, tokens, width)
        if zeros:
            x[..., 0, :] = 0
        if row.takes == "x,mask":
            mask = torch.ones(*batch, tokens, dtype=torch.bool)
            mask[0, tokens // 2 + 1 :] = False
            yield _padded(module, x, mask, right(x, x, mask[:, None, None]))
        elif row.takes == "x,context":
            context = drawn(*batch, LENGTHS[number - 1], layers["k"].matrix.shape[0])
            yield _called(module, (x, context), right(x, context))
        elif row.takes == "decode":
            for chunks in ([1] * tokens, [2, 1, tokens - 3] if tokens > 3 else [tokens]):
                module.reset()
                made = [module.step(each.clone()) for each in x.split(chunks, 1)]
                yield Outcome((x,), torch.cat(made, 1), right(x, x))
            yield _called(module.full, (x,), right(x, x))
        else:
            yield _called(module, (x,), right(x, x))


def _padded(module: nn.Module, x: Tensor, mask: Tensor, right: Tensor) -> Outcome:
    """A call with padding, of which is asked that it gives numbers, and not which."""
    made = _called(module, (x, mask), right)
    if made.found.shape != right.shape or not made.found.isfinite().all():
        return made
    return made._replace(found=made.found[mask], expected=right[mask])


def without_gradient(module: nn.Module, row: LessonRow, promised: Mapping[str, Any]) -> list[str]:
    """The projections that no gradient reaches, of a module that gives what it should."""
    sides = {name: each for name, each in module.named_parameters() if each.ndim == 2}
    for each in sides.values():
        each.requires_grad_(True)
    try:
        with doubles(), torch.enable_grad():
            made = next(outcomes(module, row, promised))
            if not made.found.requires_grad:
                return list(sides)
            gradients = torch.autograd.grad(
                made.found.square().sum(), list(sides.values()), allow_unused=True
            )
    except Exception:  # whatever the code of another raises is told elsewhere
        return []
    return [
        name for name, each in zip(sides, gradients, strict=True) if each is None or not each.any()
    ]


def is_right(
    thing: Any,
    row: LessonRow,
    promises: Sequence[Mapping[str, Any]],
    order: str = "qkv",
    *,
    zeros: bool = True,
    samples: int | None = None,
) -> bool | None:
    """True if all calls give what one of the promises asks for; None where that is not known, as of what cannot be
    called so at all."""
    known: bool | None = None
    for promised in promises:
        called = not isinstance(thing, nn.Module)
        try:
            with doubles(), torch.no_grad():
                for each in outcomes(thing, row, promised, order, zeros=zeros, samples=samples):
                    called = True
                    if not each.right:
                        break
                else:
                    return True
            known = False
        except LookupError as error:
            known = known if type(error) is LookupError else False
        except Exception as error:  # whatever the code of another raises
            # Of numbers in another precision the readers know more.
            other = "dtype" in str(error) or "scalar type" in str(error)
            known = False if called and not other else known
    return known


def progress(part: Callable[..., Any], row: LessonRow) -> tuple[int, float]:
    """Count the calls that give what they should; of the next one, the share of its numbers that do."""
    count = 0
    try:
        with doubles(), torch.no_grad():
            for inputs, right in calls_of(row.takes, row.number):
                each = _called(part, inputs, right)
                if not each.right:
                    return count, _share_right(each)
                count += 1
    except Exception:  # whatever the code of another raises
        pass
    return count, 0.0


def _share_right(outcome: Outcome) -> float:
    if outcome.found.shape != outcome.expected.shape:
        return 0.0
    close = torch.isclose(outcome.found.double(), outcome.expected, rtol=0, atol=SUMS)
    return float(close.double().mean())


def names_missing(thing: Any, row: LessonRow) -> list[str]:
    """The parameters that the lesson names, and that are not there."""
    own = dict(thing.named_parameters()) if isinstance(thing, nn.Module) else {}
    return [each for each in row.parameters if each not in own]
