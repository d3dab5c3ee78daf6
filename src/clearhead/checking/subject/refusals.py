"""Errors of the code that is checked: raised on purpose, or happened; and where."""

import dis
import linecache
import re
import types
from pathlib import Path

from torch import Tensor

from clearhead._text import raised_words
from clearhead.errors import ModelError


def deliberate(error: BaseException) -> bool:
    """Return True if a raise or assert of Python code raised the error, and not an operation that failed.

    An error of einops counts as an operation that failed; an error that was never raised counts as deliberate.
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


def always(error: BaseException) -> bool:
    """Return True for an error that the user's code raises on any input.

    Such is a NameError or an unexpected keyword, with a line outside of PyTorch and clearhead in its traceback.
    """
    keyword = isinstance(error, TypeError) and "unexpected keyword argument" in str(error)
    return (isinstance(error, NameError) or keyword) and place(error) is not None


def first_line(error: BaseException) -> str:
    """Return an error as one line: its type and the first line of its text."""
    return raised_words(error).partition("\n")[0]


def traced(error: BaseException) -> types.TracebackType | None:
    """Return the innermost traceback entry outside of PyTorch, clearhead and importlib; None if there is none."""
    found, trace = None, error.__traceback__
    while trace is not None:
        own = trace.tb_frame.f_globals.get("__name__", "").partition(".")[0]
        if own not in ("torch", "clearhead", "importlib", "typing_extensions"):
            found = trace
        trace = trace.tb_next
    return found


def place(error: BaseException) -> tuple[str, int, str] | None:
    """Return (file, line, text of the line) of the innermost frame outside of PyTorch and clearhead.

    None if there is none.
    """
    trace = traced(error)
    if trace is None:
        return None
    found = trace.tb_frame.f_code.co_filename, trace.tb_lineno
    return (*found, linecache.getline(*found).strip())


def named_tensors(error: BaseException) -> str:
    """Return a line with the shapes of the tensors that the line that raised names, with a newline first.

    "" without any.
    """
    trace = traced(error)
    if trace is None:
        return ""
    line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    values = trace.tb_frame.f_locals
    names = (name for name in dict.fromkeys(re.findall(r"[^\W\d]\w*", line)) if name in values)
    tensors = [(name, values[name]) for name in names if isinstance(values[name], Tensor)]
    words = ", ".join(f"{name} is {list(tensor.shape)}" for name, tensor in tensors)
    return f"\n  {words}" if words else ""


def raised_with_line(error: BaseException) -> str:
    """Return an error in words, with a second line for its innermost line of code outside PyTorch and clearhead.

    Without the second line if there is none, as for an error that was never raised.
    """
    at = place(error)
    words = raised_words(error)
    return (
        words
        if at is None
        else f"{words}\n  {Path(at[0]).name}, line {at[1]}: {at[2]}".rstrip(": ")
    )


def output_error(name: str, x: Tensor, output: Tensor, *, square: bool) -> ModelError:
    """Return the error `check.output` for an output without a vector per token; `square`: it is (tokens, tokens)."""
    why = ""
    if square:
        why = "it gives a number for each other token, and no vector: the context is weights @ value.\n"
    elif output.ndim == x.ndim - 1:
        why = "all tokens are put together into one row: each has a row of its own.\n"
    return ModelError(
        "check.output",
        f"{why}{name} must give a vector for each token; from x {list(x.shape)} it gave {list(output.shape)}. "
        "If the output is another part of what it returns, check a function that picks it: lambda x: attention(x)[1].",
    )
