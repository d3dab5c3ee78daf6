"""Who draws a thing that stands on a lower floor than all that draws.

A mask, a matrix or a trace draws itself by a function of `clearhead.drawing`, which knows them and
not the other way round. It is found by its name when somebody looks, so that whoever never looks
imports nothing of it.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def artist(name: str) -> Callable[..., Any]:
    """A function of `clearhead.drawing`, as "module.function".

    Example:
        >>> artist("labels.label")(" the")
        '␣the'
    """
    module, _, function = name.rpartition(".")
    return getattr(import_module(f"clearhead.drawing.{module}"), function)
