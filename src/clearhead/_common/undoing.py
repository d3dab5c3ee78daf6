"""Changes that end with a block, also where it is interrupted at any moment."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

Undo = list[Callable[[], None]]
"""The steps that end a change, written down before the change is made; each may run twice, or before."""


def undo_all(undo: Undo) -> None:
    """Run the undo steps, last first, and remove each from the list; a step that raises does not stop the others.

    Called again after an interrupt, it continues with the steps that are left.

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
    """Yield a list of undo steps, which are run when the block ends.

    An interrupt during one of them is raised after the others have run.

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
    """Remove these forward hooks and pre-hooks from a module; those that it does not have are ignored.

    It takes the hooks and not their handles, since an interrupt may come before the handle is stored.
    """
    every: Any = module._forward_pre_hooks, module._forward_hooks
    flags: Any = module._forward_pre_hooks_with_kwargs, module._forward_hooks_with_kwargs
    for held in every:
        for key in [key for key, hook in held.items() if any(hook is each for each in hooks)]:
            for each in (*flags, held):
                each.pop(key, None)
