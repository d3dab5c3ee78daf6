"""Grade a program next to the solution of its lesson: same parameters, same inputs, same results and gradients."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead._common.lessons import LessonRow
from clearhead.checking.hypotheses.matching import distance
from clearhead.checking.source_edits.calls import called, compared, copied
from clearhead.checking.source_edits.definition import Mistake
from clearhead.checking.subject.completing import PARTS
from clearhead.checking.thresholds import SPREAD_HEADS
from clearhead.recording.attempt import attempt
from clearhead.recording.thresholds import SUMS

# The calls of parts of a module: the name of the part, and its inputs that are tensors.
Calls = list[tuple[str, list[Tensor]]]

# Below this a gradient is rounding: that of the bias of a key is 0.
FELT_GRADIENT = 1e-9


class Mixing(nn.Module):
    """A part that stands in for attention: each row of its result depends on the earlier rows and on all columns."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.columns = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the running sums of the projected rows."""
        return torch.tanh(self.columns(x)).cumsum(-2)


class Solved(NamedTuple):
    """The solution of a row with its inputs and results, none of which a caller may modify.

    Attributes:
        thing: the function, or a module in evaluation mode with drawn parameters.
        inputs: of each call.
        results: by the index of a call that was made, its result, and of a module the calls of its parts.
    """

    thing: Any
    inputs: list[tuple[Any, ...]]
    results: dict[int, tuple[Any, Calls]]

    def result(self, at: int) -> tuple[Any, Calls]:
        """Return the result of the call at an index, and the calls of parts; the call is made when it is asked for."""
        if at not in self.results:
            is_module = isinstance(self.thing, nn.Module)
            with _recorded(dict(self.thing.named_modules()) if is_module else {}) as found:
                self.results[at] = self.thing(*copied(self.inputs[at])), found
        return self.results[at]


def next_to_solution(thing: Any, row: LessonRow, text: str) -> Iterator[Mistake | None]:
    """Yield None for each result that equals that of the solution, and a mistake for each that does not.

    A function is called twice more, to see that it repeats itself. Errors of the code are raised.

    Args:
        thing: the function, class or instance of a learner; an instance is graded by its class.
        row: of the lesson or exercise, with its calls.
        text: the solution.
    """
    right = solved(text, row.names[0], row.number, row.calls, row.made)
    if isinstance(right.thing, nn.Module):
        yield from _modules(thing if inspect.isclass(thing) else type(thing), right, row)
        return
    if row.takes in PARTS:
        # With one query and one key most mistakes do not show.
        some = range(min(3, len(right.inputs)))
        expected = [right.result(at)[0] for at in some]
        made = [attempt(thing, *copied(right.inputs[at])) for at in some]
        alike = [
            isinstance(found, Tensor) and _alike(found, each)
            for (found, _), each in zip(made, expected, strict=True)
        ]
        if any(alike) and not all(alike):
            bad = alike.index(False)
            sizes = " and ".join(str(list(each.shape)) for each in right.inputs[bad])
            yield Mistake(
                "shape.fixed", f"it is right with other sizes than {sizes}", error=made[bad][1]
            )
    yield from compared(
        called(thing, each, right.result(at)[0]) for at, each in enumerate(right.inputs)
    )
    again = [thing(*copied(right.inputs[-1])) for _ in range(2)]
    yield from compared(iter([called(lambda *_: again[0], right.inputs[-1], again[1])]))


@cache
def solved(text: str, name: str, number: int, calls: tuple[str, ...], made: str) -> Solved:
    """Return what the solution of a row does; default dtype and grad mode are those of the block (cached).

    The global generator is seeded.

    Args:
        text: the solution.
        name: of its function or class.
        number: of the lesson, from which the seeds of the inputs count.
        calls: the inputs of each call, as expressions.
        made: the arguments of a class, as text.
    """
    namespace: dict[str, Any] = {}
    exec(compile(text, "solution", "exec", dont_inherit=True), namespace)
    thing = namespace[name]
    if inspect.isclass(thing):
        thing = _made(thing, made).eval()
        for each in thing.parameters():
            each.copy_(torch.randn(each.shape) * SPREAD_HEADS * max(each.shape) ** -0.5)
    inputs = [_evaluated(f"({each},)", number + at) for at, each in enumerate(calls)]
    return Solved(thing, inputs, {})


