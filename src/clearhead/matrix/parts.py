"""Parts of the weights, computed from query and key: a rectangle, or chosen pairs."""

import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from clearhead import stages
from clearhead._common.layouts import key_heads
from clearhead._text import format_bytes
from clearhead.attention.biases import Bias, DenseBias
from clearhead.attention.problem import Problem
from clearhead.errors import TooLargeError, UnsupportedError
from clearhead.masks.base import Mask
from clearhead.masks.dense import dense
from clearhead.matrix.indexing import as_indices, runs, take

PORTION = 1 << 21
"""Chunk size in weights."""


class Rectangle(NamedTuple):
    """A part of the weights: for each axis the int64 indices of samples, heads, queries (rows) and keys (columns)."""

    samples: Tensor
    heads: Tensor
    rows: Tensor
    columns: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of samples, heads, rows and columns."""
        return tuple(map(len, self))


def rectangle(problem: Problem, *given: Tensor | slice) -> Rectangle:
    """Return a part of the weights: slices or int64 indices of samples, heads, queries and keys; without one, all."""
    sizes = problem.batch, problem.num_heads, problem.query_len, problem.kv_len
    axes: Any = zip_longest(given, sizes, fillvalue=slice(None))
    return Rectangle(*(as_indices(each, size, problem.device) for each, size in axes))


def check_fits(part: Rectangle, dtype: torch.dtype) -> None:
    """Raise TooLargeError, code `matrix.too-large`, if twice the size of a part in `dtype` exceeds the free memory."""
    device = part.rows.device
    wanted = math.prod(part.shape) * dtype.itemsize
    free = free_bytes(device)
    # Next to the result, the portions of it are held once more while they are put together.
    if 2 * wanted > free:
        raise TooLargeError(
            "matrix.too-large",
            f"{' × '.join(map(str, part.shape))} weights take {format_bytes(wanted)}, and twice "
            f"that while they are put together; {format_bytes(free)} are free on {device}. "
            "Index the rows, keys or heads that you need.",
        )


def free_bytes(device: torch.device) -> int:
    """Return the number of free bytes of memory on a GPU, or of the host for other devices.

    For the host it is the physical memory if the free memory is unknown.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as lines:
            found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
            return int(found[0]) * 1024
    except (OSError, IndexError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def is_narrow(problem: Problem, part: Rectangle, *, known: bool) -> bool:
    """Return True if a part is cheaper from the logsumexp of all queries than from every key.

    False if the part has every key. True for fewer keys if the logsumexp is known, or if the queries are many.

    Args:
        problem: the problem.
        part: the part.
        known: True if the logsumexp has been computed.
    """
    if len(part.columns) == problem.kv_len:
        return False
    most = max(_portion(problem, part, problem.kv_len), problem.query_len // 8)
    return known or len(part.rows) > most


def is_one_portion(problem: Problem, part: Rectangle) -> bool:
    """Return True if all queries of a part fit one chunk of PORTION weights, against every key."""
    return len(part.rows) <= _portion(problem, part, problem.kv_len)


def from_logsumexp(problem: Problem, part: Rectangle, total: Tensor) -> Tensor:
    """Return the weights of a part, (samples, heads, rows, columns), from its scores and the logsumexp of its heads.

    `total` is (samples, heads, query_len), without sinks.
    """
    # A bias may be computed for all keys between the first and the last.
    wide = len(part.columns) if problem.bias is None else problem.kv_len
    found = []
    for some in part.rows.split(_portion(problem, part, wide)):
        scores = masked_scores(problem, part._replace(rows=some))
        found.append(weights_from(problem, scores, total[:, :, some], part.heads))
    return torch.cat(found, dim=2) if len(found) > 1 else found[0]


def from_every_key(problem: Problem, part: Rectangle) -> Tensor:
    """Return the weights of a part, (samples, heads, rows, columns), by a softmax of its queries over every key."""
    every = torch.arange(problem.kv_len, device=problem.device)
    sinks = None if problem.sinks is None else problem.sinks[part.heads]
    found = []
    for some in part.rows.split(_portion(problem, part, problem.kv_len)):
        scores = masked_scores(problem, part._replace(rows=some, columns=every))
        found.append(take(stages.weights(scores, sinks), 3, part.columns))
    return torch.cat(found, dim=2) if len(found) > 1 else found[0]


class _OfChunks(torch.autograd.Function):
    """The results of a function of chunks of queries, each computed again in the backward pass.

    All chunks are one node of the graph. The nodes of a checkpoint of each chunk would stay in memory between its large
    tensors, and the next chunk would not fit into the gaps that these leave: gigabytes at 16 384 tokens.
    """

    @staticmethod
    def forward(ctx: Any, of_chunk: Any, chunks: Sequence[Tensor], *tensors: Any) -> Any:
        """Return of_chunk(chunk, *tensors) for each chunk, as a tuple; the tensors are saved."""
        ctx.of_chunk, ctx.chunks = of_chunk, chunks
        ctx.save_for_backward(*tensors)
        return tuple(of_chunk(some, *tensors) for some in chunks)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Return the gradients of the tensors, None for those that need none and for the other inputs.

        Each chunk is computed again.
        """
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
    part = rectangle(problems[0])
    tensors = [each for problem in problems for each in (problem.query, problem.key, problem.sinks)]

    def of_chunk(some: Tensor, *tensors: Any) -> Tensor:
        """Return the result for some queries, of problems with these tensors."""
        logs = []
        for at, problem in enumerate(problems):
            query, key, sinks = tensors[3 * at : 3 * at + 3]
            scores = masked_scores(problem.replace(query=query, key=key), part._replace(rows=some))
            logs.append(stages.weights(scores, sinks, log=True))
        with torch.autocast(some.device.type, enabled=False):  # as in the backward pass
            return function(some, *logs)

    chunks = part.rows.split(min(_portion(each, part, each.kv_len) for each in problems))
    if any(each.bias is not None and each.bias.requires_grad for each in problems):
        again: Any = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
        return [again(of_chunk, some, *tensors) for some in chunks]
    return list(_OfChunks.apply(of_chunk, chunks, *tensors))


def _portion(problem: Problem, part: Rectangle, keys: int) -> int:
    """Return the number of queries in a chunk of PORTION weights with `keys` keys, at least 1."""
    # Masks and biases are computed for all of their samples and heads.
    of_mask = 1 if problem.mask is None else math.prod(problem.mask.leading)
    of_bias = 1 if problem.bias is None else problem.num_heads
    wide = max(len(part.samples) * len(part.heads), of_mask, of_bias, 1)
    return max(1, PORTION // (wide * max(1, keys)))


def masked_scores(problem: Problem, part: Rectangle) -> Tensor:
    """Return the masked scores of a rectangle, (samples, heads, rows, columns), upcast."""
    samples, heads, rows, columns = part
    group = problem.num_heads // problem.num_kv_heads
    query = take(take(take(problem.query, 0, samples), 1, heads), 2, rows)
    key = take(take(take(problem.key, 0, samples), 1, heads // group), 2, columns)
    at = rows.view(1, 1, -1, 1), columns.view(1, 1, 1, -1), problem.extent
    visible = None if problem.mask is None else _chosen(problem.mask.visible(*at), part)
    scores = stages.scores(query, key, problem.factor)
    capped = stages.capped_scores(stages.scaled_scores(scores, problem.scale), problem.softcap)
    return stages.masked_scores(capped, _bias(problem, part), visible)


def _chosen(tensor: Tensor, part: Rectangle) -> Tensor:
    """Return the samples and heads of a part of a tensor (batch or 1, num_heads or 1, …); an axis of 1 stays."""
    for axis, indices in enumerate((part.samples, part.heads)):
        tensor = take(tensor, axis, indices) if tensor.shape[axis] > 1 else tensor
    return tensor


def _bias(problem: Problem, part: Rectangle) -> Tensor | None:
    """Return the bias of a rectangle, (samples or 1, heads or 1, rows, columns); None without a bias."""
    if problem.bias is None:
        return None
    rows, columns = part.rows, part.columns
    first, stop = (int(columns.min()), int(columns.max()) + 1) if columns.numel() else (0, 0)
    blocks = []
    for run in runs(rows) or [slice(0, 0)]:
        block = _chosen(problem.bias.block(run, slice(first, stop), problem.extent), part)
        block = block.expand(-1, -1, run.stop - run.start, stop - first)
        blocks.append(take(block, 3, columns - first))
    return torch.cat(blocks, dim=2) if len(blocks) > 1 else blocks[0]


def weights_from(problem: Problem, scores: Tensor, total: Tensor, heads: Tensor) -> Tensor:
    """Return the weights of a rectangle, from its masked scores and the logsumexp of its queries.

    0 for hidden pairs, NaN for queries whose logsumexp is NaN or +∞.

    Args:
        problem: the problem, for the sinks.
        scores: (samples, heads, rows, columns).
        total: (samples, heads, rows), without sinks.
        heads: int64, the query heads of the rectangle.
    """
    if problem.sinks is not None:
        sinks = stages.upcast(problem.sinks)[heads]
        total = torch.logaddexp(total, sinks[:, None].expand_as(total))
    hidden = scores == -torch.inf
    # As in the stages: a query whose scores are no numbers gets NaN, and sends no gradient.
    broken = ~(total < torch.inf)
    total = total.masked_fill(broken | (total == -torch.inf), 0.0)
    shares = torch.exp(scores.masked_fill(broken[..., None], 0.0) - total[..., None])
    return shares.masked_fill(broken[..., None], torch.nan).masked_fill(hidden, 0.0)


def pairs(problem: Problem, queries: Tensor, keys: Tensor, total: Tensor) -> Tensor:
    """Return the weights of pairs, (batch, num_heads, pairs), in chunks.

    Args:
        problem: the problem.
        queries: int64, (batch or 1, pairs).
        keys: the same for the keys.
        total: the logsumexp without sinks, (batch, num_heads, query_len).
    """
    portion = max(1, PORTION // max(1, problem.query[:, :, :1].numel()))
    chunks = zip(queries.split(portion, dim=1), keys.split(portion, dim=1), strict=True)
    found = [_pairs(problem, *chunk, total) for chunk in chunks]
    return torch.cat(found, dim=2) if len(found) > 1 else found[0]


def _pairs(problem: Problem, queries: Tensor, keys: Tensor, total: Tensor) -> Tensor:
    """Return the weights of pairs, (batch, num_heads, pairs), without chunks, by one dot product per pair."""
    query = stages.upcast(_rows(problem.query, queries))
    key = stages.upcast(_rows(problem.key, keys))
    # Grouped heads share a key; a head of the group is an axis of its own here.
    query, key = query.unflatten(1, (problem.num_kv_heads, -1)), key[:, :, None]
    with torch.autocast(problem.device.type, enabled=False):
        if stages.rows_finite(query.detach(), problem.factor) and stages.rows_finite(key.detach()):
            raw = torch.linalg.vecdot(query, key)
        else:
            queries_out = stages.nonfinite_rows(query, problem.factor)
            keys_out = stages.nonfinite_rows(key)
            raw = torch.linalg.vecdot(
                stages.zero_rows(query, queries_out), stages.zero_rows(key, keys_out)
            )
            raw = raw.masked_fill(queries_out | keys_out, torch.nan)
    raw = raw.flatten(1, 2)
    at = queries[:, None, None, :], keys[:, None, None, :], problem.extent
    bias = None if problem.bias is None else problem.bias.at(*at)
    visible = None if problem.mask is None else problem.mask.visible(*at)
    capped = stages.capped_scores(stages.scaled_scores(raw, problem.scale), problem.softcap)
    masked = stages.masked_scores(capped[:, :, None], bias, visible)
    total = torch.take_along_dim(total, queries[:, None], dim=2)
    every = torch.arange(problem.num_heads, device=problem.device)
    # Every pair is a row of its own, with one key.
    return weights_from(problem, masked.mT, total, every)[..., 0]


def _rows(tensor: Tensor, index: Tensor) -> Tensor:
    """Return the rows of (batch, heads, len, dim) at indices (batch or 1, pairs): (batch, heads, pairs, dim).

    It is a view if the indices are the same for all samples and are neighbours or all equal.
    """
    if index.shape[0] == 1:
        places = index[0]
        steps = places.diff()
        if len(places) and bool((steps == 1).all()):
            return tensor.narrow(2, int(places[0]), len(places))  # a diagonal; nothing is copied
        if len(places) and not bool(steps.any()):
            return tensor.narrow(2, int(places[0]), 1).expand(-1, -1, len(places), -1)
        return tensor.index_select(2, places)
    # Whole rows are copied this way, and not number by number.
    sample = torch.arange(tensor.shape[0], device=tensor.device)[:, None, None]
    head = torch.arange(tensor.shape[1], device=tensor.device)[:, None]
    return tensor[sample, head, index[:, None]]


def visible_pairs(problem: Problem, queries: slice) -> Tensor | None:
    """Return which pairs of a slice of queries neither the mask nor a bias of −∞ hides; None if nothing can hide.

    It is bool, (batch or 1, num_heads or 1, queries, kv_len).
    """
    visible = problem.visible(queries)
    if problem.bias is None or not problem.bias.may_hide:
        return visible
    bias = problem.bias_block(queries)
    assert bias is not None
    shown = (bias != -torch.inf).expand(-1, -1, queries.stop - queries.start, problem.kv_len)
    return shown if visible is None else visible & shown


def some_heads(problem: Problem, heads: Sequence[int]) -> Problem:
    """Return the problem restricted to some query heads, by index, with a key head and value for each of them."""
    picked = torch.tensor(heads, dtype=torch.int64, device=problem.device)
    of_keys = key_heads(picked, problem.num_heads // problem.num_kv_heads)
    key = problem.key[:, of_keys]
    return problem.replace(
        query=problem.query[:, picked],
        key=key,
        value=key if problem.value is problem.key else problem.value[:, of_keys],
        mask=_mask_of_heads(problem, picked),
        bias=_bias_of_heads(problem, picked),
        sinks=None if problem.sinks is None else problem.sinks[picked],
    )


def _mask_of_heads(problem: Problem, heads: Tensor) -> Mask | None:
    """Return the mask of the given heads, int64 indices; the mask itself, or None, if it is the same for all heads."""
    # Only a tensor differs from head to head, so the tensor of a part of them is no larger.
    if problem.mask is None or problem.mask.heads is None:
        return problem.mask
    visible = problem.visible()
    assert visible is not None
    return dense(unbroadcast(visible)[:, heads])


def _bias_of_heads(problem: Problem, heads: Tensor) -> Bias | None:
    """Return the bias of the given heads, int64 indices; None without a bias.

    A bias of a user's class that cannot select heads becomes a tensor, or stays if it is the same for all heads.
    """
    if problem.bias is None:
        return None
    try:
        return problem.bias.of_heads(heads).within(problem.query.dtype)
    except UnsupportedError:  # a bias of the user's own; its tensor can be split by head
        block = problem.bias_block()
        assert block is not None
        return problem.bias if block.shape[1] == 1 else DenseBias(block).of_heads(heads)


def unbroadcast(tensor: Tensor) -> Tensor:
    """Return a view of a tensor, (batch, heads, queries, keys), with size 1 in each of the first three of stride 0."""
    for axis in range(3):
        if tensor.shape[axis] > 1 and tensor.stride(axis) == 0:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def entropy_of(_queries: Tensor, logs: Tensor) -> Tensor:
    """Return −Σ weight · ln weight over the keys, the last axis, from the logarithms of the weights.

    It is a function for `by_queries`.
    """
    return -(logs.exp() * logs.masked_fill(logs == -torch.inf, 0.0)).sum(dim=-1)
