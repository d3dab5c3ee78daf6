"""Ctrl-C at a chosen moment of what runs: where Python looks for signals, in the code of clearhead.

Python looks at the beginning of a function, where a loop goes round, and after a call. A timer would
come at one of these as well, but not at the same one again.
"""

import contextlib
import dis
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import clearhead

HERE = (str(Path(clearhead.__file__).parent), contextlib.__file__)
"""The code that is interrupted: this package, and what its `with` blocks run."""

LOOKS = ("CALL", "JUMP_BACKWARD", "RESUME")
"""The instructions after which Python looks, by how their names begin."""


class Interrupt(KeyboardInterrupt):
    """One that a test sends."""


def moments(act: Callable[[], Any]) -> list[int]:
    """Return the moments of a call that can be interrupted: for each place in the code the first."""
    places: dict[tuple[CodeType, int], int] = {}
    _traced(act, -1, places)
    return list(places.values())


def interrupt(act: Callable[[], Any], moment: int) -> bool:
    """Run a call and interrupt it at a moment; returns whether the interrupt got out of it."""
    try:
        _traced(act, moment)
    except Interrupt:
        return True
    return False


def _traced(
    act: Callable[[], Any], moment: int, places: dict[tuple[CodeType, int], int] | None = None
) -> None:
    count = -1
    before: dict[FrameType, str] = {}

    def look(frame: FrameType) -> None:
        nonlocal count
        count += 1
        if places is not None:
            places.setdefault((frame.f_code, frame.f_lasti), count)
        if count == moment:
            sys.settrace(None)
            before.clear()
            raise Interrupt

    def step(frame: FrameType, event: str, _: object) -> Any:
        if event == "opcode":
            if before.get(frame, "").startswith(LOOKS):
                before[frame] = ""
                look(frame)
            before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        elif event == "return":
            before.pop(frame, None)
        return step

    def called(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(HERE):
            return None
        frame.f_trace_opcodes = True
        # One that is closed goes on as well, when it is freed, where nothing can be raised.
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            look(frame)
        return step

    was = sys.gettrace()
    try:
        sys.settrace(called)
        act()
    finally:
        sys.settrace(was)
        before.clear()
