"""The kernels of this package, which report each problem before they run it."""

from collections.abc import Callable
from contextlib import ExitStack

from torch import Tensor

from clearhead._common.undoing import Undo
from clearhead.attention import planning
from clearhead.attention.problem import Problem
from clearhead.watching.hooks import tap


def install(undo: Undo) -> None:
    """Report the problems that this package's kernels run from now on, until `undo` is run."""
    tap.register(undo, planning.editors, _report)
    tap.register(undo, planning.observers, _observe)


def _report(
    problem: Problem, chosen: planning.Kernel, kernel: str
) -> Callable[[Tensor], Tensor] | None:
    """Report a problem with its edits applied, and return the function that makes the context to use.

    None if nothing edits or takes it, and inside a reported call. `chosen` and `kernel` are ignored.
    """
    if tap.is_guarded():  # also under torch.compile, whose graph would break at what follows
        return None
    edited = tap.edit(lambda: problem)
    gives = tap.Gives(ablated=edited is not None and edited.ablated)
    takes = tap.report((lambda: problem) if edited is None else edited.read, gives=gives)
    return tap.change_of(edited, takes)


def _observe(problem: Problem) -> Callable[[], None]:
    """Start a guard, under which a call of `attend` runs its kernel, and return the function that ends it.

    Inside another guard nothing starts, and the function is a no-op. `problem` is ignored.
    """
    running = ExitStack()
    if not tap.is_guarded():
        # The fused kernel calls PyTorch's function in turn; that is the same attention.
        running.enter_context(tap.guard())
    return running.close
