"""A time limit for code that is checked."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from clearhead._common.checks import is_number
from clearhead._text import shown
from clearhead.errors import ArgumentError, ModelError


class TimeUp(BaseException):
    """The time is up; no `except Exception` of the checked code stops it."""


@contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """Raise ModelError in this block after some seconds, as soon as this thread runs Python; None for no limit.

    Raises:
        ArgumentError: code `timeout.value`, for a number that is not above 0, or too large.
        ModelError: code `check.timeout`, if the time is up.
    """
    if seconds is None:
        yield
        return
    if not is_number(seconds) or not 0 < seconds < threading.TIMEOUT_MAX:
        raise ArgumentError(
            "timeout.value",
            f"timeout must be a number of seconds above 0, or None; got {shown(seconds)}.",
        )
    thread, throw = (
        ctypes.c_ulong(threading.get_ident()),
        ctypes.pythonapi.PyThreadState_SetAsyncExc,
    )
    timer = threading.Timer(seconds, throw, (thread, ctypes.py_object(TimeUp)))
    timer.daemon = True
    try:
        try:
            timer.start()
            yield
        finally:
            timer.cancel()
            timer.join()
            throw(thread, None)
    except TimeUp:
        raise ModelError(
            "check.timeout",
            f"the check took more than {seconds:g} seconds, and was ended; timeout= gives it more.",
        ) from None
