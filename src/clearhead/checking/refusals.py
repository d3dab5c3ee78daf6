"""Whether an error was raised on purpose, or happened."""

import dis


def deliberate(error: BaseException) -> bool:
    """Whether some Python code raised the error in so many words, instead of an operation failing.

    einops raises where a shape does not fit its pattern, which is an operation that fails.
    """
    trace = error.__traceback__
    if trace is None:
        return True
    while trace.tb_next is not None:
        trace = trace.tb_next
    if trace.tb_frame.f_globals.get("__name__", "").startswith("einops"):
        return False
    code = trace.tb_frame.f_code.co_code
    return dis.opname[code[trace.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")


def first_line(error: BaseException) -> str:
    """An error as one line."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
