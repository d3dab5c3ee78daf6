"""Ctrl-C at a chosen moment of what runs, where Python looks for signals in the code of clearhead, and what
it leaves behind.

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

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends import mha
from torch.nn.modules import module as torch_module

import clearhead
from clearhead.attention import planning
from clearhead.watching.hooks import installing, running, tap

FUNCTIONS = {
    (F, "scaled_dot_product_attention"): F.scaled_dot_product_attention,
    (F, "multi_head_attention_forward"): F.multi_head_attention_forward,
    (mha, "get_fastpath_enabled"): mha.get_fastpath_enabled,
    (torch, "softmax"): torch.softmax,
    (torch, "_native_multi_head_attention"): vars(torch)["_native_multi_head_attention"],
    (torch, "_transformer_encoder_layer_fwd"): vars(torch)["_transformer_encoder_layer_fwd"],
}


def left_behind() -> list[str]:
    """Return the state that is not as it was before a watch or an edit."""
    found = [name for (home, name), old in FUNCTIONS.items() if getattr(home, name) is not old]
    found += ["Tensor.softmax"] if "softmax" in vars(Tensor) else []
    every: dict[str, Any] = {
        "forward hooks": torch_module._global_forward_hooks,
        "forward pre-hooks": torch_module._global_forward_pre_hooks,
        "observers": [*planning.observers, *planning.editors],
        "tap": [*tap.observers, *tap.witnesses, *tap.editors, *running.followers],
        "users": installing.users(),
        "stacks": running._stacks,
        "guarded": tap.is_guarded(),
        "no gradients": not torch.is_grad_enabled(),
    }
    return found + [name for name, thing in every.items() if thing]


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
