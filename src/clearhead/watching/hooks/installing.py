"""The hooks on every implementation of attention, installed once for all their users.

Each step writes down what undoes it before it is made, so an interrupt at any moment leaves nothing
that could not be undone; and the next user undoes what freed users have left.
"""

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from clearhead._common.undoing import Undo, undo_all
from clearhead.watching.hooks import (
    model_softmax,
    own,
    running,
    sdpa,
    tap,
    torch_attention,
    transformers,
)
from clearhead.watching.hooks.patching import Replacement

Install = Callable[[Undo], None]

FUNCTIONS = Replacement(
    [*sdpa.FUNCTIONS, *torch_attention.FUNCTIONS, *model_softmax.FUNCTIONS],
    [vars(sdpa), vars(torch_attention), vars(model_softmax)],
)
"""The functions of PyTorch that report, searched for together."""

HOOKS: tuple[Install, ...] = (
    tap.install,
    running.install,
    own.install,
    model_softmax.install,
    FUNCTIONS.install,
    sdpa.install,
)

OTHERS = {"torch", "builtins", "typing", "abc", "collections"}
"""The packages of classes that hold nothing of a model's own."""

_lock = threading.RLock()
_users: list[weakref.ref[Any]] = []
_installed: list[Install] = []
_undo: Undo = []


def install(user: object, *more: Install) -> None:
    """Install the hooks, unless they are, for as long as a user uses them.

    Args:
        user: who uses them, until `uninstall` or until it is gone.
        more: hooks of its own; those that are installed already are left so.

    Example:
        >>> import torch
        >>> original = torch.nn.functional.scaled_dot_product_attention
        >>> class User: pass
        >>> user, other = User(), User()
        >>> install(user), install(other), uninstall(user)
        (None, None, None)
        >>> torch.nn.functional.scaled_dot_product_attention is original
        False
        >>> uninstall(other)
        >>> torch.nn.functional.scaled_dot_product_attention is original
        True
    """
    with _lock:
        _forget(None)
        _users.append(weakref.ref(user, _gone))
        for each in (*HOOKS, *more):
            if each not in _installed:
                _installed.append(each)
                each(_undo)


def hold(modules: Iterable[nn.Module]) -> None:
    """Replace the attention functions in the code of these modules, and show hooks their keyword arguments.

    Undone by the last `uninstall`.
    """
    modules = list(modules)
    kinds = {kind for each in {type(module) for module in modules} for kind in each.__mro__}
    own = [kind for kind in kinds if kind.__module__.partition(".")[0] not in OTHERS]
    with _lock:
        running.show_arguments(modules, _undo)
        model_softmax.hold(own, _undo)
        transformers.hold(_undo)
    FUNCTIONS.hold(own, modules)


def uninstall(user: object) -> None:
    """Remove a user, and freed ones, and take the hooks out with the last one.

    Called again, it finishes what an interrupt cut.
    """
    with _lock:
        _forget(user)


def users() -> list[Any]:
    """Return the users of the hooks that are still alive, in the order of `install`; [] if none."""
    return [user for each in list(_users) if (user := each()) is not None]


def _gone(_: object) -> None:
    """Uninstall the hooks when the last user was freed, unless another thread holds the lock."""
    # Python may free an object anywhere, also while hooks are installed by the same thread.
    if _lock.acquire(blocking=False):
        try:
            if users() == [] and len(_installed) >= len(HOOKS):
                _forget(None)
        finally:
            _lock.release()


def _forget(gone: object) -> None:
    """Remove a user, and freed users, from the list; undo all hooks if none is left. None removes freed ones only."""
    _users[:] = [each for each in _users if (user := each()) is not None and user is not gone]
    if _users:
        return
    try:
        undo_all(_undo)
    finally:
        if not _undo:
            _installed.clear()
