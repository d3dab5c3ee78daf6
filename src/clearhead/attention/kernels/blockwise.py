"""Attention block by block in plain PyTorch, with gradients and without queries × keys
(Dao et al., 2022, https://arxiv.org/abs/2205.14135).

A block is some neighbouring queries and the keys that one of them sees. Blocks in which nobody sees
anything are never visited, and only the ragged edges of the others are masked. The backward pass
makes the weights anew from the logsumexp, block by block, so that a call holds O(tokens) numbers
between the passes and the scores of one block at a time within them.
"""

import bisect
import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.text import format_bytes
from clearhead._common.torch_internals import is_autocast, softmax_backward_
from clearhead.attention.biases import Alibi, Bias, DenseBias, Relative
from clearhead.attention.problem import Problem
from clearhead.errors import UnsupportedError
from clearhead.masks.base import Mask
from clearhead.masks.spans import Spans

NAME = "blockwise"
SUMMARY = "block by block in plain PyTorch, with every option; memory grows with tokens"

ROWS = 64
"""How many rows of scores the queries of a block have for each key head, as far as LEAST_QUERIES
allows: with fewer the products are slow, with more a window reads too many keys."""

LEAST_QUERIES = 32

BUFFER = 1 << 20
"""How many scores there are at a time, unless a single key head has more."""

SMALL = 1 << 16
"""Samples with masks of their own share a block while it has fewer scores than this."""

WORTH_CUTTING = 1 << 15
"""How many scores fewer are worth one more block."""

GAP = 32
"""Runs of keys with fewer keys between them are read as one."""


class Block(NamedTuple):
    """Some queries of some samples, and the keys that one of them sees.

    Attributes:
        rows: which samples.
        queries: which queries.
        keys: which keys, as runs in order; never none.
        seen: the keys within these that every query sees.
    """

    rows: slice
    queries: slice
    keys: tuple[slice, ...]
    seen: slice

    @property
    def shape(self) -> tuple[int, int]:
        return _length(self.queries), sum(map(_length, self.keys))


class Part(NamedTuple):
    """What is computed at a time of a block: some samples with all heads, or some heads of one."""

    rows: slice
    heads: slice
    folded: slice
    """The same as indices into batch · num_kv_heads."""


@dataclasses.dataclass(frozen=True)
class Work:
    """A problem without its tensors: what both passes need to know.

    Attributes:
        mask, bias, scale, softcap, dropout: those of the problem.
        spans: the runs of keys of each query; None if the mask has no such description.
        blocks: in the order of the queries.
        seed: of the pattern of dropout.
    """

    batch: int
    num_heads: int
    num_kv_heads: int
    query_len: int
    kv_len: int
    device: torch.device
    mask: Mask | None
    bias: Bias | None
    scale: float
    softcap: float | None
    dropout: float | None
    spans: Spans | None
    blocks: list[Block]
    seed: int

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def largest(self) -> int:
        """How many scores there are at a time at most."""
        most = 0
        for block in self.blocks:
            queries, keys = block.shape
            one = self.group * queries * keys
            many = _length(block.rows) * self.num_kv_heads * one
            most = max(most, min(many, max(one, BUFFER)))
        return most


def refusals(problem: Problem) -> list[str]:
    """Why this kernel cannot run the problem, a line each; empty if it can."""
    reasons = []
    if not problem.readable:
        reasons.append(
            "tensors that cannot be read: blocks are found by reading the mask, which "
            "torch.compile, torch.func and the meta device do not allow"
        )
    elif problem.has_tangents:
        reasons.append("forward-mode derivatives: this kernel has the backward pass only")
    bias = problem.bias
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
    """Why another kernel is to be preferred to this one, where both can: nothing is."""
    return []


def how(problem: Problem) -> str:
    """What a run of the problem does, in a line."""
    work = _work(problem)
    width = stages.upcast(problem.query[:0]).dtype.itemsize
    count = len(work.blocks)
    shapes = [block.shape for block in work.blocks]
    queries, keys = (max((shape[axis] for shape in shapes), default=0) for axis in (0, 1))
    return (
        f"{count} {'block' if count == 1 else 'blocks'} of up to {queries} queries × {keys} keys; "
        f"the largest part takes {format_bytes(work.largest * width)}"
    )


