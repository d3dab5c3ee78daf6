"""Attention block by block in plain PyTorch, with gradients and without queries × keys.

The scores are computed tile by tile: a tile is a range of queries and the keys that at least one of
them sees. Empty tiles are never visited, and only the ragged edges of the others are masked. The
backward pass recomputes the weights from the logsumexp, so that a call holds O(tokens) numbers
between the passes and the scores of one tile at a time within them (Dao et al., 2022,
https://arxiv.org/abs/2205.14135).
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.torch_internals import is_autocast
from clearhead._text import format_bytes
from clearhead.attention.biases import Bias, DenseBias, SelectedBias
from clearhead.attention.distance_biases import Alibi, Relative
from clearhead.attention.kernels._blockwise_passes import Saved, attend_small, backward, forward
from clearhead.attention.kernels._blockwise_work import (
    SMALL,
    Work,
    by_head,
    keys_of,
    parts,
    work_of,
)
from clearhead.attention.kernels._by_heads import by_heads, threads_of
from clearhead.attention.kernels._nonfinite import all_finite, contain
from clearhead.attention.problem import Problem
from clearhead.errors import UnsupportedError
from clearhead.masks.tiles import length

T = TypeVar("T")

NAME = "blockwise"
SUMMARY = "block by block in plain PyTorch, with every option; memory grows with tokens"


def refusals(problem: Problem) -> list[str]:
    """Return the reasons why this kernel cannot run the problem; [] if it can.

    It refuses tensors that cannot be read, forward-mode derivatives, and a trained bias of another class than its own.
    """
    reasons = []
    if not problem.readable:
        reasons.append(
            "tensors that cannot be read: blocks are found by reading the mask, which "
            "torch.compile, torch.func and the meta device do not allow"
        )
    elif problem.has_tangents:
        reasons.append("forward-mode derivatives: this kernel has the backward pass only")
    bias = _of_all(problem.bias)
    if (
        bias is not None
        and bias.requires_grad
        and not isinstance(bias, DenseBias | Alibi | Relative)
    ):
        reasons.append(
            "bias that is trained: this kernel has gradients for a tensor, for alibi and for "
            f"relative; got {type(bias).__name__}"
        )
    return reasons


def defers(problem: Problem) -> list[str]:
    """Return the reasons why "auto" prefers a later kernel: always []."""
    return []


def how(problem: Problem) -> str:
    """Return one line that describes how the kernel runs the problem; the mask is read for its tiles."""
    width = stages.upcast(problem.query[:0]).dtype.itemsize
    if _is_small(problem):
        shapes, largest = [(problem.query_len, problem.kv_len)], _score_count(problem)
    else:
        work = work_of(problem)
        shapes, largest = [tile.shape for tile in work.tiles], work.largest
    count = len(shapes)
    queries, keys = (max((shape[axis] for shape in shapes), default=0) for axis in (0, 1))
    return (
        f"{count} {'block' if count == 1 else 'blocks'} of up to {queries} queries × {keys} keys; "
        f"the largest part takes {format_bytes(largest * width)}"
    )


def attend(problem: Problem) -> Tensor:
    """Return the context, (batch, num_heads, query_len, value_head_dim), in the query's dtype.

    With dropout a seed is drawn from PyTorch's generator. Second derivatives raise UnsupportedError,
    code `kernel.second-derivative`.
    """
    return _without_autocast(problem, _attend)


def logsumexp(problem: Problem) -> Tensor:
    """Return log Σ exp of the masked scores of each query, (batch, num_heads, query_len), without the sinks.

    It is in the precision of sums: −∞ for a query that sees no key, NaN for one that sees a non-finite key.
    """
    return _without_autocast(problem, _logsumexp)


def context_and_logsumexp(problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the context and the logsumexp of each query, both in the precision of sums and with gradients.

    They are (batch, num_heads, query_len, value_head_dim) and (batch, num_heads, query_len). The problem must have no
    sinks and no dropout. Both are NaN for a query that sees a non-finite value.
    """
    width = problem.value.shape[3]

    def run(problem: Problem) -> tuple[Tensor, Tensor]:
        """Return the context and the logsumexp of a problem that is finite; a column added to the value is cut off."""
        tensors = problem.query, problem.key, problem.value[..., :width]
        return _Blockwise.apply(*tensors, None, _tensor_of(problem), work_of(problem))

    if all_finite(problem):
        return _without_autocast(problem, run)
    # One more column of values, in whose place the logsumexp is contained as well.
    padded = problem.replace(value=torch.nn.functional.pad(problem.value, (0, 1)))

    def run_as_one(problem: Problem) -> Tensor:
        """Return the context with the logsumexp as its last column."""
        context, total = run(problem)
        return torch.cat([context, total[..., None]], dim=3)

    both = _without_autocast(padded, lambda problem: contain(problem, run_as_one, _count))
    return both[..., :width], both[..., width]


def _without_autocast(problem: Problem, compute: Callable[[Problem], T]) -> T:
    """Return the result of `compute`, run with autocast disabled."""
    # The tensors have been brought to their precision; sums are not to be lowered.
    if not is_autocast(problem.query):
        return compute(problem)
    with torch.autocast(problem.device.type, enabled=False):
        return compute(problem)


