"""The one place in which an error of the checked code is caught."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def attempt(
    call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
) -> tuple[T, None] | tuple[None, Exception]:
    """Return the result of a call and None, or None and the `Exception` that it raised.

    A result that is None is returned as (None, None). KeyboardInterrupt and other exceptions that are no `Exception`
    pass.

    Args:
        call: the function that runs the checked code, which may raise any error.
        *args: positional arguments of the call.
        **kwargs: keyword arguments of the call.
    """
    try:
        return call(*args, **kwargs), None
    except Exception as error:
        return None, error
