"""Errors for calls with unknown arguments, which name the equivalent argument."""

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from difflib import get_close_matches
from typing import Any, TypeVar, Unpack, cast, get_args, get_origin

from clearhead._common.foreign_names import PLACES, SIZES, WORDS, side_of, size_of
from clearhead.errors import ArgumentTypeError

Called = TypeVar("Called", bound=Callable[..., Any])

# pytest shows what a wrapped function raises without frames of this module.
__tracebackhide__ = True


def with_hints(called: Called) -> Called:
    """Return the function wrapped, or the class, its `__init__` replaced, to answer unknown arguments with a hint.

    A right call costs one more call in Python. The options of an unpacked TypedDict are arguments like
    others, in the signature as well. A TypeError of another cause passes unchanged.

    Raises:
        ArgumentTypeError: code `argument.words`, instead of Python's TypeError, when it is called.
    """
    if isinstance(called, type):
        setattr(called, "__init__", with_hints(called.__init__))  # noqa: B010
        return cast(Called, called)

    known = _spell_out(called)

    @functools.wraps(called)
    def explained(*args: Any, **kwargs: Any) -> Any:
        """Return what the function returns; raise `refusal` instead of a TypeError for unknown arguments."""
        try:
            if known is not None and not known >= kwargs.keys():
                raise TypeError(f"{called.__name__}() got an unexpected keyword argument")
            return called(*args, **kwargs)
        except TypeError as error:
            if hint_at(inspect.signature(called).parameters, args, kwargs) is None:
                raise
            raise refusal(called, args, kwargs) from error

    return cast(Called, explained)


def _spell_out(called: Any) -> Set[str] | None:
    """Replace the `**options: Unpack[TypedDict]` of a function's signature by one parameter per option.

    The default of an option is 0 for a number, False for a flag and None for anything else.

    Returns:
        The names of all arguments; None for a function without such options.
    """
    if not any(get_origin(each) is Unpack for each in called.__annotations__.values()):
        return None
    whole = inspect.signature(called)
    *own, caught = whole.parameters.values()
    (options,) = get_args(caught.annotation)
    named = [
        inspect.Parameter(
            name,
            caught.KEYWORD_ONLY,
            default=each() if each in (int, bool) else None,
            annotation=each,
        )
        for name, each in options.__annotations__.items()
    ]
    first = sum(each.kind is not caught.KEYWORD_ONLY for each in own)
    spelled = whole.replace(parameters=[*own[:first], *named, *own[first:]])
    vars(called)["__signature__"] = spelled
    return spelled.parameters.keys()


def refusal(
    called: Callable[..., Any],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    name: str | None = None,
) -> ArgumentTypeError:
    """Return the error for a call with an argument that does not exist; call it only where `hint_at` is not None.

    Args:
        called: the function.
        args: the positional arguments of the call, with self of a method.
        kwargs: its arguments by name.
        name: the name of the function in the message; None is its own, after its class for a method.

    Example:
        >>> print(refusal(lambda mask=None: mask, [], {"is_causal": True}))
        [argument.words] <lambda> takes no is_causal (mask=clearhead.causal()).
    """
    own = inspect.signature(called).parameters
    is_method = next(iter(own), "") == "self"
    of = type(args[0]).__name__ if is_method else ""
    if not of or called.__name__ not in ("__init__", "forward"):
        of = f"{of}.{called.__name__}".lstrip(".")
    return ArgumentTypeError("argument.words", f"{name or of} takes {hint_at(own, args, kwargs)}.")


def hint_at(
    own: Mapping[str, inspect.Parameter], args: Sequence[object], kwargs: Iterable[str]
) -> str | None:
    """Return the hint at arguments that are not among the parameters `own`, as the end of a sentence.

    None if there are no such arguments. Missing arguments are not looked at.

    Example:
        >>> hint_at(inspect.signature(lambda x, *, mask: x).parameters, [1, 2], {})
        'x by place, and the rest by name, from mask= on'
    """
    kinds = {each.kind for each in own.values()}
    by_name = [name for name, each in own.items() if each.kind is each.KEYWORD_ONLY]
    either = [name for name, each in own.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    hints = []
    if len(args) > len(either) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        hints.append(_by_place([name for name in either if name != "self"], by_name))
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        taken = [name for name in (*either, *by_name) if name != "self"]
        hints += hints_at_names([name for name in kwargs if name not in taken], taken)
    return "; ".join(hints) or None


def _by_place(places: Sequence[str], by_name: Sequence[str]) -> str:
    """Return as the end of a message that `places` may be passed by position, and `by_name` by name only."""
    if not by_name:
        return f"{' and '.join(places)} alone" if places else "nothing"
    meant = PLACES.get(by_name[0], "")
    if not places:
        return f"{', '.join(f'{name}=' for name in by_name)} by name{meant}"
    return f"{', '.join(places)} by place, and the rest by name, from {by_name[0]}= on{meant}"


def hints_at_names(names: Sequence[str], own: Collection[str]) -> list[str]:
    """Return a hint for each unknown argument name; [] without names.

    A name known from another library gets its equivalent, a typo its nearest name. If a name has
    neither, the last hint lists the arguments that exist.

    Example:
        >>> hints_at_names(["is_causal", "maks"], ["mask"])
        ['no is_causal (mask=clearhead.causal())', 'no maks (mask)']
        >>> hints_at_names(["colour"], ["mask", "scale"])
        ['no colour', 'it takes mask, scale']
    """
    found = {name: _ours(name, own) for name in names}
    hints = [f"no {name}{f' ({ours})' if ours else ''}" for name, ours in found.items()]
    if None in found.values():
        hints.append(f"it takes {', '.join(own) or 'none'}")
    return hints


def _ours(name: str, own: Collection[str]) -> str | None:
    """Return what to write instead of an argument of another library or a misspelt one; None if nothing is known.

    The answer of the table wins, then an argument in `own` for the same size or input, then the nearest spelling.
    """
    answers = WORDS.get(name, {}).items()
    answer = next((ours for argument, ours in answers if argument in own or not argument), None)
    if answer is not None:
        return answer
    meant = (*SIZES.get(size_of(name) or "", ()), side_of(name))
    near = get_close_matches(name, own, n=1, cutoff=0.75)
    return next((each for each in (*meant, *near) if each in own), None)
