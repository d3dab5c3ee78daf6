"""The uses of edits, the edits that are active in this context, by `contextvars`, and their hooks.

So a thread that edits nothing runs the model as it is, next to one that edits it. Each active edit follows the running
modules, and edits the calls of its model.
"""

import ctypes
import sys
import weakref
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, TypeVar, cast

from torch import nn

from clearhead._common.torch_internals import in_backward, private
from clearhead._common.undoing import Undo
from clearhead.attention.problem import Problem
from clearhead.editing.call_positions import places_of
from clearhead.editing.context_operations import OfContext
from clearhead.editing.edited_call import EditedCall
from clearhead.editing.operation import Operation
from clearhead.errors import EditError
from clearhead.watching.hooks import installing, running, tap
from clearhead.watching.recording import of_texts

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
    """The descriptor of `by_use`."""

    def __init__(self, leave: Callable[..., None]) -> None:
        self._leave = leave

    def __get__(self, edit: Any, kind: type) -> Callable[..., None]:
        """Return a new `Use` of the edit, which its `__enter__` takes; from the class, the plain function."""
        if edit is None:
            return self._leave  # contextlib.ExitStack asks the class
        use = Use(self._leave, edit)
        edit._prepared = weakref.ref(use)
        return use


def by_use(leave: Leave) -> Leave:
    """Return a descriptor that makes `__exit__` a new `Use` for each `with`."""
    return cast(Leave, _Exit(leave))


def enter(use: Use) -> None:
    """Install the hooks of watches and edits for this use, and activate its edit in this context."""
    installing.install(use, _install)
    _entered.set((*(each for each in _entered.get() if each() is not None), weakref.ref(use)))


def is_entered(edit: object) -> bool:
    """Return True if an edit is active in any context."""
    return any(isinstance(each, Use) and each.edit is edit for each in installing.users())


def active_edits() -> list[Any]:
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


class _Editing:
    """Listener of the hooks that passes running modules and calls to each active edit."""

    def is_running(self) -> bool:
        """Return True while a model with an active edit of this context runs in this thread."""
        return any(each._stack for each in active_edits())

    def enter(self, module: nn.Module, inputs: Any, named: Mapping[str, Any] | None) -> None:
        """Pass a module that starts to run to the active edits; `named` are its keyword arguments, or None."""
        for each in active_edits():
            each._enter_module(module, inputs, named)

    def leave(self, module: nn.Module, output: Any) -> None:
        """Pass a module that has run to the active edits."""
        for each in active_edits():
            each._leave_module(module, output)

    def edit(self, read: tap.Read, child: str | None) -> tap.Edited | None:
        """Return a call with the operations of all active edits on it; None if none is for its module.

        Each edit counts the call. Raises EditError, code `edit.checkpoint`, in a backward pass outside of any module.
        """
        problem: Problem | None = None
        operations: list[Operation] = []
        place, at = "", None
        edits = active_edits()
        if in_backward() and not running.stack() and any(each._operations for each in edits):
            raise EditError(
                "edit.checkpoint",
                "what runs again in a backward pass must be a module, so that it is known where it stands in "
                "the model that is edited; a function attended there. Give torch.utils.checkpoint the module "
                "that attends.",
            )
        for each in edits:
            found = each._operations_on(child)
            if found is None:
                continue
            if problem is None:
                with tap.guard():
                    problem = of_texts(read(), found[0])
            with tap.guard():
                at = places_of(each._stack, problem)
            place = found[0]
            each.note(place, problem)
            operations += found[1]
        if problem is None or at is None or not operations:
            return None
        call = EditedCall(problem, operations, at, place)
        ablated = any(isinstance(each, OfContext) for each in operations)
        return tap.Edited(call.read, call.context, ablated)


_editing = _Editing()


def _witness(kind: str, shape: tuple[int, ...]) -> None:
    """Note attention that cannot be edited in every active edit."""
    for each in active_edits():
        each._witness(kind, shape)


def _install(undo: Undo) -> None:
    """Have the active edits follow modules and edit calls, until `undo` is run."""
    tap.register(undo, tap.editors, _editing)
    tap.register(undo, tap.witnesses, _witness)
    tap.register(undo, running.followers, _editing)