def attend(problem: Problem) -> Tensor:
    """The context, (batch, num_heads, query_len, value_head_dim).

    Second derivatives are refused: see `UnsupportedError`, code `kernel.second-derivative`.
    """
    return _without_autocast(problem, _attend)


def logsumexp(problem: Problem) -> Tensor:
    """log Σ exp of the masked scores of each query, (batch, num_heads, query_len), in the
    precision of sums."""
    return _without_autocast(problem, _logsumexp)


def _without_autocast(problem: Problem, compute: Any) -> Tensor:
    # The tensors have been brought to their precision; sums are not to be lowered.
    if not is_autocast(problem.query):
        return compute(problem)
    with torch.autocast(problem.device.type, enabled=False):
        return compute(problem)


def _attend(problem: Problem) -> Tensor:
    query, key, value = problem.query, problem.key, problem.value
    seed = 0
    if problem.dropout is not None:
        seed = int(torch.randint(1 << 62, (), device=problem.device))
    work = _work(problem, seed)
    tensor = _tensor_of(problem)
    known = problem.keys_finite
    if stages.all_finite(query) and (
        known or (stages.all_finite(key) and stages.all_finite(value))
    ):
        context, _ = _Blockwise.apply(query, key, value, problem.sinks, tensor, work)
        return context.to(query.dtype)
    # As in the definition: the finite part is computed with, and NaN is put where the rest shows.
    zeroed = (stages.zero_nonfinite(each) for each in (query, key, value))
    context, _ = _Blockwise.apply(*zeroed, problem.sinks, tensor, work)
    with torch.no_grad():
        shows = _shows(work, query, key, value)
    return context.masked_fill(shows, torch.nan).to(query.dtype)


def _logsumexp(problem: Problem) -> Tensor:
    query, key = problem.query, problem.key
    work = _work(problem.replace(dropout=None))
    # No value is wanted: one of width 0 costs nothing.
    nothing = key[..., :0]
    tensor = _tensor_of(problem)
    if stages.all_finite(query) and (problem.keys_finite or stages.all_finite(key)):
        return _Blockwise.apply(query, key, nothing, None, tensor, work)[1]
    _, total = _Blockwise.apply(
        stages.zero_nonfinite(query), stages.zero_nonfinite(key), nothing, None, tensor, work
    )
    with torch.no_grad():
        shows = _shows(work, query, key, key[..., :1])[..., 0]
    return total.masked_fill(shows, torch.nan)


def _tensor_of(problem: Problem) -> Tensor | None:
    """The tensor that a bias is made of, where gradients can be had for it."""
    bias = problem.bias
    if isinstance(bias, Alibi) and bias.follows:
        return None  # the slopes of the paper, which go to any device, and are never trained
    return bias.numbers if isinstance(bias, DenseBias | Alibi | Relative) else None


def _with_tensor(bias: Bias | None, tensor: Tensor | None) -> Bias | None:
    """The bias, made of the tensor that autograd has kept of it."""
    if tensor is None:
        return bias
    if isinstance(bias, DenseBias):
        return DenseBias(tensor)
    return Relative(tensor) if isinstance(bias, Relative) else Alibi(tensor, follows=False)


def _length(some: slice) -> int:
    return some.stop - some.start


def _work(problem: Problem, seed: int = 0) -> Work:
    return Work(
        problem.batch,
        problem.num_heads,
        problem.num_kv_heads,
        problem.query_len,
        problem.kv_len,
        problem.device,
        problem.mask,
        problem.bias,
        problem.scale,
        problem.softcap,
        problem.dropout,
        problem.spans,
        list(_blocks(problem, problem.spans)),
        seed,
    )


