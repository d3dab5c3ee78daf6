"""Grade a program next to the solution of its lesson: same parameters, same inputs, same results and gradients."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
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


class CalledModule(NamedTuple):
    """One call of a module inside a module: the inputs that are tensors, and the output."""

    inputs: tuple[Tensor, ...]
    output: Any


def next_to_solution(thing: Any, row: LessonRow, text: str) -> Iterator[Mistake | None]:
    """Yield None for each result that equals that of the solution, and a mistake for each that does not.

    A function is called twice more, to see that it repeats itself. The global generator is seeded. Errors of the code
    are raised.

    Args:
        thing: the function, class or instance of a learner; an instance is graded by its class.
        row: of the lesson or exercise, with its calls.
        text: the solution.
    """
    solution = _defined(text)[row.names[0]]
    if inspect.isclass(solution):
        yield from _modules(thing if inspect.isclass(thing) else type(thing), solution, row)
        return
    inputs = [_inputs(row, at) for at in range(len(row.calls))]
    if row.takes in PARTS:
        # With one query and one key most mistakes do not show.
        expected = [solution(*copied(each)) for each in inputs[:3]]
        made = [attempt(thing, *copied(each)) for each in inputs[:3]]
        right = [
            isinstance(found, Tensor) and _alike(found, each)
            for (found, _), each in zip(made, expected, strict=True)
        ]
        if any(right) and not all(right):
            bad = right.index(False)
            sizes = " and ".join(str(list(each.shape)) for each in inputs[bad])
            yield Mistake(
                "shape.fixed", f"it is right with other sizes than {sizes}", error=made[bad][1]
            )
    yield from compared(called(thing, each, solution(*copied(each))) for each in inputs)
    again = [thing(*copied(inputs[-1])) for _ in range(2)]
    yield from compared(iter([called(lambda *_: again[0], inputs[-1], again[1])]))


def code_of_part(part: Callable[..., Tensor], row: LessonRow) -> str:
    """Return the code of a part with a mistake that has no other name, by what its results depend on.

    "law.pairs" where a result depends on another row instead of its own, "sum.wrong" where a score depends on another
    one too, or not on a row or a column of its own; "softmax.missing" where shares do not add up to 1; else
    "law.value" of a context, and "law.scores". Errors of the part are raised.
    """
    given = _inputs(row, 0)
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


@cache
def _defined(text: str) -> Mapping[str, Any]:
    """Run the text of a solution, and return its globals (cached by text)."""
    namespace: dict[str, Any] = {}
    exec(compile(text, "solution", "exec", dont_inherit=True), namespace)
    return namespace


def _evaluated(expression: str, seed: int) -> Any:
    """Seed the global generator, and return the value of an expression of a row."""
    torch.default_generator.manual_seed(seed)
    return eval(expression, {"torch": torch, "nn": nn, "Mixing": Mixing})


def _inputs(row: LessonRow, at: int) -> tuple[Any, ...]:
    """Return the inputs of the call at an index of a row; the same row and index return the same numbers.

    The global generator is seeded.
    """
    return _evaluated(f"({row.calls[at]},)", row.number + at)


def _modules(kind: type, solution: type, row: LessonRow) -> Iterator[Mistake | None]:
    """Yield the comparison of two classes of modules, with parts of one size paired in order.

    Nothing is yielded if that has a mistake and pairing them backwards has none.
    """
    found = list(_compared(kind, solution, row, backwards=False))
    if any(found) and not any(_compared(kind, solution, row, backwards=True)):
        return
    yield from found


def _compared(
    kind: type, solution: type, row: LessonRow, *, backwards: bool
) -> Iterator[Mistake | None]:
    """Yield None or a mistake for each result of a module; `backwards` pairs its parts in reverse order.

    Ends at the first mistake of parameters or stages.
    """
    mine, theirs = (each(**_evaluated(f"dict({row.made})", 0)) for each in (kind, solution))
    names = _paired(mine, theirs, backwards)
    if isinstance(names, Mistake):
        yield names
        return
    stages = _stages_of(mine, theirs, names)
    for model in (mine, theirs):
        model.eval()
    inputs, expected = (), torch.empty(0)
    for at in range(len(row.calls)):
        inputs = _inputs(row, at)
        expected = theirs(*copied(inputs))
        made, error = _recorded(mine, inputs, [one for _, one, _ in stages])
        right, _ = _recorded(theirs, inputs, [other for _, _, other in stages])
        mistake = _first_difference([name for name, _, _ in stages], made, right, error)
        yield mistake
        if mistake is not None:
            return
        yield from compared(iter([called(mine, inputs, expected)]))
    yield _gradients(mine, theirs, names, inputs)
    mine.train()
    yield from compared(iter([called(mine, inputs, expected)]))


def _paired(mine: nn.Module, theirs: nn.Module, backwards: bool) -> dict[str, str] | Mistake:
    """Give both modules the same random parameters in place; return the learner's names by those of the solution.

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
    for name, each in right.items():
        if not own[names[name]].requires_grad:
            return Mistake("parameter.missing", name=names[name])
        each.copy_(torch.randn(each.shape) * SPREAD_HEADS * max(each.shape) ** -0.5)
        own[names[name]].copy_(each)
    return names


