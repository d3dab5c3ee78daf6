"""The hooks of edits: each active edit follows the running modules, and edits the calls of its model."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from clearhead._common.torch_internals import in_backward
from clearhead._common.undoing import Undo
from clearhead.attention.problem import Problem
from clearhead.editing import entering
from clearhead.editing.context_operations import OfContext
from clearhead.editing.operation import Operation
from clearhead.editing.operations import EditedCall
from clearhead.editing.places import places_of
from clearhead.errors import EditError
from clearhead.watching.hooks import running, tap
from clearhead.watching.recording import of_texts


class _Editing:
    """Listener of the hooks that passes running modules and calls to each active edit."""

    def is_running(self) -> bool:
        """Return True while a model with an active edit of this context runs in this thread."""
        return any(each._stack for each in entering.in_force())

    def enter(self, module: nn.Module, inputs: Any, named: Mapping[str, Any] | None) -> None:
        """Pass a module that starts to run to the active edits; `named` are its keyword arguments, or None."""
        for each in entering.in_force():
            each._enter_module(module, inputs, named)

    def leave(self, module: nn.Module, output: Any) -> None:
        """Pass a module that has run to the active edits."""
        for each in entering.in_force():
            each._leave_module(module, output)

    def edit(self, read: tap.Read, child: str | None) -> tap.Edited | None:
        """Return a call with the operations of all active edits on it; None if none is for its module.

        Each edit counts the call. Raises EditError, code `edit.checkpoint`, in a backward pass outside of any module.
        """
        problem: Problem | None = None
        operations: list[Operation] = []
        place, at = "", None
        edits = entering.in_force()
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
    for each in entering.in_force():
        each._witness(kind, shape)


def install(undo: Undo) -> None:
    """Have the active edits follow modules and edit calls, until `undo` is run."""
    tap.register(undo, tap.editors, _editing)
    tap.register(undo, tap.witnesses, _witness)
    tap.register(undo, running.followers, _editing)