def _blocks(problem: Problem, spans: Spans | None) -> Iterator[Block]:
    """All blocks in which somebody sees something."""
    batch, query_len, kv_len = problem.batch, problem.query_len, problem.kv_len
    if not batch * query_len * kv_len:
        return
    queries = max(LEAST_QUERIES, ROWS * problem.num_kv_heads // problem.num_heads)
    everybody = slice(0, batch)
    if spans is None:
        for first in range(0, query_len, queries):
            some = slice(first, min(first + queries, query_len))
            if problem.mask is None:
                every = slice(0, kv_len)
                yield Block(everybody, some, (every,), every)
            else:
                keys = _runs_of(problem, some)
                if keys:
                    yield Block(everybody, some, keys, slice(0, 0))
        return
    start, stop = spans.start, spans.stop
    if bool((start == start[:1]).all()) and bool((stop == stop[:1]).all()):
        yield from _blocks_of_spans(problem, start[:1], stop[:1], everybody, queries)
        return
    scores = problem.num_heads * min(queries, query_len) * kv_len
    together = max(1, SMALL // scores)
    for first in range(0, batch, together):
        rows = slice(first, min(first + together, batch))
        yield from _blocks_of_spans(problem, start[rows], stop[rows], rows, queries)


def _runs_of(problem: Problem, queries: slice) -> tuple[slice, ...]:
    """The keys that one of the queries sees, by the mask as a tensor."""
    visible = problem.visible(queries)
    assert visible is not None
    steps = torch.nn.functional.pad(visible.any(0).any(0).any(0).int(), (1, 1)).diff()
    return _merged((steps == 1).nonzero()[:, 0], (steps == -1).nonzero()[:, 0])


def _merged(start: Tensor, stop: Tensor) -> tuple[slice, ...]:
    """Runs of keys in order, those near each other as one."""
    if not start.numel():
        return ()
    start, order = start.sort()
    stop = stop[order].cummax(0).values
    apart = (start[1:] > stop[:-1] + GAP).nonzero()[:, 0].tolist()
    firsts, lasts = [0, *(place + 1 for place in apart)], [*apart, len(start) - 1]
    pairs = zip(start[firsts].tolist(), stop[lasts].tolist(), strict=True)
    return tuple(slice(low, high) for low, high in pairs)


def _blocks_of_spans(
    problem: Problem, start: Tensor, stop: Tensor, rows: slice, most: int
) -> Iterator[Block]:
    """Blocks of samples whose runs are (samples, query_len, pieces)."""
    used = stop > start
    one_run = start.shape[2] == 1
    # Who sees nothing draws the edges inwards, so that everything is masked for them.
    starts, stops = start.masked_fill(~used, problem.kv_len), stop.masked_fill(~used, 0)
    low, high = starts.amin((0, 2)), stops.amax((0, 2))
    apart = (high[:-1] <= low[1:]) | (high[1:] <= low[:-1])
    breaks = (apart.nonzero()[:, 0] + 1).tolist()
    low, high = low.tolist(), high.tolist()
    left, right = starts.amax((0, 2)).tolist(), stops.amin((0, 2)).tolist()
    worth = WORTH_CUTTING / (problem.num_heads * _length(rows))
    first = 0
    while first < problem.query_len:
        last = min(first + most, problem.query_len)
        near = breaks[bisect.bisect_right(breaks, first) : bisect.bisect_left(breaks, last)]
        last = _cut(low, high, first, last, near, worth)
        queries = slice(first, last)
        if one_run:
            keys: tuple[slice, ...] = ()
            if min(low[queries]) < max(high[queries]):
                keys = (slice(min(low[queries]), max(high[queries])),)
            seen = slice(max(left[queries]), min(right[queries]))
        else:
            some = used[:, queries]
            keys, seen = _merged(start[:, queries][some], stop[:, queries][some]), slice(0, 0)
        if keys:
            yield Block(rows, queries, keys, seen)
        first = last


def _cut(
    low: list[int], high: list[int], first: int, last: int, places: list[int], worth: float
) -> int:
    """Where a block of queries ends best, if neighbours at `places` have no key in common."""

    def scores(start: int, stop: int) -> int:
        return (stop - start) * max(0, max(high[start:stop]) - min(low[start:stop]))

    best, least = last, scores(first, last) - worth if places else 0.0
    for place in places:
        together = scores(first, place) + scores(place, last)
        if together < least:
            best, least = place, together
    return best


def _parts(
    work: Work, bias: Bias | None
) -> Iterator[tuple[Block, Part, list[tuple[slice, Tensor]], Tensor | None]]:
    """All parts of all blocks, in the order of both passes: with the rectangles of them that are
    hidden, and the bias."""
    for block in work.blocks:
        hidden = _hidden(work, block)
        added = _added(work, bias, block)
        queries, keys = block.shape
        many = max(1, BUFFER // (work.group * queries * keys))
        for part in _split(work, block.rows, many):
            some = [(columns, _of_part(where, block, part)) for columns, where in hidden]
            yield block, part, some, None if added is None else _of_part(added, block, part)


def _split(work: Work, rows: slice, many: int) -> Iterator[Part]:
    """Samples with all heads, or heads of one sample, `many` key heads at a time."""
    kv_heads, group = work.num_kv_heads, work.group
    if many >= kv_heads:
        for first in range(rows.start, rows.stop, many // kv_heads):
            some = slice(first, min(first + many // kv_heads, rows.stop))
            folded = slice(some.start * kv_heads, some.stop * kv_heads)
            yield Part(some, slice(0, work.num_heads), folded)
        return
    for row in range(rows.start, rows.stop):
        for first in range(0, kv_heads, many):
            last = min(first + many, kv_heads)
            heads = slice(first * group, last * group)
            yield Part(
                slice(row, row + 1), heads, slice(row * kv_heads + first, row * kv_heads + last)
            )


def _of_part(tensor: Tensor, block: Block, part: Part) -> Tensor:
    """What a tensor of the samples of a block says of a part; axes of size 1 are for all."""
    if tensor.shape[0] > 1:
        first = block.rows.start
        tensor = tensor[part.rows.start - first : part.rows.stop - first]
    return tensor[:, part.heads] if tensor.shape[1] > 1 else tensor


def _hidden(work: Work, block: Block) -> list[tuple[slice, Tensor]]:
    """Columns of a block, and which of their pairs are hidden, where some are."""
    if work.mask is None:
        return []
    if work.spans is None:
        parts = [
            work.mask.block(block.queries, run, work.query_len, work.kv_len, work.device)
            for run in block.keys
        ]
        visible = parts[0] if len(parts) == 1 else torch.cat(parts, dim=3)
        visible = visible[block.rows] if visible.shape[0] > 1 else visible
        return [(slice(0, visible.shape[3]), ~visible)]
    rows = block.rows if work.spans.start.shape[0] > 1 else slice(0, 1)
    start, stop = (edge[rows, block.queries] for edge in (work.spans.start, work.spans.stop))
    if block.seen.start < block.seen.stop:
        # Keys before those that all see come too early for some queries, those after them too late.
        (run,) = block.keys
        early, late = slice(run.start, block.seen.start), slice(block.seen.stop, run.stop)
        edges = ((early, torch.lt, start), (late, torch.ge, stop))
        return [
            (
                slice(edge.start - run.start, edge.stop - run.start),
                comes(_indices(edge, work.device), limit)[:, None],
            )
            for edge, comes, limit in edges
            if edge.start < edge.stop
        ]
    key = torch.cat([_indices(run, work.device) for run in block.keys])
    seen = (key >= start[..., :1]) & (key < stop[..., :1])
    for piece in range(1, start.shape[2]):
        seen |= (key >= start[..., piece, None]) & (key < stop[..., piece, None])
    return [(slice(0, key.shape[0]), ~seen[:, None])]


def _indices(some: slice, device: torch.device) -> Tensor:
    return torch.arange(some.start, some.stop, device=device)


def _added(work: Work, bias: Bias | None, block: Block) -> Tensor | None:
    """The bias of a block, in the precision of sums."""
    if bias is None:
        return None
    parts = [
        bias.block(block.queries, run, work.query_len, work.kv_len, work.device)
        for run in block.keys
    ]
    # A bias that is the same for every key has one column, whatever keys are asked for.
    one = any(part.shape[3] < _length(run) for part, run in zip(parts, block.keys, strict=True))
    added = stages.upcast(parts[0] if one or len(parts) == 1 else torch.cat(parts, dim=3))
    return added[block.rows] if added.shape[0] > 1 else added


class _Folded:
    """Tensors with the samples and key heads as one axis, and what is cut from them for a part.

    A head of queries stands below the others that share its key, so that no key is repeated.
    """

    def __init__(self, work: Work, query: Tensor, key: Tensor, value: Tensor) -> None:
        self.query = query.unflatten(1, (work.num_kv_heads, work.group)).flatten(0, 1)
        self.key, self.value = key.flatten(0, 1), value.flatten(0, 1)
        # The cap divides by itself first and multiplies last: the scores come divided.
        self.scale = work.scale if work.softcap is None else work.scale / work.softcap

    def queries(self, block: Block, part: Part) -> Tensor:
        """(folded heads, group · queries, head_dim), scaled."""
        some = stages.upcast(self.query[part.folded, :, block.queries])
        return (some * self.scale).flatten(1, 2)

    def keys(self, block: Block, part: Part) -> tuple[Tensor, Tensor]:
        """(folded heads, keys, head_dim), and the values."""
        return _keys_of(self.key[part.folded], block), _keys_of(self.value[part.folded], block)


def _keys_of(tensor: Tensor, block: Block) -> Tensor:
    parts = [tensor[:, run] for run in block.keys]
    return stages.upcast(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))


class _Sums(NamedTuple):
    """The logsumexp of each query, sinks included, as a sum of two that does not round them.

    exp((score − top) − rest) is the weight again, however large the scores are. Whoever sees nothing
    has rest = ∞, and whoever sees no number has top = NaN as well. Each is (batch, num_heads,
    query_len).
    """

    top: Tensor
    rest: Tensor


class _Buffer:
    """Memory for the scores of a part, used again for the next."""

    def __init__(self, work: Work, like: Tensor) -> None:
        self.memory = like.new_empty(work.largest)

    def view(self, *shape: int) -> Tensor:
        return self.memory[: math.prod(shape)].view(shape)


class _Pattern:
    """What dropout keeps of each part: 1/(1 − dropout) or 0, the same whenever it is asked for."""

    def __init__(self, work: Work, like: Tensor) -> None:
        self.seed, self.device = work.seed, work.device
        # A Python number would divide what is True in float32, also for factors of float64.
        self.kept = torch.tensor(1.0 - (work.dropout or 0.0), dtype=like.dtype)
        # Whole numbers from −2³¹ on, of which those below the threshold are dropped.
        share = round((work.dropout or 0.0) * 2**32)
        self.threshold = min(share - 2**31, 2**31 - 1)
        self.factors = _Buffer(work, like)
        # Two numbers of 32 bits in each of 64 cost a third of what torch.bernoulli does.
        self.numbers = like.new_empty(-(-work.largest // 2), dtype=torch.int64)

    def view(self, number: int, *shape: int) -> Tensor:
        """The factors of part `number`."""
        generator = torch.Generator(self.device).manual_seed(self.seed + number)
        count = math.prod(shape)
        numbers = self.numbers[: -(-count // 2)].random_(-(2**63), None, generator=generator)
        kept = numbers.view(torch.int32)[:count].view(shape) >= self.threshold
        return torch.div(kept, self.kept, out=self.factors.view(*shape))


def _by_head(part: Part, scores: Tensor) -> Tensor:
    """Scores of a part as (samples, heads, queries, keys)."""
    return scores.view(_length(part.rows), _length(part.heads), -1, scores.shape[2])


def _finish_scores(
    part: Part, hidden: list[tuple[slice, Tensor]], added: Tensor | None, scores: Tensor
) -> None:
    by_head = _by_head(part, scores)
    if added is not None:
        by_head.add_(added)
    for columns, where in hidden:
        by_head[..., columns].masked_fill_(where, -torch.inf)


def _forward(
    work: Work, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None
) -> tuple[Tensor, Tensor, _Sums]:
    """The context and the logsumexp with the sinks in it, both in the precision of sums."""
    like = stages.upcast(query[:0])
    # Tokens before heads in memory: what a layer wants next.
    context = like.new_zeros(work.batch, work.query_len, work.num_heads, value.shape[3])
    context = context.transpose(1, 2)
    total = like.new_full((work.batch, work.num_heads, work.query_len), -torch.inf)
    if sinks is not None:
        sinks = stages.upcast(sinks)[:, None]
        total = total.copy_(sinks)
    kept = _Sums(torch.zeros_like(total), torch.full_like(total, torch.inf))
    folded, buffer = _Folded(work, query, key, value), _Buffer(work, like)
    pattern = None if work.dropout is None else _Pattern(work, like)
    for number, (block, part, hidden, added) in enumerate(_parts(work, work.bias)):
        some_query = folded.queries(block, part)
        some_key, some_value = folded.keys(block, part)
        shape = (*some_query.shape[:2], some_key.shape[1])
        scores = torch.bmm(some_query, some_key.mT, out=buffer.view(*shape))
        if work.softcap is not None:
            scores.tanh_().mul_(work.softcap)
        _finish_scores(part, hidden, added, scores)
        place = part.rows, part.heads, block.queries
        top = scores.amax(dim=2, keepdim=True)
        empty, broken = top == -torch.inf, ~(top < torch.inf)
        if sinks is not None:
            sink = sinks[part.heads].expand(_length(part.rows), -1, _length(block.queries))
            sink = sink.reshape(top.shape)
            top = torch.where(broken, top, torch.maximum(top, sink))
        else:
            sink = None
        # Nothing may come of −∞ − −∞.
        base = top.masked_fill(empty & (top == -torch.inf), 0.0)
        weights = scores.sub_(base).exp_()
        sums = weights.sum(dim=2, keepdim=True)
        if sink is not None:
            sums += torch.exp(sink - base)
        rest = sums.log()
        for each, rows in (
            (total, (base + rest).masked_fill(broken, torch.nan)),
            (kept.top, base.masked_fill(broken, torch.nan)),
            (kept.rest, rest.masked_fill(broken | (sums == 0.0), torch.inf)),
        ):
            each[place] = rows.view(each[place].shape)
        if pattern is not None:
            weights.mul_(pattern.view(number, *shape))
        mixed = torch.bmm(weights, some_value)
        mixed.div_(sums.masked_fill(empty, 1.0).masked_fill(broken, torch.nan))
        context[place] = mixed.view(context[place].shape)
    return context, total, kept


def _backward(
    work: Work,
    wanted: tuple[bool, ...],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor | None,
    tensor: Tensor | None,
    context: Tensor | None,
    top: Tensor,
    rest: Tensor,
    grad_context: Tensor | None,
    grad_total: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """The gradients of query, key, value, sinks and the tensor of the bias, where wanted."""
    like = top[:0]
    bias = _with_tensor(work.bias, tensor)
    grad_query = torch.zeros_like(query) if wanted[0] else None
    grad_key, grad_value = (
        torch.zeros(each.flatten(0, 1).shape, dtype=like.dtype, device=work.device)
        if want
        else None
        for each, want in ((key, wanted[1]), (value, wanted[2]))
    )
    grad_sinks = like.new_zeros(work.num_heads) if wanted[3] else None
    grad_bias = _GradBias(work, bias, tensor) if wanted[4] else None
    folded = _Folded(work, query, key, value)
    buffers = [_Buffer(work, like) for _ in range(2 if work.softcap is None else 3)]
    pattern = None if work.dropout is None else _Pattern(work, like)
    broken = top.isnan()
    some_broken = bool(broken.any())
    sums = _Sums(top.masked_fill(broken, 0.0), rest)
    for number, (block, part, hidden, added) in enumerate(_parts(work, bias)):
        some_query = folded.queries(block, part)
        some_key, some_value = folded.keys(block, part)
        shape = (*some_query.shape[:2], some_key.shape[1])
        place = part.rows, part.heads, block.queries
        rows = (*shape[:2], 1)
        capped = None
        # The very product of the forward pass: another order of summation would round otherwise, and
        # the exponential of the difference can be anything where scores are large.
        scores = torch.bmm(some_query, some_key.mT, out=buffers[0].view(*shape))
        if work.softcap is not None:
            capped = torch.tanh(scores, out=buffers[2].view(*shape))
            torch.mul(capped, work.softcap, out=scores)
        _finish_scores(part, hidden, added, scores)
        scores.sub_(sums.top[place].reshape(rows)).sub_(sums.rest[place].reshape(rows))
        if some_broken:
            scores.masked_fill_(broken[place].reshape(rows), -torch.inf)
        weights = scores.exp_()
        grads = buffers[1].view(*shape)
        if grad_context is None:
            grads.zero_()
        else:
            toward = grad_context[place].reshape(*shape[:2], -1)
            torch.bmm(toward, some_value.mT, out=grads)
            if grad_sinks is not None:
                grad_sinks[part.heads] -= _lost(sinks, context, grad_context, sums, place)
            dropped = weights
            if pattern is not None:
                kept = pattern.view(number, *shape)
                grads.mul_(kept)
                dropped = kept.mul_(weights)
            if grad_value is not None:
                _add(grad_value[part.folded], block, dropped.mT, toward)
            # Weights · (gradients − Σ weights · gradients). Context · gradient is that sum too, but
            # rounded differently: where one weight is 1 the difference would not be 0.
            softmax_backward_(grads, weights)
        if grad_total is not None:
            grads.addcmul_(weights, grad_total[place].reshape(rows))
        if grad_bias is not None:
            grad_bias.add(block, part, _by_head(part, grads))
        if capped is not None:
            grads.addcmul_(grads, capped.square_(), value=-1.0)
        if grad_query is not None:
            some_grad = torch.bmm(grads, some_key).mul_(work.scale)
            grad_query[place] = some_grad.view(grad_query[place].shape).to(query.dtype)
        if grad_key is not None:
            _add(grad_key[part.folded], block, grads.mT, some_query, work.softcap or 1.0)
    return (
        grad_query,
        None if grad_key is None else grad_key.view(key.shape).to(key.dtype),
        None if grad_value is None else grad_value.view(value.shape).to(value.dtype),
        None if grad_sinks is None or sinks is None else grad_sinks.to(sinks.dtype),
        None if grad_bias is None else grad_bias.result(),
    )


def _lost(
    sinks: Tensor | None,
    context: Tensor | None,
    grad_context: Tensor,
    sums: _Sums,
    place: tuple[slice, slice, slice],
) -> Tensor:
    """What the queries of a part would gain if the sinks took nothing, for each head."""
    assert sinks is not None
    assert context is not None
    share = stages.upcast(sinks)[place[1], None] - sums.top[place] - sums.rest[place]
    share = share.exp()
    # A query that is broken has no share in the sinks, and NaN as its context.
    lost = (grad_context[place] * context[place]).sum(dim=-1).masked_fill(share == 0.0, 0.0)
    return (share * lost).sum(dim=(0, 2))


def _add(to: Tensor, block: Block, left: Tensor, right: Tensor, factor: float = 1.0) -> None:
    """Add a product to the rows of `to` that are the keys of a block."""
    before = 0
    for run in block.keys:
        to[:, run].baddbmm_(left[:, before : before + _length(run)], right, alpha=factor)
        before += _length(run)


class _GradBias:
    """Gathers the gradient of the tensor that a bias is made of."""

    def __init__(self, work: Work, bias: Bias | None, tensor: Tensor | None) -> None:
        assert bias is not None
        assert tensor is not None
        self.work, self.bias, self.tensor = work, bias, tensor
        whole = (work.batch, work.num_heads, work.query_len, work.kv_len)
        # Numbers that are written once need no precision of sums.
        dtype = tensor.dtype if tensor.shape == whole else stages.upcast(tensor[:0]).dtype
        self.grad = torch.zeros_like(tensor, dtype=dtype)

    def add(self, block: Block, part: Part, grads: Tensor) -> None:
        """Take the gradients of the scores of a part, (samples, heads, queries, keys)."""
        before = 0
        for run in block.keys:
            some = grads[..., before : before + _length(run)]
            before += _length(run)
            if isinstance(self.bias, DenseBias):
                places = (part.rows, part.heads, block.queries, run)
                sizes = self.tensor.shape
                to = self.grad[
                    tuple(
                        place if size > 1 else slice(None)
                        for place, size in zip(places, sizes, strict=True)
                    )
                ]
                to.add_(some.sum_to_size(to.shape))
            else:
                self._add_described(block, part, run, some)

    def _add_described(self, block: Block, part: Part, run: slice, grads: Tensor) -> None:
        """The same for a bias that makes its blocks of a few numbers, (1, num_heads or 1, …)."""
        work = self.work
        with torch.enable_grad():
            tensor = self.tensor.detach().requires_grad_()
            bias = _with_tensor(self.bias, tensor)
            assert bias is not None
            added = bias.block(block.queries, run, work.query_len, work.kv_len, work.device)
        summed = grads.new_zeros(added.shape)
        if added.shape[1] == 1:
            summed += grads.sum(dim=(0, 1), keepdim=True)
        else:
            summed[:, part.heads] = grads.sum(dim=0, keepdim=True)
        (grad,) = torch.autograd.grad(added, tensor, summed.to(added.dtype))
        self.grad.add_(grad)

    def result(self) -> Tensor:
        return self.grad.to(self.tensor.dtype)


def _shows(work: Work, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Where what is not finite may be seen, by the shape of the context."""
    marks = torch.cat(
        [
            ~torch.isfinite(value),
            stages.nonfinite_rows(key)[..., None],
            torch.ones_like(key[..., :1], dtype=torch.bool),
        ],
        dim=-1,
    )
    marks = marks.float().flatten(0, 1)
    tainted = stages.nonfinite_rows(query)[..., None]
    sizes = (work.batch, work.num_heads, work.query_len, value.shape[3])
    shows = torch.zeros(sizes, dtype=torch.bool, device=work.device)
    for block, part, hidden, _ in _parts(work, None):
        queries, keys = block.shape
        seen = marks.new_ones(_length(part.folded), work.group * queries, keys)
        for columns, where in hidden:
            _by_head(part, seen)[..., columns].masked_fill_(where, 0.0)
        counts = torch.bmm(seen, _keys_of(marks[part.folded], block))
        counts = counts.view(_length(part.rows), _length(part.heads), queries, -1) > 0
        place = part.rows, part.heads, block.queries
        whole = counts[..., -2:-1] | (tainted[place] & counts[..., -1:])
        shows[place] = counts[..., :-2] | whole
    return shows


class _Blockwise(torch.autograd.Function):
    """Both passes, as autograd wants them."""

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
        context, total, sums = _forward(work, query, key, value, sinks)
        kept = None if sinks is None else context
        ctx.save_for_backward(query, key, value, sinks, tensor, kept, *sums)
        ctx.work = work
        ctx.set_materialize_grads(False)
        return context, total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        wanted = tuple(ctx.needs_input_grad[:5])
        return *_Gradients.apply(ctx.work, wanted, *ctx.saved_tensors, *grads), None


class _Gradients(torch.autograd.Function):
    """The backward pass, which has none of its own."""

    @staticmethod
    def forward(
        ctx: Any, work: Work, wanted: tuple[bool, ...], *tensors: Any
    ) -> tuple[Tensor | None, ...]:
        if not is_autocast(tensors[0]):
            return _backward(work, wanted, *tensors)
        with torch.autocast(work.device.type, enabled=False):
            return _backward(work, wanted, *tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        raise UnsupportedError(
            "kernel.second-derivative",
            'kernel="blockwise" has first derivatives only; kernel="eager" has all of them.',
        )
