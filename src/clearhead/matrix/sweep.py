"""One pass over the weights in chunks of queries, for all sums and maxima over rows or columns.

The scores of a chunk of queries and a few heads are made in one buffer and their softmax in
another, and every statistic that was asked for takes what it needs while both are near. Nothing of
size query_len × kv_len is ever there.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.threads import side_by_side, threads_apart
from clearhead._common.torch_internals import is_autocast, is_plain
from clearhead.attention.biases import Bias, DenseBias, SumOfBiases
from clearhead.attention.distance_biases import Alibi, Relative
from clearhead.attention.problem import Problem
from clearhead.masks.spans import Spans
from clearhead.masks.tiles import host_spans, hull, length, portions
from clearhead.matrix.chunk import Chunk, ChunkPlace, KeyBlock
from clearhead.matrix.reductions import Reduction, in_order, update_all
from clearhead.matrix.sweep_tiles import SweepTile, sweep_tiles
from clearhead.sharding.matrix_part import Rounds

HIDDEN = -1e30
"""The score of a hidden pair. Its weight is exactly 0, as with −∞, and weight · score is 0 too."""

LARGEST = 1e25
"""Scores up to this magnitude stay clear of HIDDEN."""

BUFFER = 1 << 21
"""The number of weights at a time, of each thread, unless rows are so long that it would be too few of them. Half of it
takes an eighth longer where two threads share a sweep."""

DEVICE_BUFFER = 1 << 26
"""The same on a GPU, where an operation takes some microseconds however few numbers it has."""

LEAST_ROWS = 64
"""The least number of rows of weights at a time, so that the products are efficient."""

MOST_QUERIES = 256

WORTH_THREADS = 1 << 24
"""From how many pairs on threads of our own take a sweep, each some heads."""

Progress = Callable[[float], None]


def sweep(
    problem: Problem, reductions: Sequence[Reduction], progress: Progress | None = None
) -> None:
    """Update every reduction, in place, with all of the weights, chunk by chunk, without gradients or autocast.

    With a sharded problem every rank must call it; sums are then summed over the ranks.

    Args:
        problem: the problem; its dropout is left out.
        reductions: in any order; the sweep puts them in one that lets each read what it needs.
        progress: called after each chunk with the share of the work that is done, 0 to 1.
    """
    lowered = is_autocast(problem.query)
    quiet = torch.autocast(problem.device.type, enabled=False) if lowered else nullcontext()
    with torch.no_grad(), quiet:
        reductions = in_order(reductions)
        rounds = None if problem.part is None else problem.part.rounds
        if rounds is None:
            _sweep(problem, reductions, progress)
        else:
            _sweep_rounds(problem, rounds, reductions, progress)
        if problem.sharding is not None:
            for each in reductions:
                each.share(problem.sharding)


def _sweep_rounds(
    problem: Problem, rounds: Rounds, reductions: Sequence[Reduction], progress: Progress | None
) -> None:
    """Update every reduction with the weights over the keys of all ranks, one rank after another.

    Every rank must call it. A weight is its share of its block, times the share of the block, which the logsumexp over
    all keys gives.
    """
    whole = rounds.logsumexp()
    if problem.sinks is not None:
        whole = torch.logaddexp(whole, stages.upcast(problem.sinks)[:, None].expand_as(whole))
    done = 0

    def use(block: Problem, places: Tensor) -> None:
        """Sweep the weights over the keys of one rank, which have these places."""
        nonlocal done
        before, done = done, done + len(places)
        some = KeyBlock.of(places.to(problem.device), problem.kv_len)

        def tell(share: float) -> None:
            """Report the share of this rank's keys that is done."""
            assert progress is not None
            progress((before + share * len(places)) / problem.kv_len)

        _sweep(block, reductions, tell if progress is not None else None, some, whole)

    rounds.each(use)


