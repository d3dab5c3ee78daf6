"""The ways to go over all weights for their statistics, and the choice of one."""

from collections.abc import Sequence
from typing import ClassVar, Protocol

from clearhead.attention import planning
from clearhead.attention.planning import Plan, Way, choose
from clearhead.attention.problem import Problem
from clearhead.matrix import triton_pass
from clearhead.matrix.reductions import Reduction
from clearhead.matrix.sweep import Progress, sweep
from clearhead.matrix.triton_pass import AskedOfWeights


class Pass(Way, Protocol):
    """The interface of a way."""

    @staticmethod
    def run(asked: AskedOfWeights, progress: Progress | None, /) -> None: ...


class Sweep:
    """PyTorch's operations on one chunk of the weights after another, on any device."""

    NAME: ClassVar = "sweep"
    SUMMARY: ClassVar = (
        "every statistic by PyTorch's operations, chunk by chunk; memory grows with tokens"
    )

    @staticmethod
    def refusals(asked: AskedOfWeights) -> list[str]:
        """Why it cannot answer: never."""
        return []

    @staticmethod
    def defers(asked: AskedOfWeights) -> list[str]:
        """Why another way is to be preferred: it is the last."""
        return []

    @staticmethod
    def how(asked: AskedOfWeights) -> str:
        """Describe a pass, in a line."""
        return f"the weights chunk by chunk, by PyTorch's operations on {asked.problem.device.type}"

    @staticmethod
    def run(asked: AskedOfWeights, progress: Progress | None = None) -> None:
        """Fill every reduction with what it asks for."""
        sweep(asked.problem, asked.reductions, progress)


PASSES: tuple[Pass, ...] = (triton_pass, Sweep)
"""In the order in which "auto" tries them."""


def run(
    problem: Problem,
    reductions: Sequence[Reduction],
    progress: Progress | None = None,
    kernel: str = "auto",
) -> None:
    """Fill every reduction with all of the weights, by the way that is taken or asked for.

    Raises:
        UnsupportedError: code `kernel.refused`, if the one asked for cannot.
        ArgumentError: code `kernel.name`, if there is none of that name.
    """
    asked = AskedOfWeights(problem, reductions)
    choose(asked, kernel, PASSES).run(asked, progress)


def plan_for(problem: Problem, kernel: str = "auto") -> Plan:
    """Return the plan for the statistics of a problem."""
    return planning.plan_for(AskedOfWeights(problem, ()), kernel, PASSES)