def code_of_part(part: Callable[..., Tensor], row: LessonRow) -> str:
    """Return the code of a part with a mistake that has no other name, by what its results depend on.

    "law.pairs" where a result depends on another row instead of its own, "sum.wrong" where a score depends on another
    one too, or not on a row or a column of its own; "softmax.missing" where shares do not add up to 1; else
    "law.value" of a context, and "law.scores". Errors of the part are raised.
    """
    given = _evaluated(f"({row.calls[0]},)", row.number)
    still = part(*copied(given))

    def moved(side: int, axis: int) -> Tensor:
        """Return which results change with each row (axis −2) or column (−1) of an input: (its number, *results)."""
        return torch.stack([
            ~torch.isclose(part(*copied(_with_half(given, side, axis, at))), still, atol=SUMS)
            for at in range(given[side].shape[axis])
        ])  # fmt: skip

    rows = moved(0, -2)
    if rows.shape[1] != rows.shape[0]:
        return "law.pairs"
    own = rows.diagonal(dim1=0, dim2=1).movedim(-1, 0)
    other = rows.sum(0) > own.int()
    if row.takes == "query,key":
        columns = moved(1, -2)
        own_column = columns.diagonal(dim1=0, dim2=2)
        other |= columns.sum(0) > own_column.int()
        own &= own_column
        if not (other & ~own).any() and not (own & ~other).all() & moved(0, -1).any((1, 2)).all():
            return "sum.wrong"
    if other.any():
        return "law.pairs"
    if row.takes == "scores" and not _alike(still.sum(-1), torch.ones(len(still))):
        return "softmax.missing"
    return "law.value" if row.takes == "weights,value" else "law.scores"


def _with_half(given: tuple[Any, ...], side: int, axis: int, at: int) -> tuple[Any, ...]:
    """Return inputs with 0.5 in a row or a column of one of them."""
    put = given[side].index_fill(axis, torch.tensor(at), 0.5)
    return (*given[:side], put, *given[side + 1 :])


def _evaluated(expression: str, seed: int) -> Any:
    """Seed the global generator, and return the value of an expression of a row."""
    torch.default_generator.manual_seed(seed)
    return eval(expression, {"torch": torch, "nn": nn, "Mixing": Mixing})


def _made(kind: type, arguments: str) -> nn.Module:
    """Return a new module of a class, made with the arguments of a row; the global generator is seeded."""
    return kind(**_evaluated(f"dict({arguments})", 0))


def _modules(kind: type, right: Solved, row: LessonRow) -> Iterator[Mistake | None]:
    """Yield the comparison of two classes of modules, with parts of one size paired in order.

    Nothing is yielded if that has a mistake and pairing them backwards has none.
    """
    mine = _made(kind, row.made)
    names = _paired(mine, right.thing, backwards=False)
    found = list(_compared(mine, right, names))
    if any(found):
        mine = _made(kind, row.made)
        others = _paired(mine, right.thing, backwards=True)
        if others != names and not any(_compared(mine, right, others)):
            return
    yield from found


def _compared(
    mine: nn.Module, right: Solved, names: Mapping[str, str] | Mistake
) -> Iterator[Mistake | None]:
    """Yield None or a mistake for each result of a module, which gets the parameters of the solution by their names.

    Ends at the first mistake of parameters or stages.
    """
    if isinstance(names, Mistake):
        yield names
        return
    own, given = dict(mine.named_parameters()), dict(right.thing.named_parameters())
    for name, other in names.items():
        own[other].copy_(given[name])
    mine.eval()
    # The learner's part by that of the solution, of those that hold parameters.
    parts: dict[str, str] = {}
    for name, other in names.items():
        if "." in name and "." in other:
            parts.setdefault(name.rpartition(".")[0], other.rpartition(".")[0])
    inputs, expected = (), torch.empty(0)
    for at, inputs in enumerate(right.inputs):
        expected, stages = right.result(at)
        with _recorded({name: mine.get_submodule(other) for name, other in parts.items()}) as made:
            _, error = attempt(mine, *copied(inputs))
        theirs = [each for each in stages if each[0] in parts]
        mistake = _first_difference(parts, made, theirs, error)
        yield mistake
        if mistake is not None:
            return
        yield from compared(iter([called(mine, inputs, expected)]))
    yield _gradients(mine, right.thing, names, inputs)
    mine.train()
    yield from compared(iter([called(mine, inputs, expected)]))


def _paired(mine: nn.Module, theirs: nn.Module, *, backwards: bool) -> dict[str, str] | Mistake:
    """Return the learner's names of the parameters by those of the solution.

    Parts belong together by their names; those without a namesake by the names and shapes of their parameters, in
    order; and parameters of other parts by their shapes. A Mistake if one is missing, is too much, or does not learn.
    """
    own, right = dict(mine.named_parameters()), dict(theirs.named_parameters())
    free, parts = _parts(own), _parts(right)
    names: dict[str, str] = {}
    for is_same in (True, False):
        for owner, shapes in parts.items():
            order = [each for each in free if not is_same or each == owner]
            fits = [each for each in order if free[each] == shapes]
            if fits and f"{owner}{next(iter(shapes))}" not in names:
                fit = fits[-1 if backwards else 0]
                names |= {f"{owner}{last}": f"{fit}{last}" for last in shapes}
                del free[fit]
    left = [f"{owner}{last}" for owner, shapes in free.items() for last in shapes]
    for name, each in right.items():
        if name not in names:
            fit = next((other for other in left if own[other].shape == each.shape), None)
            if fit is None:
                size = " × ".join(map(str, each.shape))
                missing = f"there is no parameter of {size} numbers for {name}"
                return Mistake("parameter.missing", missing, name.partition(".")[0])
            names[name] = fit
            left.remove(fit)
    if left:
        return Mistake("differs", f"{', '.join(left)} is not in the solution", left[0])
    for name in right:
        if not own[names[name]].requires_grad:
            return Mistake("parameter.missing", name=names[name])
    return names