def _attend(problem: Problem) -> Tensor:
    """Return the context, (batch, num_heads, query_len, value_head_dim), in the query's dtype.

    Non-finite inputs are contained.
    A small problem is computed at once, another one tile by tile. With dropout a seed is drawn.
    """
    if _is_small(problem):
        return contain(problem, lambda finite: attend_small(finite).to(problem.query.dtype), _count)
    seed = 0
    if problem.dropout is not None:
        seed = int(torch.randint(1 << 62, (), device=problem.device))

    def run(problem: Problem) -> Tensor:
        """Return the context of a finite problem, tile by tile."""
        tensors = problem.query, problem.key, problem.value, problem.sinks, _tensor_of(problem)
        return _Blockwise.apply(*tensors, work_of(problem, seed))[0].to(problem.query.dtype)

    def run_side_by_side(problem: Problem) -> Tensor:
        """Return the context of a finite problem, with its heads shared by threads where that pays."""
        count = threads_of(problem)
        if count == 1:
            return run(problem)
        return by_heads(problem, count, lambda some, context: context.copy_(run(some)))

    return contain(problem, run_side_by_side, _count)


def _is_small(problem: Problem) -> bool:
    """Return True for 1 to SMALL scores, without gradients, bias, sinks and dropout.

    Tiles would cost more than they save.
    """
    if problem.bias is not None or problem.sinks is not None or problem.dropout is not None:
        return False
    given = problem.query, problem.key, problem.value
    wanted = torch.is_grad_enabled() and any(each.requires_grad for each in given)
    return 0 < _score_count(problem) <= SMALL and not wanted


def _score_count(problem: Problem) -> int:
    """Return the number of scores of a problem."""
    return problem.batch * problem.num_heads * problem.query_len * problem.kv_len


def _logsumexp(problem: Problem) -> Tensor:
    """Return the logsumexp of each query, (batch, num_heads, query_len), without sinks.

    Non-finite inputs are contained.
    """
    # No value is wanted: one of width 0 costs nothing. What is contained has a width of 1.
    problem = problem.replace(value=problem.key[..., :1], sinks=None, dropout=None)

    def run(problem: Problem) -> Tensor:
        """Return the logsumexp of a finite problem as a context of width 1, tile by tile."""
        tensors = problem.query, problem.key, problem.value[..., :0], None, _tensor_of(problem)
        return _Blockwise.apply(*tensors, work_of(problem))[1][..., None]

    return contain(problem, run, _count)[..., 0]


def _tensor_of(problem: Problem) -> Tensor | None:
    """Return the tensor that the bias, or the one it selects from, is made of; None without a bias.

    None also for the paper's slopes of alibi, and for other classes than a tensor, alibi and relative.
    """
    bias = _of_all(problem.bias)
    if isinstance(bias, Alibi) and bias.follows:
        return None  # the slopes of the paper, which go to any device, and are never trained
    return bias.numbers if isinstance(bias, DenseBias | Alibi | Relative) else None


def _of_all(bias: Bias | None) -> Bias | None:
    """Return the whole bias that a `SelectedBias` selects from; any other bias, or None, unchanged."""
    return bias.bias if isinstance(bias, SelectedBias) else bias


def _count(problem: Problem, marks: Tensor) -> Tensor:
    """Count the marked keys that each query may attend to, by mark: (batch, num_heads, query_len, marks).

    The marks are 0.0 or 1.0, (batch, num_kv_heads, kv_len, marks).
    """
    work = work_of(problem)
    marks = marks.flatten(0, 1)
    total = marks.new_zeros(*work.extent[:3], marks.shape[2])
    for tile, part, hidden, _ in parts(work, None):
        queries, keys = tile.shape
        seen = marks.new_ones(length(part.folded), work.group * queries, keys)
        for columns, where in hidden:
            by_head(part, seen)[..., columns].masked_fill_(where, 0.0)
        place = part.rows, part.heads, tile.queries
        counts = torch.bmm(seen, keys_of(marks[part.folded], tile))
        total[place] = counts.view(total[place].shape)
    return total


class _Blockwise(torch.autograd.Function):
    """Both passes of a finite problem for autograd; the result is in the precision of sums."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
        tensor: Tensor | None,
        work: Work,
    ) -> tuple[Tensor, Tensor]:
        """Return the context and the logsumexp of each query, (batch, num_heads, query_len), including the sinks.

        `tensor` is that of the bias, or None; the inputs are saved.
        """
        context, total, sums = forward(work, query, key, value, sinks)
        kept = None if sinks is None else context
        ctx.save_for_backward(query, key, value, sinks, tensor, kept, *sums)
        ctx.work = work
        ctx.set_materialize_grads(False)
        return context, total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of query, key, value, sinks and bias tensor; None where none is needed."""
        wanted = tuple(ctx.needs_input_grad[:5])
        return *_Gradients.apply(ctx.work, wanted, *ctx.saved_tensors, *grads), None


class _Gradients(torch.autograd.Function):
    """The backward pass, whose gradients cannot be differentiated."""

    @staticmethod
    def forward(
        ctx: Any, work: Work, wanted: tuple[bool, ...], *tensors: Any
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients that `wanted` selects, None for the others.

        The tensors are those of `Saved`, and then the gradients of context and logsumexp, which may be None.
        """
        saved, grads = Saved(*tensors[:-2]), tensors[-2:]
        if not is_autocast(saved.query):
            return backward(work, wanted, saved, *grads)
        with torch.autocast(work.extent.device.type, enabled=False):
            return backward(work, wanted, saved, *grads)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Raise UnsupportedError: this kernel has first derivatives only."""
        raise UnsupportedError(
            "kernel.second-derivative",
            'kernel="blockwise" has first derivatives only; kernel="eager" has all of them.',
        )
