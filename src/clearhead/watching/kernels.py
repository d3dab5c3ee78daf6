"""The kernel of each layer of a watched model: the one that clearhead chose, or the function that was called."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from clearhead._common.rows import MeasuredRows
from clearhead.attention.planning import Plan
from clearhead.errors import ArgumentError
from clearhead.watching.hooks.tap import KernelOfCall


@dataclass
class KernelCalls:
    """The calls of a module on one kernel.

    Attributes:
        kernel: its name, or that of a function.
        plan: of a kernel of clearhead the plan of the first of these calls.
        calls: how many.
    """

    kernel: str
    plan: Plan | None
    calls: int = 0


class LayerKernel(NamedTuple):
    """The kernel of one layer.

    Attributes:
        layer: the path of the module that attended.
        layer_number: its number in the record.
        kernel: "fused", "flex", "blockwise" or "eager" of clearhead; else the function that was called, such as
            "sdpa" or "flash_attention_2".
        calls: how many calls of the module ran on it.
        how: what the kernel of clearhead does, in a line, of the first of these calls; None for other functions.
        plan: all of it, with the reasons against the other kernels; None for other functions.
    """

    layer: str
    layer_number: int
    kernel: str
    calls: int
    how: str | None
    plan: Plan | None


class Kernels(MeasuredRows[LayerKernel]):
    """The kernels of all layers: a row for each kernel of each layer.

    Example:
        >>> import torch, clearhead as ch
        >>> model = torch.nn.TransformerEncoderLayer(8, nhead=2, batch_first=True).eval()
        >>> with torch.no_grad(), ch.watch(model) as seen:
        ...     output = model(torch.randn(1, 5, 8))
        >>> seen.plan()["kernel"]
        ['fast path of nn.TransformerEncoderLayer']
    """

    ROW = LayerKernel
    BY = "calls"
    UNPRINTED: ClassVar[frozenset[str]] = frozenset({"plan"})


def kernels_of(known: Mapping[str, Sequence[KernelCalls]], numbers: Mapping[str, int]) -> Kernels:
    """Return the rows of the modules that have these numbers.

    Raises:
        ArgumentError: code `watch.plan`, where the kernel of one is not known.
    """
    if any(path not in known for path in numbers):
        raise ArgumentError(
            "watch.plan",
            "a plan is of what a watch has seen itself; a file, and records that were merged, do not say which "
            "kernels ran.",
        )
    return Kernels(
        [
            LayerKernel(
                path, number, each.kernel, each.calls, each.plan and each.plan.how, each.plan
            )
            for path, number in numbers.items()
            for each in known[path]
        ]
    )


def add_call(known: dict[str, list[KernelCalls]], path: str, ran: KernelOfCall | None) -> None:
    """Count a call of a module on a kernel, where that is known."""
    if ran is None:
        return
    every = known.setdefault(path, [])
    mine = next((each for each in every if each.kernel == ran.kernel), None)
    if mine is None:
        mine = KernelCalls(ran.kernel, None if ran.plan is None else ran.plan())
        every.append(mine)
    mine.calls += 1
