"""The uses of edits, and the edits that are active in this context, by `contextvars`.

So a thread that edits nothing runs the model as it is, next to one that edits it.
"""

import ctypes
import sys
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, TypeVar, cast

from clearhead._common.torch_internals import in_backward, private
from clearhead.watching.hooks import installing

Leave = TypeVar("Leave", bound=Callable[..., None])

KEY = "clearhead.edits"

_entered: ContextVar[tuple[weakref.ref["Use"], ...]] = ContextVar(KEY, default=())
"""The uses of this context, the first first; those that are over may still stand here."""


class Use(partial[None]):
    """The handle by which a `with` holds an edit while its block runs; calling it leaves the edit.

    The hooks know their users weakly, and the `with` alone owns this one. So where Ctrl-C comes before the
    first line of what leaves, the use goes with the block.
    """

    @property
    def edit(self) -> Any:
        """The edit that is in use."""
        return self.args[0]


class _Exit:
    def __init__(self, leave: Callable[..., None]) -> None:
        self._leave = leave

    def __get__(self, edit: Any, kind: type) -> Callable[..., None]:
        if edit is None:
            return self._leave  # contextlib.ExitStack asks the class
        use = Use(self._leave, edit)
        edit._prepared = weakref.ref(use)
        return use


def by_use(leave: Leave) -> Leave:
    """Return a descriptor that makes `__exit__` a new `Use` for each `with`."""
    return cast(Leave, _Exit(leave))


def enter(use: Use, *more: installing.Install) -> None:
    """Install the hooks, and `more` hooks of edits, for this use, and activate its edit in this context."""
    installing.install(use, *more)
    _entered.set((*(each for each in _entered.get() if each() is not None), weakref.ref(use)))


def is_entered(edit: object) -> bool:
    """Return True if an edit is active in any context."""
    return any(isinstance(each, Use) and each.edit is edit for each in installing.users())


def in_force() -> list[Any]:
    """Return the edits that are active in this context, in the order in which they were entered; [] if none is.

    In a forward pass they are stored for a backward one, which in a thread of autograd's own has those of the thread
    that called it, since a checkpoint runs the model again there.
    """
    uses = _entered.get()
    if not in_backward():
        keep_for_backward(KEY, uses)
    elif not uses:
        uses = kept_for_backward(KEY) or ()
    if not uses:
        return []
    users = installing.users()
    return [use.edit for each in uses if (use := each()) and any(use is user for user in users)]


def keep_for_backward(key: str, value: object) -> None:
    """Store a value in this thread, and in the threads that autograd starts for its backward passes.

    Private: `torch._C._stash_obj_in_tls`, in 2.6 to 2.15.
    """
    if _takes_references():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    private("_C._stash_obj_in_tls")(key, value)


@cache
def _takes_references() -> bool:
    """Return True if PyTorch steals a reference to an object that it stashes, as 2.10 does; tried once.

    Then the object would be freed while others still have it, unless the caller adds a reference.
    """
    probe = object()
    before = sys.getrefcount(probe)
    private("_C._stash_obj_in_tls")("clearhead.probe", probe)
    takes = sys.getrefcount(probe) == before
    if takes:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(probe))
    return takes


def kept_for_backward(key: str) -> Any:
    """Return the value that the thread which called the backward pass stored, or None.

    Private: `torch._C._is_key_in_tls` and `torch._C._get_obj_in_tls`, in 2.6 to 2.13.

    Example:
        >>> keep_for_backward("example", 3)
        >>> kept_for_backward("example"), kept_for_backward("another")
        (3, None)
    """
    return private("_C._get_obj_in_tls")(key) if private("_C._is_key_in_tls")(key) else None
