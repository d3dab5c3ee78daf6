"""The ways to call what nobody declared: by its parameters, and with its axes in another order."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from clearhead._common.foreign_names import CONTEXTS, MASKS, side_of
from clearhead.checking.subject.calling import call, parameters

IDS = ("input_ids", "ids", "idx", "token_ids", "tokens", "src_ids", "indices")
# A parameter of the call that scales the scores.
SCALES = re.compile(r"scal|temperature|norm_factor")


def is_callable(found: Any) -> bool:
    """True of a class whose instances can be called or decode, and of a function."""
    if not inspect.isclass(found):
        return callable(found)
    if issubclass(found, nn.Module):
        return found.forward is not nn.Module.forward or _decodes(found)
    return _decodes(found) or any("__call__" in vars(each) for each in found.__mro__)


def ways(found: Any) -> tuple[str, ...]:
    """The values of `takes` that its parameters suggest, the likeliest first."""
    if _decodes(found):
        return ("decode",)
    named, needed = parameters_of(found), wanted(found)
    masks = [name for name in needed if MASKS.search(name)]
    plain = [name for name in needed if name not in masks]
    sides = {side for name in named if (side := side_of(name)) is not None}
    if not inspect.isclass(found):
        if len(sides) == 3 and len(plain) <= 3:
            return ("qkv,mask", "qkv") if masks else ("qkv",)
        return {1: ("x2d", "x"), 3: ("qkv",)}.get(len(needed), ())
    if len(sides) == 3:
        return ("x", "qkv", "qkv,mask")
    if next(iter(named), "") in IDS:
        return ("ids", "ids,mask") if masks else ("ids", "x")
    if "hidden_states" in named:
        return ("x", "x,context")
    if len(plain) == 2:
        return ("x,context",) if set(plain) & set(CONTEXTS) else ()
    if len(plain) == 3:
        return ("qkv", "x")
    return ("x", "x,mask", "ids,mask") if masks else ("x", "x2d", "ids")


def parameters_of(found: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a call; of a class those of an instance's."""
    if not inspect.isclass(found):
        return parameters(found)
    called = found.forward if issubclass(found, nn.Module) else found.__call__
    _, *mine = parameters(called).items()
    return dict(mine)


def wanted(found: Any) -> list[str]:
    """The names of those without a default."""
    return [name for name, each in parameters_of(found).items() if each.default is each.empty]


def unasked(found: Any, takes: str) -> tuple[str, ...]:
    """The masks that a call takes and is not handed."""
    if takes.endswith("mask"):
        return ()
    return tuple(name for name in parameters_of(found) if MASKS.search(name))


def _decodes(found: Any) -> bool:
    return all(hasattr(found, name) for name in ("reset", "step", "full"))


class Reordered(nn.Module):
    """A layer or function that is called with its axes or its inputs in another order.

    Args:
        inner: what is called.
        takes: how it is called.
        order: "tokens-first", "heads-last" or "context-first".
    """

    def __init__(self, inner: Any, takes: str, order: str) -> None:
        super().__init__()
        self.inner, self.takes, self.order = inner, takes, order

    def forward(self, *tensors: Tensor) -> Tensor:
        if self.order == "context-first":
            return call(self.inner, self.takes, tensors[::-1], False)[0]
        axes = (0, 1) if self.order == "tokens-first" else (1, 2)
        turned = [each.transpose(*axes) for each in tensors]
        return call(self.inner, self.takes, turned, False)[0].transpose(*axes)


def order_meant(takes: str, code: str) -> str | None:
    """The order that would look like this mistake; None for no other one.

    Nothing says that the samples come first, or which of two inputs is the context.
    """
    if takes in ("x", "x,context") and code in ("batch.mixed", "heads.layout"):
        return "tokens-first"
    if takes == "x,context" and code.startswith("context."):
        return "context-first"
    return "heads-last" if takes == "qkv" and code == "heads.layout" else None
