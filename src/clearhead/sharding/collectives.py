"""Collectives with gradients, each a call of torch.distributed on one tensor.

The loss is the sum of the losses of all ranks, as everywhere in `torch.distributed`: a gradient of
what every rank has is the sum of what the ranks send back.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import gt
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from clearhead import stages
from clearhead._common.torch_internals import use_count
from clearhead.errors import RankError

# Renamed in PyTorch 2.13.
_all_gather: Callable[..., Any] = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)

PATIENCE = 1.0
"""Seconds after which a thread of a process group is left alone with a tensor."""


@contextmanager
def waiting_for(what: str, *tensors: Tensor) -> Iterator[None]:
    """Turn a RuntimeError of the process group in the block into a RankError that says what was waited for.

    Afterwards it waits up to PATIENCE seconds, until no thread of the process group references the tensors.

    Args:
        what: what the other ranks send.
        tensors: the tensors passed to the process group, which only the caller references.

    Raises:
        RankError: code `across.lost`, with the error of the process group.
    """
    before = _holders(tensors)
    try:
        yield
    except RuntimeError as error:
        raise RankError(
            "across.lost",
            f"waiting for {what} of the other ranks failed: a rank is gone, or came later than the "
            f"timeout of the process group.\n{error}",
        ) from error
    # A thread of gloo lets go of the tensors after it has said that it is done, which takes the
    # interpreter's lock. Where the process ends in between, that thread ends it by SIGABRT.
    end = time.monotonic() + PATIENCE
    while any(map(gt, _holders(tensors), before)) and time.monotonic() < end:
        time.sleep(1e-5)


def _holders(tensors: Sequence[Tensor]) -> list[int]:
    """Return the number of references to each tensor on the CPU, from Python and C++; other tensors are left out.

    References of a loop variable count too, so counts are only comparable within one loop.
    """
    return [sys.getrefcount(each) + use_count(each) for each in tensors if each.is_cpu]


def all_gather(tensor: Tensor, group: Any, what: str) -> Tensor:
    """Return the tensors of all ranks, of equal shape, stacked along a new first axis; without gradients.

    `what` is the name of the tensors, for the RankError if a rank is lost.
    """
    world = dist.get_world_size(group)
    gathered = tensor.new_empty(world, *tensor.shape)
    sent, received = tensor.contiguous().detach(), gathered.flatten(0, 1)
    with waiting_for(what, sent, received):
        _all_gather(received, sent, group=group)
    return gathered


def exchange(tensor: Tensor, sent: list[int], received: list[int], group: Any, what: str) -> Tensor:
    """Send rows of the first axis to each rank; return the rows received, in the order of the ranks, detached.

    Args:
        tensor: the rows for each rank in turn.
        sent: the number of rows for each rank.
        received: the number of rows from each rank.
        group: the process group.
        what: what is sent, for errors.

    Raises:
        RankError: code `across.lost`.
    """
    result = tensor.new_empty(sum(received), *tensor.shape[1:])
    given = tensor.contiguous().detach()
    with waiting_for(what, given, result):
        dist.all_to_all_single(result, given, received, sent, group=group)
    return result


class GatherRows(torch.autograd.Function):
    """The rows of all ranks along the first axis, rank after rank; backward sums the gradients of this rank's rows.

    Ranks may have different numbers of rows. PyTorch's gather wants one: rows are padded to the most.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: tuple[int, ...], group: Any, what: str) -> Tensor:
        """Return the rows of all ranks, in the order of the ranks; rank r has counts[r] of them.

        `what` names the rows in errors. Raises RankError, code `across.lost`, if a rank is lost.
        """
        ctx.counts, ctx.group, ctx.what, ctx.dtype = counts, group, what, rows.dtype
        most = max(counts)
        padded = rows
        if len(rows) < most:
            padded = torch.cat([rows, rows.new_zeros(most - len(rows), *rows.shape[1:])])
        gathered = all_gather(padded, group, what)
        if min(counts) == most:
            return gathered.flatten(0, 1)
        return torch.cat([part[:count] for part, count in zip(gathered, counts, strict=True)])

    @staticmethod
    @torch.autograd.function.once_differentiable  # its type hides the name of ctx
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Return the gradient of this rank's rows, summed over the ranks in order; None for the other inputs."""
        rank = dist.get_rank(ctx.group)
        mine = [ctx.counts[rank]] * len(ctx.counts)
        # In the precision of sums, and in the order of the ranks, so that every run gives the same.
        grad = stages.upcast(grad)
        parts = exchange(grad, list(ctx.counts), mine, ctx.group, f"the gradients of {ctx.what}")
        total = parts.view(len(mine), mine[0], *grad.shape[1:]).sum(dim=0)
        return total.to(ctx.dtype), None, None, None


class SumOverRanks(torch.autograd.Function):
    """Sum a tensor over the ranks; every rank gets the sum, and gradients are summed too."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any, what: str) -> Tensor:
        """Return the sum of the tensors of all ranks, of the same shape and dtype; `what` names it in errors.

        Raises RankError, code `across.lost`, if a rank is lost.
        """
        ctx.group, ctx.what = group, what
        return _summed(tensor, group, what)

    @staticmethod
    @torch.autograd.function.once_differentiable  # its type hides the name of ctx
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Return the sum of the gradients of all ranks, and None for the other inputs."""
        return _summed(grad, ctx.group, f"the gradients of {ctx.what}"), None, None


def _summed(tensor: Tensor, group: Any, what: str) -> Tensor:
    """Return the sum of a tensor over the ranks, accumulated upcast, in the tensor's dtype; a new tensor.

    Raises RankError, code `across.lost`, if a rank is lost.
    """
    # In the precision of sums.
    total = stages.upcast(tensor).clone(memory_format=torch.contiguous_format)
    with waiting_for(what, total):
        dist.all_reduce(total, group=group)
    return total.to(tensor.dtype)