def _parts(parameters: Mapping[str, Tensor]) -> dict[str, dict[str, torch.Size]]:
    """Return the names and shapes of the parameters of each part, by the part, which ends in a dot."""
    parts: dict[str, dict[str, torch.Size]] = {}
    for name, each in parameters.items():
        owner, dot, last = name.rpartition(".")
        parts.setdefault(owner + dot, {})[last] = each.shape
    return parts


@contextmanager
def _recorded(parts: Mapping[str, nn.Module]) -> Iterator[Calls]:
    """Record the calls of some parts in this block, in order: the name of the part, and copies of its tensors."""
    calls: Calls = []

    def note(name: str, _: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        """Append a call of a part to `calls`."""
        calls.append((name, [each.detach().clone() for each in given if isinstance(each, Tensor)]))

    hooks = [each.register_forward_hook(partial(note, name)) for name, each in parts.items()]
    try:
        yield calls
    finally:
        for each in hooks:
            each.remove()


def _first_difference(
    names: Mapping[str, str], made: Calls, right: Calls, error: Exception | None
) -> Mistake | None:
    """Return the first stage of the solution that is missing, or has another input, or None.

    If an error stopped the program, only the stages before it are compared; if these are equal, the error is raised.

    Args:
        names: the learner's names of the parts by those of the solution.
        made: the calls of the program.
        right: those of the solution.
        error: that stopped the program, or None.
    """
    for name in names if error is None else ():
        mine, theirs = (sum(each[0] == name for each in calls) for calls in (made, right))
        if mine < theirs:
            measured = f"{names[name]} is called {mine} times, expected {theirs}"
            return Mistake("stage.missing", measured, names[name])
    # What is beyond the calls of the program came after its error.
    for place, ((found, given), (name, inputs)) in enumerate(zip(made, right, strict=False)):
        if found != name or not all(map(_alike, given, inputs)):
            measured = f"the first stage that differs is {names[name]}"
            return Mistake("stage.input", measured, names[name], right=(place, 0.0))
    if error is not None:
        raise error
    return None


def _alike(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors have the same shape, and the same numbers to rounding."""
    return one.shape == other.shape and (one.numel() == 0 or distance(one.double(), other) <= SUMS)


def _gradients(
    mine: nn.Module, theirs: nn.Module, names: Mapping[str, str], inputs: tuple[Any, ...]
) -> Mistake | None:
    """Return a mistake with the parameters and inputs whose gradient is not the solution's; None if all are equal."""
    made: list[tuple[Tensor, list[Tensor]]] = []
    for model, own in ((mine, names.values()), (theirs, names)):
        parameters, given = dict(model.named_parameters()), copied(inputs)
        floats = [each for each in given if isinstance(each, Tensor) and each.is_floating_point()]
        with torch.enable_grad():
            for each in floats:
                each.requires_grad_()
            sides = [*(parameters[name] for name in own), *floats]
            made.append((model(*given), sides))
    labels = [*names.values(), *("x" for _ in made[0][1][len(names) :])]
    return unequal_gradients(labels, *made)


def unequal_gradients(
    labels: Sequence[str],
    found: tuple[Tensor, Sequence[Tensor]],
    expected: tuple[Tensor, Sequence[Tensor]],
) -> Mistake | None:
    """Return a mistake with the labels of unequal gradients of a random projection of the results, or None.

    The projection is drawn from the global generator.

    Args:
        labels: of the tensors whose gradients are compared.
        found: the learner's result, and these tensors.
        expected: the right result, and its own tensors in the same order.
    """
    along, made = torch.randn_like(expected[0]), []
    for result, sides in (found, expected):
        gradients: Sequence[Tensor | None] = [None] * len(sides)
        if result.requires_grad:
            # The gradient of a number: that of a tensor imports the compiler, for seconds.
            with torch.enable_grad():
                total = (result * along).sum()
            gradients = torch.autograd.grad(total, sides, allow_unused=True)
        made.append(gradients)
    lost = [
        label
        for label, one, other in zip(labels, *made, strict=True)
        if not _same_gradient(one, other)
    ]
    return Mistake("grad.wrong", name=", ".join(lost)) if lost else None


def _same_gradient(found: Tensor | None, expected: Tensor | None) -> bool:
    """Return True if two gradients are equal to rounding, or below 1e-9 throughout; None equals a gradient of zeros."""
    if found is None or expected is None:
        return all(each is None or not each.any() for each in (found, expected))
    nothing = max(float(found.abs().max()), float(expected.abs().max())) < FELT_GRADIENT
    return nothing or distance(found, expected) <= SUMS