def _sweep(
    problem: Problem,
    reductions: Sequence[Reduction],
    progress: Progress | None,
    some: KeyBlock | None = None,
    whole: Tensor | None = None,
) -> None:
    """Update every reduction with the weights over all keys, or over the keys of the block `some`.

    `whole` is then the logsumexp over all keys and sinks, (batch, num_heads, query_len). Nothing happens without
    queries.
    """
    if not problem.query.shape[:3].numel():
        return
    count = _threads(problem, reductions)
    ordinary = _is_ordinary(problem) and all(each.finite for each in reductions)
    ordinary = ordinary and (whole is None or bool((whole < torch.inf).all()))
    mask = problem.mask
    # Where chunks begin and end is known without a device.
    spans = (
        problem.spans if problem.query.is_cpu or mask is None else host_spans(mask, problem.extent)
    )
    kv_heads, queries = _sizes(problem, count, _most_seen(problem, spans))
    tiles = 0
    if ordinary and problem.bias is None and problem.part is None and problem.sharding is None:
        heads = kv_heads * problem.num_heads // problem.num_kv_heads
        tiles = _buffer(problem) // heads if all(each.tiled for each in reductions) else 0
    if problem.bias is not None:
        problem = problem.replace(bias=problem.bias.on(problem.device))
    is_known = mask is None or spans is not None
    is_shared = mask is None or (spans is not None and spans.start.shape[0] == 1)

    @lru_cache(maxsize=count)
    def parts_of(sample: int) -> list[SweepTile]:
        """Return the tiles of a sample, computed once."""
        return list(sweep_tiles(problem, spans, sample, queries, tiles))

    def start(tell: Callable[[int], None]) -> Callable[[tuple[int, slice]], None]:
        """Return a function that sweeps a unit, a sample and some of its key heads, with buffers of its own.

        `tell` is called with the number of queries after each chunk.
        """
        make = _Buffers(problem).chunk if ordinary else _by_the_stages

        def use(unit: tuple[int, slice]) -> None:
            """Sweep one sample and slice of key heads, and update the reductions."""
            sample, heads = unit
            key = stages.upcast(problem.key[sample, heads])
            # Worked out once for all heads, and for all samples if they are alike.
            known = parts_of(0 if is_shared else sample) if is_known else None
            for part in known or sweep_tiles(problem, None, sample, queries, tiles):
                chunk = make(problem, sample, heads, key, part)
                if whole is not None:
                    chunk.block = some
                    chunk.share_of(whole[chunk.place])
                update_all(reductions, chunk)
                tell(part.tiles * length(part.queries))

        return use

    done = 0
    units = [
        (sample, slice(first, min(first + kv_heads, problem.num_kv_heads)))
        for sample in range(problem.batch)
        for first in range(0, problem.num_kv_heads, kv_heads)
    ]

    def tell(tokens: int) -> None:
        """Report that the queries of a chunk are done."""
        nonlocal done
        done += tokens
        if progress is not None:
            progress(done / (len(units) * problem.query_len))

    if count > 1:
        side_by_side(units, start, count, tell)
    else:
        use = start(tell)
        for unit in units:
            use(unit)


def _threads(problem: Problem, reductions: Sequence[Reduction]) -> int:
    """Return the number of our own threads that share the heads; 1 to use PyTorch's threads for each operation.

    It is 1 for few pairs, off the CPU, for tensors that are traced, for reductions that combine heads, and if the heads
    do not divide well.
    """
    pairs = problem.batch * problem.num_heads * problem.query_len * problem.kv_len
    if pairs < WORTH_THREADS or not is_plain(problem.query) or not problem.query.is_cpu:
        return 1
    if not all(each.by_head for each in reductions):
        return 1
    count, heads = threads_apart(), problem.batch * problem.num_kv_heads
    # None is to wait long for another's last heads.
    return count if heads % count == 0 or heads >= 4 * count else 1


def _most_seen(problem: Problem, spans: Spans | None) -> int:
    """Return the largest number of keys from the first to the last that MOST_QUERIES neighbouring queries see.

    All keys without spans, and of short texts.
    """
    if spans is None or problem.kv_len <= 2 * MOST_QUERIES:
        return problem.kv_len
    some = portions(problem.query_len, MOST_QUERIES)
    return max(length(hull(spans.start[:, each], spans.stop[:, each])) for each in some)


