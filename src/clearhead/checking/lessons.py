"""Grade what a learner wrote in a lesson: its contract, its codes, its words."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from clearhead import stages
from clearhead._common.checks import as_int
from clearhead._common.lessons import LESSONS, LessonRow, exercises_of
from clearhead._text import shown
from clearhead.checking.subject.completing import PARTS, completed
from clearhead.checking.subject.locating import defined, imported, located
from clearhead.checking.subject.stubs import reached
from clearhead.checking.subject.subject import name_of
from clearhead.errors import ArgumentError, ArgumentTypeError, ModelError

# The lesson from which on there are several texts at once.
BATCHES = 8
# The lesson whose class may have a mask, as that of the tutorials has.
SEVERAL_HEADS = 10


def row_of(lesson: Any, given: Mapping[str, Any]) -> LessonRow:
    """Return the row of a lesson, which declares all that there is to declare.

    Raises:
        ArgumentTypeError: code `check.lesson`, for a lesson that is no whole number.
        ArgumentError: code `check.lesson`, for a number without a lesson, or if anything in `given` is not None.
    """
    number = None if isinstance(lesson, bool) else as_int(lesson)
    if number is None:
        raise ArgumentTypeError(
            "check.lesson",
            f"lesson must be a whole number from 1 to {len(LESSONS)}; got {shown(lesson)}.",
        )
    if number not in LESSONS:
        raise ArgumentError(
            "check.lesson", f"lesson must be from 1 to {len(LESSONS)}; got {number}."
        )
    declared = [name for name, value in given.items() if value is not None]
    if declared:
        raise ArgumentError(
            "check.lesson",
            f"lesson={number} declares what there is to declare; got {', '.join(declared)} as well.",
        )
    return LESSONS[number]


def promises_of(row: LessonRow, thing: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the promises that a subject may make in a lesson, as fields of a contract, the likeliest first.

    A class of lesson 10 hides the future if its constructor asks for the length of the context; a function has one
    promise, the first.
    """
    first = {**row.contract, **row.named.get(getattr(thing, "__name__", type(thing).__name__), {})}
    made = (first, *row.either)
    if row.number == SEVERAL_HEADS and inspect.isclass(thing):
        masks = "context_length" in inspect.signature(thing).parameters
        return tuple(each for each in made if bool(each["causal"]) is masks)
    return made[:1] if inspect.isroutine(thing) else made


def called_with(row: LessonRow) -> str:
    """Return in words how the graded code is called, for an error."""
    if row.made:
        return f"made with {row.made} and called with {row.calls[0]}"
    if not row.takes:
        return f"called with {row.calls[0]}"
    if row.takes == "decode":
        return "with step(x), full(x) and reset()"
    inputs = {"x2d": "x", "qkv": "query,key,value"}.get(row.takes, row.takes).split(",")
    return "called with " + " and ".join(filter(None, (", ".join(inputs[:-1]), inputs[-1])))


def graded(subject: Any, row: LessonRow) -> Any:
    """Return the object to grade: found in a file, and of the right kind.

    Raises:
        ModelError: code `check.name`, for a file that defines none of it, or several; `check.import`.
        ArgumentError: code `check.place`, for a text that is no place.
        ArgumentTypeError: code `check.lesson`, for an object of another kind.
    """
    found = subject
    if isinstance(subject, str):
        found = _found_in(subject, row) if subject.endswith(".py") else located(subject)
    if getattr(found, "__name__", "") in exercises_of(row.number):
        return found
    functions = any(name.islower() for name in row.names)
    classes = not all(name.islower() for name in row.names)
    is_function = inspect.isroutine(found)
    is_object = not inspect.isclass(found) and not is_function and (
        isinstance(found, nn.Module) or callable(found) or row.takes == "decode"
    )  # fmt: skip
    fits = (
        (is_function and functions)
        or (inspect.isclass(found) and classes)
        or (is_object and not isinstance(found, Tensor) and (classes or callable(found)))
    )
    if not fits:
        kinds = " or ".join(["a function"] * functions + ["a class or a module"] * classes)
        raise ArgumentTypeError(
            "check.lesson",
            f"lesson {row.number} grades {kinds} {called_with(row)}; got {name_of(found)}.",
        )
    return found


def _found_in(file: str, row: LessonRow) -> Any:
    """Import a file, and return the object in it that a lesson grades.

    Names of the lesson come first, then any; a function that a class of the file calls does not count. Raises
    ModelError if there is none, or more than one.
    """
    module = imported(file)
    own = defined(module)
    mine = [name for name in row.names if name in own] or own
    classes = [name for name in mine if inspect.isclass(getattr(module, name))]
    # A class that calls the function grades it too.
    called = {each.__name__ for name in classes for each in reached(getattr(module, name))}
    mine = [name for name in mine if name in classes or name not in called]
    if len(mine) == 1:
        return getattr(module, mine[0])
    several = f"say which: {file}:{mine[0]}; it has {', '.join(mine)}" if mine else "it has none"
    raise ModelError(
        "check.name", f"lesson {row.number} grades one of {' or '.join(row.names)}, and {several}."
    )


def called(found: Any, row: LessonRow) -> tuple[Any, str]:
    """Return the callable to check and its `takes`.

    For a function that rotates rows this is attention that rotates query and key by it, and for a part of attention
    the attention that it is a part of, with "qkv"; else the object itself.
    """
    if row.takes in PARTS:
        return completed(found, row.takes, 1.0), "qkv"
    if inspect.isroutine(found) and row.names[0] == "rotate":
        return _rotating(found), "qkv"
    return found, row.takes


def _rotating(rotate: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Return attention over query, key and value, without a mask, that rotates query and key by the given function."""

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the context; with fewer queries than keys they are the last ones."""
        # The last query belongs to the last key.
        before = key.shape[-2] - query.shape[-2]
        placed = nn.functional.pad(query, (0, 0, before, 0))
        scores = stages.scores(rotate(placed)[..., before:, :], rotate(key))
        return stages.matmul(stages.weights(scores * query.shape[-1] ** -0.5), value)

    return attention
