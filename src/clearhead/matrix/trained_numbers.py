"""Numbers of the weights with gradients, in chunks of queries: entropy, and the divergences of two matrices."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from clearhead import stages
from clearhead.attention.problem import Problem
from clearhead.matrix.parts import Rectangle, masked_scores, portion_of


class _OfChunks(torch.autograd.Function):
    """The results of a function of chunks of queries, each computed again in the backward pass.

    All chunks are one node of the graph. The nodes of a checkpoint of each chunk would stay in memory between its large
    tensors, and the next chunk would not fit into the gaps that these leave: gigabytes at 16 384 tokens.
    """

    @staticmethod
    def forward(ctx: Any, of_chunk: Any, chunks: Sequence[Tensor], *tensors: Any) -> Any:
        """Return a result for each chunk: of_chunk(chunk, *tensors)."""
        ctx.of_chunk, ctx.chunks = of_chunk, chunks
        ctx.save_for_backward(*tensors)
        return tuple(of_chunk(some, *tensors) for some in chunks)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Return the gradients of the tensors, None for those that have none."""
        again, needed = torch.is_grad_enabled(), ctx.needs_input_grad[2:]
        with torch.enable_grad():
            # Views, so that a tensor that another one is made of gets no more than its own gradient.
            views = [each if each is None else each.view_as(each) for each in ctx.saved_tensors]
            trained: Any = [view for view, need in zip(views, needed, strict=True) if need]
            sums = [torch.zeros_like(each) for each in trained]
            for some, grad in zip(ctx.chunks, grads, strict=True):
                made = ctx.of_chunk(some, *views)
                found = torch.autograd.grad(made, trained, grad, create_graph=again)
                sums = [total.add_(each) for total, each in zip(sums, found, strict=True)]
        rest = iter(sums)
        return None, None, *(next(rest) if need else None for need in needed)


def by_queries(problems: Sequence[Problem], function: Callable[..., Tensor]) -> list[Tensor]:
    """Return the results of a function for every chunk of queries, in order, with gradients.

    A chunk is computed again in the backward pass, so that memory is O(tokens) and that of one chunk. PyTorch raises an
    error there if query or key was written to.

    Args:
        problems: of one shape.
        function: called with the int64 indices of some queries, and for each problem with the logarithms of their
            weights, (batch, num_heads, queries, kv_len), −∞ for hidden pairs.
    """
    first = problems[0]
    sizes = first.batch, first.num_heads, first.query_len, first.kv_len
    part = Rectangle(*(torch.arange(size, device=first.device) for size in sizes))
    tensors = [each for problem in problems for each in (problem.query, problem.key, problem.sinks)]

    def of_chunk(some: Tensor, *tensors: Any) -> Tensor:
        """Return the result for some queries, of problems with these tensors."""
        logs = []
        for at, problem in enumerate(problems):
            query, key, sinks = tensors[3 * at : 3 * at + 3]
            scores = masked_scores(problem.replace(query=query, key=key), part._replace(rows=some))
            logs.append(stages.weights(scores, sinks, log=True))
        with torch.autocast(first.device.type, enabled=False):  # as in the backward pass
            return function(some, *logs)

    chunks = part.rows.split(min(portion_of(each, part, each.kv_len) for each in problems))
    if any(each.bias is not None and each.bias.requires_grad for each in problems):
        again: Any = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
        return [again(of_chunk, some, *tensors) for some in chunks]
    return list(_OfChunks.apply(of_chunk, chunks, *tensors))


def entropy_of(_: Tensor, logs: Tensor) -> Tensor:
    """Return −Σ weight · ln weight over the keys, from the logarithms of the weights."""
    return -(logs.exp() * logs.masked_fill(logs == -torch.inf, 0.0)).sum(dim=-1)


def _kullback_leibler(_: Tensor, logs: Tensor, others: Tensor) -> Tensor:
    """Return Σ weight · ln(weight / other) over the keys, from the logarithms of both weights.

    +∞, without a gradient, if a visible key is hidden in the other.
    """
    hidden, absent = logs == -torch.inf, others == -torch.inf
    ratios = (logs - others).masked_fill(hidden | absent, 0.0)
    divergence = (logs.exp() * ratios).sum(dim=-1)
    return divergence.masked_fill((absent & ~hidden).any(dim=-1), torch.inf)


def _from_mean(logs: Tensor, others: Tensor) -> Tensor:
    """Return Σ weight · ln(weight / mean of weight and other) over the keys, from the logarithms of both weights."""
    ratios = (others - logs).masked_fill(logs == -torch.inf, 0.0)
    shares = math.log(2) - torch.logaddexp(ratios.new_zeros(()), ratios)
    return (logs.exp() * shares).sum(dim=-1)


def _jensen_shannon(_: Tensor, logs: Tensor, others: Tensor) -> Tensor:
    """Return the mean divergence of both from their mean, over the keys."""
    return (_from_mean(logs, others) + _from_mean(others, logs)) / 2


DIVERGENCES = {"kl": _kullback_leibler, "js": _jensen_shannon}