def _sizes(problem: Problem, count: int, seen: int) -> tuple[int, int]:
    """Return the chunk size in key heads, and in queries, for queries that see `seen` keys and `count` threads."""
    group = problem.num_heads // problem.num_kv_heads
    rows = max(LEAST_ROWS, _buffer(problem) // max(1, seen))
    queries = min(problem.query_len, MOST_QUERIES, max(1, rows // group))
    kv_heads = max(1, min(problem.num_kv_heads, rows // (queries * group)))
    if problem.batch % count:  # each thread is to have as many parts of a sample
        units = -(-problem.num_kv_heads // kv_heads)
        units = min(problem.num_kv_heads, -(-units // count) * count)
        kv_heads = -(-problem.num_kv_heads // units)
    return kv_heads, queries


def _buffer(problem: Problem) -> int:
    """Return the number of weights that a chunk is to have at most, by the device of the problem."""
    return BUFFER if problem.query.is_cpu else DEVICE_BUFFER


def _is_ordinary(problem: Problem) -> bool:
    """Return True if query, key, sinks and bias are finite, and so small that no score comes near HIDDEN.

    It syncs the device.
    """
    query, key = _magnitude(problem.query), _magnitude(problem.key)
    width, query = problem.query.shape[3], query * problem.factor
    # A row may be too long by itself. A comparison with NaN is false.
    longest = stages.longest(problem.query.dtype)
    if not (width * query * key <= LARGEST and width * max(query * query, key * key) <= longest):
        return False
    if problem.sinks is not None and not stages.all_finite(problem.sinks):
        return False
    return _is_ordinary_bias(problem.bias, problem.query_len + problem.kv_len)


def _is_ordinary_bias(bias: Bias | None, farthest: int) -> bool:
    """Return True if a bias is None, or finite or −∞ and small, for tokens up to `farthest` apart.

    For a class other than a tensor, relative, alibi and a sum, it is True if the bias cannot hide.
    """
    if isinstance(bias, SumOfBiases):
        return all(_is_ordinary_bias(each, farthest) for each in (bias.left, bias.right))
    if isinstance(bias, Alibi):
        return _magnitude(bias.slopes) * farthest <= LARGEST
    if isinstance(bias, DenseBias | Relative):
        added = bias.tensor if isinstance(bias, DenseBias) else bias.values
        return bool(((added.abs() <= LARGEST) | (added == -torch.inf)).all())
    return bias is None or not bias.may_hide


def _magnitude(tensor: Tensor) -> float:
    """Return the largest absolute value of a tensor; NaN if it has a NaN, 0 if it is empty."""
    if not tensor.numel():
        return 0.0
    if tensor.ndim == 4 and not tensor.is_contiguous():
        tensor = tensor.transpose(1, 2)  # as layers make them: in this order nothing is copied
    low, high = torch.aminmax(tensor)  # the norm of order ∞ takes ten times as long
    return float(torch.maximum(-low, high))


class _Buffers:
    """Computes chunks of finite weights of a problem, each into the memory of the previous one."""

    def __init__(self, problem: Problem) -> None:
        """Start with empty buffers, in the dtype of the weights; `chunk` makes them as large as it needs."""
        like = stages.upcast(problem.query[:0])
        self.scores, self.weights = like.new_empty(0), like.new_empty(0)
        self.sinks = None if problem.sinks is None else stages.upcast(problem.sinks)

    def chunk(
        self, problem: Problem, sample: int, kv_heads: slice, key: Tensor, part: SweepTile
    ) -> Chunk:
        """Compute scores and weights of a part into the buffers, and return them as a chunk, valid until the next call.

        The buffers grow if needed.

        Args:
            problem: the problem, with finite numbers.
            sample: the sample.
            kv_heads: the slice of key heads.
            key: the keys of these heads, upcast, (key heads, kv_len, head_dim).
            part: the tile of queries and keys.
        """
        group = problem.num_heads // problem.num_kv_heads
        heads = slice(kv_heads.start * group, kv_heads.stop * group)
        place = ChunkPlace(sample, kv_heads, heads, part.queries, part.keys, part.tiles)
        query = stages.upcast(place.rows_of(problem.query))
        key = place.keys_of(key)
        # The heads of a group share their key, so their queries stand below each other.
        query = query.reshape(key.shape[0], group * length(part.queries), query.shape[-1])
        shape = (key.shape[0] * group, length(part.queries), key.shape[1])
        count = torch.Size(shape).numel()
        if count > len(self.scores):
            self.scores, self.weights = (self.scores.new_empty(count) for _ in range(2))
        scores, weights = self.scores[:count].view(shape), self.weights[:count].view(shape)
        # Products of 16-bit numbers are exact, those of scaled ones are not; and a matrix product may take
        # its factor to the numbers before they are multiplied (MKL with AVX2 does).
        exact = query.dtype != problem.query.dtype
        scores.view(*query.shape[:2], key.shape[1]).baddbmm_(
            query,
            key.mT,
            beta=0,
            alpha=1.0 if exact else problem.scale,
        )
        if exact:
            scores.mul_(problem.scale)
        if problem.softcap is not None:
            scores.div_(problem.softcap).tanh_().mul_(problem.softcap)
        empty = part.empty
        if empty is not None and empty.ndim == 2 and empty.shape[0] > 1:
            empty = empty[heads]
        added = problem.bias_block(part.queries, part.keys)
        if added is not None:
            scores.add_(_of_sample(added, sample, heads))
        for columns, hidden in part.hidden:
            hidden = hidden[heads] if hidden.ndim == 3 and hidden.shape[0] > 1 else hidden
            scores[:, :, columns].masked_fill_(hidden, HIDDEN)
        if problem.bias is not None and problem.bias.may_hide:
            scores.clamp_(min=HIDDEN)
            unseen = (scores == HIDDEN).all(dim=-1)
            # A row that the mask hides whole is not marked in the scores.
            empty = unseen if empty is None else unseen | empty
        torch.softmax(scores, dim=-1, out=weights)
        if empty is not None:
            weights.masked_fill_(empty[..., None], 0.0)
        chunk = Chunk(place, scores, weights, empty)
        if self.sinks is not None:
            sinks = self.sinks[heads].view(-1, 1, group, 1)
            chunk.share_with(place.of_each_head(sinks)[:, 0])
        return chunk


def _by_the_stages(
    problem: Problem, sample: int, kv_heads: slice, key: Tensor, part: SweepTile
) -> Chunk:
    """Return a chunk computed by `stages`, in new tensors, for inputs that may be NaN, infinite or very large.

    Arguments are those of `_Buffers.chunk`; the part must be a single tile.
    """
    group = problem.num_heads // problem.num_kv_heads
    heads = slice(kv_heads.start * group, kv_heads.stop * group)
    query = problem.query[sample, heads, part.queries]
    key = stages.repeat_kv_heads(key[:, part.keys], heads.stop - heads.start)
    visible = problem.visible(part.queries, part.keys)
    bias = problem.bias_block(part.queries, part.keys)
    visible, bias = (
        None if each is None else _of_sample(each, sample, heads) for each in (visible, bias)
    )
    sinks = None if problem.sinks is None else problem.sinks[heads]
    scaled = stages.scaled_scores(stages.scores(query, key, problem.factor), problem.scale)
    masked = stages.masked_scores(stages.capped_scores(scaled, problem.softcap), bias, visible)
    weights = stages.weights(masked, sinks)
    chunk = Chunk(
        ChunkPlace(sample, kv_heads, heads, part.queries, part.keys),
        masked.masked_fill(masked == -torch.inf, HIDDEN),
        weights,
        (masked == -torch.inf).all(dim=-1),
    )
    chunk.visible = masked != -torch.inf if visible is None else visible.expand(masked.shape)
    chunk.logsumexp = stages.logsumexp(masked)
    chunk.sinks = None if sinks is None else stages.upcast(sinks)
    return chunk


def _of_sample(tensor: Tensor, sample: int, heads: slice) -> Tensor:
    """Return one sample and a slice of heads, (heads or 1, …), from a tensor (batch or 1, heads or 1, …)."""
    tensor = tensor[sample if tensor.shape[0] > 1 else 0]
    return tensor[heads] if tensor.shape[0] > 1 else tensor