def _parts(parameters: Mapping[str, Tensor]) -> dict[str, dict[str, torch.Size]]:
    """Return the names and shapes of the parameters of each part, by the part, which ends in a dot."""
    parts: dict[str, dict[str, torch.Size]] = {}
    for name, each in parameters.items():
        owner, dot, last = name.rpartition(".")
        parts.setdefault(owner + dot, {})[last] = each.shape
    return parts


def _stages_of(
    mine: nn.Module, theirs: nn.Module, names: Mapping[str, str]
) -> list[tuple[str, nn.Module, nn.Module]]:
    """Return (learner's name, learner's module, module of the solution) for each submodule that holds parameters."""
    found: dict[str, tuple[str, nn.Module, nn.Module]] = {}
    for name, other in names.items():
        owner, _, _ = other.rpartition(".")
        module = name.rpartition(".")[0]
        if owner and module and module not in found:
            found[module] = (owner, mine.get_submodule(owner), theirs.get_submodule(module))
    return list(found.values())


def _recorded(
    model: nn.Module, inputs: tuple[Any, ...], parts: list[nn.Module]
) -> tuple[list[tuple[int, CalledModule]], Exception | None]:
    """Call a model on copies.

    Return (index of the part, call) for its calls of `parts`, in order, and the error or None. Hooks are added for the
    call.
    """
    calls: list[tuple[int, CalledModule]] = []

    def noted(at: int) -> Callable[..., None]:
        """Return a forward hook that appends each call of the part with this index to `calls`."""

        def hook(_: nn.Module, given: tuple[Any, ...], output: Any) -> None:
            """Append a copy of the inputs that are tensors, and the output itself."""
            tensors = tuple(each.detach().clone() for each in given if isinstance(each, Tensor))
            calls.append((at, CalledModule(tensors, output)))

        return hook

    hooks = [each.register_forward_hook(noted(at)) for at, each in enumerate(parts)]
    try:
        model(*copied(inputs))
    except Exception as error:  # any that the code of a learner raises
        return calls, error
    finally:
        for each in hooks:
            each.remove()
    return calls, None


def _first_difference(
    names: list[str],
    made: list[tuple[int, CalledModule]],
    right: list[tuple[int, CalledModule]],
    error: Exception | None,
) -> Mistake | None:
    """Return the first stage of the solution that is missing, or has another input, or None.

    If an error stopped the program, only the stages before it are compared; if these are equal, the error is raised.
    """
    for count in {count for count, _ in right}:
        mine, theirs = ([each for at, each in calls if at == count] for calls in (made, right))
        if error is None and len(mine) < len(theirs):
            measured = f"{names[count]} is called {len(mine)} times, expected {len(theirs)}"
            return Mistake("stage.missing", measured, names[count])
    for place, (at, stage) in enumerate(right):
        if place >= len(made):
            break
        same = made[place][0] == at and all(map(_alike, made[place][1].inputs, stage.inputs))
        if not same:
            measured = f"the first stage that differs is {names[at]}"
            return Mistake("stage.input", measured, names[at], right=(place, 0.0))
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
            gradients = torch.autograd.grad(result, sides, along, allow_unused=True)
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
