"""The choice of a kernel for a problem, and the reasons against the others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from torch import Tensor

from clearhead._common.elements import Drawn
from clearhead._text import shown
from clearhead.attention.kernels import blockwise, eager, flex, fused
from clearhead.attention.problem import Problem
from clearhead.errors import ArgumentError, UnsupportedError


class Kernel(Protocol):
    """The interface of a module of `kernels/`; `NAME` is what `kernel=` takes."""

    @property
    def NAME(self) -> str:  # noqa: N802 - a constant of the module
        """The name of the kernel, such as "fused"."""
        ...

    @property
    def SUMMARY(self) -> str:  # noqa: N802
        """A short description of the kernel."""
        ...

    @staticmethod
    def refusals(problem: Problem, /) -> list[str]:
        """Return the reasons why this kernel cannot run the problem; [] if it can."""
        ...

    @staticmethod
    def defers(problem: Problem, /) -> list[str]:
        """Return the reasons why "auto" prefers a later kernel; [] if there are none."""
        ...

    @staticmethod
    def how(problem: Problem, /) -> str:
        """Return one line that describes how the kernel runs the problem."""
        ...

    @staticmethod
    def attend(problem: Problem) -> Tensor:
        """Return the context, (batch, num_heads, query_len, value_head_dim), of a problem that is not refused."""
        ...


KERNELS: tuple[Kernel, ...] = (fused, flex, blockwise, eager)
"""In the order in which "auto" tries them: it takes the first that can, and does not defer."""


@dataclass(frozen=True, repr=False)
class Plan(Drawn):
    """The kernel chosen for a problem, how it will run, and the reasons against each other kernel.

    Attributes:
        kernel: the name of the kernel that runs.
        how: what it will do, in a line.
        reasons: for each other kernel, why not; each at least one line.
        problem: the problem in words.

    Example:
        >>> import torch, clearhead as ch
        >>> query = key = value = torch.zeros(1, 2, 5, 8)
        >>> chosen = ch.plan(query, key, value, mask=ch.causal(), softcap=30.0)
        >>> chosen.kernel
        'blockwise'
        >>> chosen.reasons["fused"]
        ("softcap: PyTorch's fused attention has none",)
    """

    kernel: str
    how: str
    reasons: Mapping[str, tuple[str, ...]]
    problem: str

    def __str__(self) -> str:
        """Return lines: the kernel with how it runs, the problem, and a line for each reason against another kernel."""
        lines = [f"{self.kernel}: {self.how}"]
        lines += [f"  {line}" for line in self.problem.splitlines()]
        for name, reasons in self.reasons.items():
            lines += [f"not {name}: {reason}" for reason in reasons]
        return "\n".join(lines)


def kernel_named(kernel: str) -> Kernel | None:
    """Return the kernel of this name; None for "auto".

    Raises:
        ArgumentError: code `kernel.name`, if no kernel has that name, or the name is not a string.
    """
    if isinstance(kernel, str) and kernel == "auto":
        return None
    by_name = {each.NAME: each for each in KERNELS}
    found = by_name.get(kernel) if isinstance(kernel, str) else None
    if found is None:
        names = ", ".join(f'"{each.NAME}"' for each in KERNELS)
        raise ArgumentError(
            "kernel.name", f'kernel must be "auto" or one of {names}; got {shown(kernel)}.'
        )
    return found


def choose(problem: Problem, kernel: str = "auto") -> Kernel:
    """Return the first kernel that neither refuses a problem nor defers, or the named one; raise if that refuses it.

    Args:
        problem: the problem; the last kernel can run every one.
        kernel: "auto" or a name; a named kernel may defer and runs all the same.

    Raises:
        UnsupportedError: code `kernel.refused`, with every reason, if the named kernel cannot run the problem.
        ArgumentError: code `kernel.name`, if no kernel has that name.
    """
    chosen = kernel_named(kernel)
    if chosen is None:
        for each in KERNELS[:-1]:
            if not each.refusals(problem) and not each.defers(problem):
                return each
        return KERNELS[-1]
    reasons = chosen.refusals(problem)
    if reasons:
        raise _refused(chosen, reasons, problem)
    return chosen


def _refused(kernel: Kernel, reasons: list[str], problem: Problem) -> UnsupportedError:
    """Return, without raising it, the error for a named kernel that refuses the problem.

    It lists the kernels that can run it.
    """
    able = [each.NAME for each in KERNELS if not each.refusals(problem)]
    best = choose(problem).NAME
    lines = [f'kernel="{kernel.NAME}" cannot run this problem.']
    lines += [f"  - {reason}" for reason in reasons]
    lines += [f"  {line}" for line in problem.describe().splitlines()]
    lines += [f'These kernels can: {", ".join(able)}; kernel="auto" would take {best}.']
    return UnsupportedError("kernel.refused", "\n".join(lines))


Observer = Callable[[Problem], Callable[[], None]]
observers: list[Observer] = []
"""Called with each problem before it runs, and what they return after; `watch` is one."""

Editor = Callable[[Problem, Kernel, str], Callable[[Tensor], Tensor] | None]
editors: list[Editor] = []
"""Asked about each problem that observers see, with the kernel that runs it and the name that was asked for, for a
function of its context; `edit` is one."""


def run(problem: Problem, kernel: str = "auto") -> Tensor:
    """Return the context, (batch, num_heads, query_len, value_head_dim), by the named or the chosen kernel.

    If there are observers, each is called before the kernel, and what it returned is called afterwards, also after an
    error; the editors may then replace the context. Without observers no editor is asked. Raises as `choose` does.
    """
    chosen = choose(problem, kernel)
    if not observers:
        return chosen.attend(problem)
    # Without :=, whose cell Dynamo cannot read.
    asked = [editor(problem, chosen, kernel) for editor in editors]
    edits = [edit for edit in asked if edit is not None]
    endings = [observer(problem) for observer in observers]
    try:
        context = chosen.attend(problem)
        for edit in edits:
            context = edit(context)
        return context
    finally:
        for end in endings:
            end()


def plan_for(problem: Problem, kernel: str = "auto") -> Plan:
    """Return the plan for a problem, without running it; arguments and errors are those of `choose`.

    The reasons against another kernel are its refusals; without any, its reasons to defer, for "auto"; without these,
    that another kernel was named, or that it comes after the chosen one.
    """
    chosen = choose(problem, kernel)
    reasons: dict[str, tuple[str, ...]] = {}
    for other in KERNELS:
        if other is chosen:
            continue
        against = tuple(other.refusals(problem))
        if not against and kernel == "auto":
            against = tuple(other.defers(problem))
        if not against:
            against = (
                f'kernel="{kernel}" was asked for'
                if kernel != "auto"
                else f"it comes after {chosen.NAME}; it would run {other.how(problem)}",
            )
        reasons[other.NAME] = against
    return Plan(chosen.NAME, chosen.how(problem), MappingProxyType(reasons), problem.describe())
