"""The calling conventions of undeclared code: by its parameters, and with its axes in another order."""

import inspect
import re
from typing import Any

from torch import Tensor, nn

from clearhead._common.foreign_names import CONTEXTS, MASKS, side_of
from clearhead.checking.subject.calling import call
from clearhead.checking.subject.signatures import (
    IDS,
    POSITIONS,
    context_of,
    masks_of,
    needed,
    of_call,
    sides_of,
    tensors_of,
)

# A parameter of the call that scales the scores.
SCALES = re.compile(r"scal|temperature|norm_factor")


def is_callable(found: Any) -> bool:
    """Return True for a class whose instances can be called or decode, and for any other callable."""
    if not inspect.isclass(found):
        return callable(found)
    if issubclass(found, nn.Module):
        return found.forward is not nn.Module.forward or _decodes(found)
    return _decodes(found) or any("__call__" in vars(each) for each in found.__mro__)


def likely_takes(found: Any) -> tuple[str, ...]:
    """Return the values of `takes` that the parameters of a class or function suggest, the likeliest first.

    () for none.
    """
    if _decodes(found):
        return ("decode",)
    names = of_call(found)
    plain, masked = tensors_of(names), any(MASKS.search(name) for name in needed(names))
    sides = {side for name in names if (side := side_of(name)) is not None}
    if not inspect.isclass(found):
        if sides_of(names) is not None and len(plain) <= 3:
            return ("qkv,mask", "qkv") if masked else ("qkv",)
        return {1: ("x2d", "x"), 3: ("qkv",)}.get(len(plain), ())
    if sides_of(names) is not None:
        return ("x", "qkv", "qkv,mask")
    if next(iter(names), "") in IDS:
        return ("ids", "ids,mask") if masked else ("ids", "x")
    if "hidden_states" in names:
        others = [name for name in plain if name != "hidden_states" and name not in CONTEXTS]
        return () if others and not issubclass(found, nn.Module) else ("x", "x,context")
    if len(plain) == 2:
        two = sides == {"query", "key"} or context_of(plain) is not None
        return ("x,context",) if two else ()
    if len(plain) == 3:
        return ("qkv", "x")
    if len(plain) > 3:
        return ()
    return ("x", "x,mask", "ids,mask") if masked else ("x", "x2d", "ids")


def unasked(found: Any, takes: str) -> tuple[str, ...]:
    """Return for the masks and the positions that a call accepts and is not given: "no mask (names)".

    () if there are none.
    """
    names = of_call(found)
    masks = () if takes.endswith("mask") else masks_of(names)
    positions = [name for name in names if POSITIONS.search(name) and name not in masks]
    return tuple(
        f"no {word}" + (f" ({', '.join(mine)})" if [*mine] != [word] else "")
        for word, mine in (("mask", masks), ("positions", positions))
        if mine
    )


def _decodes(found: Any) -> bool:
    """Return True for a class or object with reset, step and full."""
    return all(hasattr(found, name) for name in ("reset", "step", "full"))


class Reordered(nn.Module):
    """A layer or function that is called with its axes or its inputs in another order.

    Args:
        inner: the layer or function.
        takes: how it is called.
        order: "tokens-first" (axes 0 and 1 swapped), "heads-last" (axes 1 and 2 swapped) or "context-first" (inputs
            reversed).
    """

    def __init__(self, inner: Any, takes: str, order: str) -> None:
        super().__init__()
        self.inner, self.takes, self.order = inner, takes, order

    def forward(self, *tensors: Tensor) -> Tensor:
        """Call `inner` in its order; inputs and output have the order of `takes`."""
        if self.order == "context-first":
            return call(self.inner, self.takes, tensors[::-1], False)[0]
        axes = (0, 1) if self.order == "tokens-first" else (1, 2)
        swapped = [tensor.transpose(*axes) for tensor in tensors]
        return call(self.inner, self.takes, swapped, False)[0].transpose(*axes)


def order_meant(takes: str, code: str) -> str | None:
    """Return the order of `Reordered` in which a right attention would show the mistake `code`; None if there is none.

    No parameter shows that the samples come first, or which of two inputs is the context.
    """
    if takes in ("x", "x,context") and code in ("law.samples", "heads.layout"):
        return "tokens-first"
    if takes == "x,context" and code.startswith("context."):
        return "context-first"
    return "heads-last" if takes == "qkv" and code == "heads.layout" else None
