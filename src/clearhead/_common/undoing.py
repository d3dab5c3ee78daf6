"""Changes that end with a block, also where it is interrupted at any moment."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

Undo = list[Callable[[], None]]
"""The steps that end a change, written down before the change is made; each may run twice, or before."""


def undo_all(undo: Undo) -> None:
    """Run the steps, the last first, all of them whatever they raise. Called again, it goes on where an
    interrupt cut it.

    Raises:
        Exception: the first that a step raised, when all have run.

    Example:
        >>> undo = [lambda: print("first"), lambda: print("last")]
        >>> undo_all(undo)
        last
        first
        >>> undo
        []
    """
    errors: list[Exception] = []
    while undo:
        try:
            undo[-1]()
        except Exception as error:
            errors.append(error)
        undo.pop()
    if errors:
        raise errors[0]


@contextmanager
def undoing() -> Iterator[Undo]:
    """Run the steps that are written down in the block when it ends. An interrupt among them is raised
    when the others have run.

    Example:
        >>> with undoing() as undo:
        ...     undo.append(lambda: print("undone"))
        ...     print("changed")
        changed
        undone
    """
    undo: Undo = []
    try:
        yield undo
    finally:
        try:
            undo_all(undo)
        except BaseException:
            undo_all(undo)
            raise


def unhook(module: nn.Module, *hooks: Any) -> None:
    """Take these hooks of its forward off a module, as a step that undoes: an interrupt may come before the
    handle of one is there."""
    every: Any = module._forward_pre_hooks, module._forward_hooks
    flags: Any = module._forward_pre_hooks_with_kwargs, module._forward_hooks_with_kwargs
    for held in every:
        for key in [key for key, hook in held.items() if any(hook is each for each in hooks)]:
            for each in (*flags, held):
                each.pop(key, None)
