"""Errors of the code that is checked: raised on purpose, or happened; and where."""

import dis
import linecache
from pathlib import Path

from clearhead._common.text import raised_words


def deliberate(error: BaseException) -> bool:
    """True if Python code raised the error in words of its own, and no operation failed.

    einops raises where a shape does not fit its pattern, which is an operation that fails.
    """
    trace = error.__traceback__
    if trace is None:
        return True
    while trace.tb_next is not None:
        trace = trace.tb_next
    if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] == "einops":
        return False
    code = trace.tb_frame.f_code.co_code
    return dis.opname[code[trace.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")


def first_line(error: BaseException) -> str:
    """An error as one line."""
    return raised_words(error).partition("\n")[0]


def place(error: BaseException) -> tuple[str, int, str] | None:
    """File, line and text of the line that raised, outside of PyTorch and of clearhead."""
    found, trace = None, error.__traceback__
    while trace is not None:
        own = trace.tb_frame.f_globals.get("__name__", "").partition(".")[0]
        if own not in ("torch", "clearhead", "importlib", "typing_extensions"):
            found = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    return None if found is None else (*found, linecache.getline(*found).strip())


def raised(error: BaseException) -> str:
    """An error with the line of the code that raised it."""
    at = place(error)
    words = raised_words(error)
    return (
        words
        if at is None
        else f"{words}\n  {Path(at[0]).name}, line {at[1]}: {at[2]}".rstrip(": ")
    )
