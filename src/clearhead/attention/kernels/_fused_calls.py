"""The fused calls of pieces: slices, tiles of a window, documents of like length, parts of a mask, sinks."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from clearhead import stages
from clearhead.attention.kernels._fused_gradients import FlashWithLogsumexp, refuse_second
from clearhead.attention.kernels._kept import all_seen, shown_mask
from clearhead.attention.kernels._lowering import Piece, assemble, lengths_of, place_of
from clearhead.attention.kernels._nonfinite import SMALL
from clearhead.attention.problem import Problem
from clearhead.masks.tiles import length

MOST_PAIRS = 1.2
"""Largest ratio of the pairs that a causal call computes for a document to the pairs of the document itself."""


def run_piece(problem: Problem, piece: Piece) -> Tensor:
    """Return the context of a piece, (samples, num_heads, queries, value_head_dim), with the sinks if there are any.

    It takes one call of PyTorch's kernel, or one per sample if the piece has tiles. Queries that see no key get zeros.
    """
    if piece.tiles > 1:
        wants_total = problem.sinks is not None
        context, total = _run_tiles(problem, piece, problem.value, wants_total)
        return context if total is None else _with_sinks(problem, context, total)
    query, key, value = problem.query, problem.key, problem.value
    if not piece.whole:
        query = query[piece.rows, :, piece.queries]
        key, value = (each[piece.rows, :, piece.keys] for each in (key, value))
    if key.shape[2] == 0:
        # Zeros that hang on everything given, so that each gets its gradient of zeros.
        nothing = query[..., :0].sum(dim=-1, keepdim=True) + key.sum() + value.sum()
        if problem.sinks is not None:
            nothing = nothing + problem.sinks[:0].sum()
        return nothing.expand(-1, -1, -1, value.shape[3])
    query = query.flip(2) if piece.strip else query
    added, seen = _attn_mask(problem, piece)
    context = call_with_sinks(problem, query, key, value, added, piece.causal)
    context = context.flip(2) if piece.strip else context
    return context if seen is None else context.masked_fill(~seen, 0.0)


def call_with_sinks(
    problem: Problem, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool
) -> Tensor:
    """Return the context of one fused call, as `fused_call` does, with the sinks if there are any.

    With sinks, the dropout of the problem is ignored.
    """
    if problem.sinks is None:
        return fused_call(problem, query, key, value, mask, causal)
    return _with_sinks(problem, *_fused_with_logsumexp(problem, query, key, value, mask, causal))


def _with_sinks(problem: Problem, context: Tensor, total: Tensor) -> Tensor:
    """Return the context times sigmoid(logsumexp − sink), the share that the sinks leave, in the context's dtype.

    Args:
        problem: a problem with sinks.
        context: (samples, num_heads, queries, value_head_dim), computed without them.
        total: the logsumexp of the scores, (samples, num_heads, queries).
    """
    assert problem.sinks is not None
    share = torch.sigmoid(total - stages.upcast(problem.sinks)[:, None])
    return (context * share[..., None]).to(context.dtype)


def are_documents(pieces: list[Piece]) -> bool:
    """Return True if no piece is masked or tiled, each has as many keys as queries, or none, and no two share keys.

    The keys of a sample must ascend from piece to piece.
    """
    ends: dict[int, int] = {}
    for piece in pieces:
        row, seen = piece.rows.start, length(piece.keys)
        if piece.masked or piece.tiles > 1 or seen not in (0, length(piece.queries)):
            return False
        if seen and piece.keys.start < ends.get(row, 0):
            return False
        ends[row] = max(ends.get(row, 0), piece.keys.stop)
    return True


def documents_by_length(problem: Problem, pieces: list[Piece]) -> list[list[int]]:
    """Group documents of similar length, longest first, and return the indices of each group's pieces.

    The pieces of a group are all causal, or all not causal and of one length. On the CPU a document with more than
    `SMALL` numbers is a group by itself, as joining copies it. Documents without keys are left out.
    """
    sizes = [length(piece.keys) for piece in pieces]
    order = sorted(range(len(pieces)), key=lambda place: (pieces[place].causal, -sizes[place]))
    width = problem.num_heads * problem.query.shape[3]
    longest = SMALL // width if problem.query.is_cpu else problem.query_len
    groups: list[list[int]] = []
    for place in order:
        first = groups[-1][0] if groups else place
        causal = pieces[place].causal
        alike = sizes[first] ** 2 <= (MOST_PAIRS if causal else 1) * sizes[place] ** 2
        if groups and sizes[first] <= longest and alike and pieces[first].causal == causal:
            groups[-1].append(place)
        elif sizes[place]:
            groups.append([place])
    return groups


def run_documents(problem: Problem, pieces: list[Piece]) -> Tensor:
    """Return the context of pieces that are documents, (batch, num_heads, query_len, value_head_dim).

    Each group of `documents_by_length` is one call, padded to the longest. Documents without keys get zeros.
    """
    if length(pieces[0].rows) > 1:
        rows = [slice(row, row + 1) for row in range(problem.batch)]
        pieces = [piece._replace(rows=row) for row in rows for piece in pieces]
    inputs = [
        _cut(problem.query, pieces, [piece.queries for piece in pieces]),
        _cut(problem.key, pieces, [piece.keys for piece in pieces]),
        _cut(problem.value, pieces, [piece.keys for piece in pieces]),
    ]
    contexts: dict[int, Tensor] = {}
    for group in documents_by_length(problem, pieces):
        sizes = [length(pieces[place].keys) for place in group]
        query, key, value = (
            pad_sequence([each[place].transpose(0, 1) for place in group], True).transpose(1, 2)
            if len(group) > 1
            else each[group[0]][None]
            for each in inputs
        )
        context = call_with_sinks(problem, query, key, value, None, pieces[group[0]].causal)
        for place, size, tile in zip(group, sizes, context.unbind(0), strict=True):
            contexts[place] = tile[None, :, :size]
    parts = [
        contexts[place] if place in contexts else run_piece(problem, piece)
        for place, piece in enumerate(pieces)
    ]
    return assemble(parts, pieces)


def _cut(tensor: Tensor, pieces: list[Piece], runs: list[slice]) -> list[Tensor]:
    """Return the tokens of each piece as a list of views, (heads, tokens, width).

    Each sample is split once: a slice per piece would send back a gradient of the size of the whole tensor.

    Args:
        tensor: (batch, heads, tokens, width).
        pieces: each of one sample.
        runs: the slice of tokens of each piece, increasing within a sample.
    """
    sizes: list[list[int]] = [[] for _ in range(tensor.shape[0])]
    for piece, run in zip(pieces, runs, strict=True):
        row = sizes[piece.rows.start]
        gap = run.start - sum(row) if length(run) else 0
        row += [gap, length(run)]
    for row in sizes:
        row.append(tensor.shape[2] - sum(row))
    return [
        part
        for sample, row in zip(tensor, sizes, strict=True)
        for part in sample.split(row, dim=1)[1::2]
    ]


def _run_tiles(
    problem: Problem, piece: Piece, value: Tensor, wants_total: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the context of all tiles of a piece, and their logsumexp or None if `wants_total` is False.

    They are (batch, num_heads, queries of all tiles, width of `value`) and (batch, num_heads, queries); sinks are not
    applied. Tiles are the batch of one call per sample, since each call costs a parallel region.
    """
    first = piece._replace(tiles=1)
    added, _ = _attn_mask(problem, first)  # each query of a tile sees a key
    assert added is not None
    # Query heads of a group go as more queries: keys that overlap are not to be written out for each.
    group = problem.num_heads // problem.num_kv_heads
    added = added[:1].repeat(1, 1, group, 1)
    contexts, totals = [], []
    for row in range(problem.batch):
        query = _tiles_of(problem.query[row], first.queries, piece)
        key, some_value = (_tiles_of(each[row], first.keys, piece) for each in (problem.key, value))
        if group > 1:
            query = query.unflatten(1, (-1, group)).flatten(2, 3)
        if wants_total:
            context, total = _fused_with_logsumexp(problem, query, key, some_value, added, False)
            totals.append(_side_by_side(total[..., None], group)[..., 0])
        else:
            context = fused_call(problem, query, key, some_value, added, False)
        contexts.append(_side_by_side(context, group))
    return _joined(contexts), _joined(totals) if wants_total else None


def _joined(samples: list[Tensor]) -> Tensor:
    """Return the results of all samples concatenated along axis 0; a single one unchanged."""
    return samples[0] if len(samples) == 1 else torch.cat(samples)


def _tiles_of(tensor: Tensor, run: slice, piece: Piece) -> Tensor:
    """Return a view of the tokens of each tile, (tiles, heads, tokens of a tile, width).

    The tensor is (heads, tokens, width), and `run` the tokens of the first tile; tiles may overlap.
    """
    size, step = length(run), length(piece.queries)
    tokens = tensor[:, run.start : run.stop + (piece.tiles - 1) * step]
    return tokens.unfold(1, size, step).permute(1, 0, 3, 2)


def _side_by_side(tiles: Tensor, group: int) -> Tensor:
    """Return tiles, (tiles, key heads, group · queries, width), joined as (1, heads, tokens, width)."""
    if group > 1:
        tiles = tiles.unflatten(2, (group, -1)).flatten(1, 2)
    return tiles.transpose(1, 2).flatten(0, 1).transpose(0, 1)[None]


def logsumexp_of_piece(problem: Problem, piece: Piece) -> Tensor:
    """Return the logsumexp of each query of a piece, (samples, num_heads, queries), without sinks, upcast.

    It is −∞ for queries that see no key.
    """
    if piece.tiles > 1:
        _, total = _run_tiles(problem, piece, problem.key, wants_total=True)
        assert total is not None
        return total
    query, key = problem.query[piece.rows, :, piece.queries], problem.key[piece.rows, :, piece.keys]
    if key.shape[2] == 0:
        return torch.full_like(stages.upcast(query[..., 0]), -torch.inf)
    query = query.flip(2) if piece.strip else query
    added, seen = _attn_mask(problem, piece)
    # Only the logsumexp is wanted; the key is at hand, and as wide as the kernel wants a value.
    _, total = _fused_with_logsumexp(problem, query, key, key, added, piece.causal)
    total = total.flip(2) if piece.strip else total
    return total if seen is None else total.masked_fill(~seen[..., 0], -torch.inf)


def fused_call(
    problem: Problem, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool
) -> Tensor:
    """Return the context of `F.scaled_dot_product_attention`, (samples, num_heads, queries, value_head_dim).

    The scale and dropout are those of the problem; its mask, bias and sinks are ignored. The mask is bool or added to
    the scores. A value of another width than the key is padded, and the context cut again.
    """
    width = value.shape[3]
    query, key, value, scale = _for_fused_call(query, key, value, problem.scale)
    grouped = False
    if query.shape[1] != key.shape[1]:  # a branch, since sizes may be symbolic or traced
        grouped = True
    context = F.scaled_dot_product_attention(
        query,
        key,
        value,
        mask,
        problem.dropout or 0.0,
        causal,
        scale=scale,
        enable_gqa=grouped,
    )
    context = refuse_second(context)
    return context if context.shape[3] == width else context[..., :width]


def _fused_with_logsumexp(
    problem: Problem, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor]:
    """Return the context and the logsumexp of PyTorch's flash kernel for CPUs, with gradients through both.

    Arguments are those of `fused_call`. The logsumexp is (samples, num_heads, queries), upcast.
    """
    width = value.shape[3]
    query, key, value, scale = _for_fused_call(query, key, value, problem.scale)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -torch.inf)
    context, total = FlashWithLogsumexp.apply(query, key, value, mask, causal, scale)
    context = refuse_second(context)
    return context if context.shape[3] == width else context[..., :width], total


def _for_fused_call(
    query: Tensor, key: Tensor, value: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return query, key, value and scale with one width, contiguous rows that do not overlap, and a scale above 0.

    The narrower tensors are padded with zeros; a scale ≤ 0 moves into the query, since the kernel masks the future
    before it scales, and −∞ times such a scale is not −∞. If one of the tensors has other strides, all are made
    contiguous.
    """
    if scale <= 0:
        query, scale = (query * 0.0, 1.0) if scale == 0 else (-query, -scale)
    width, value_width = query.shape[3], value.shape[3]
    if width < value_width:
        query, key = (F.pad(t, (0, value_width - width)) for t in (query, key))
        width = value_width
    elif width > value_width:
        value = F.pad(value, (0, width - value_width))
    if query.is_contiguous() and key.is_contiguous() and value.is_contiguous():
        return query, key, value, scale
    for tensor in (query, key, value):
        _, _, row, step = tensor.stride()
        if step != 1 or (row < width and tensor.shape[2] > 1):
            return query.contiguous(), key.contiguous(), value.contiguous(), scale
    return query, key, value, scale


def _attn_mask(problem: Problem, piece: Piece) -> tuple[Tensor | None, Tensor | None]:
    """Return mask and bias of a piece as one tensor, and which queries see a key, (…, queries, 1).

    Both None for a piece that is not masked; the second also if all are known to see a key, never on a GPU or in a
    trace. The first is bool without a bias, else it is added to the scores. Rows that see nothing are all open, as in
    `shown_mask`; a strip's queries are in reverse.
    """
    if not piece.masked:
        return None, None
    if piece.strip:
        return _strip(problem, piece), None
    if problem.bias is None:
        return shown_mask(problem, *place_of(piece))
    visible, added = problem.visible(*place_of(piece)), problem.bias_block(*place_of(piece))
    assert added is not None
    queries, keys = lengths_of(problem, piece)
    added = in_precision(problem, added).expand(-1, -1, queries, keys)
    if visible is not None:
        added = torch.where(visible, added, -torch.inf)
    if problem.bias.may_hide:
        seen = added.amax(dim=-1, keepdim=True) != -torch.inf
    elif visible is not None:
        seen = visible.any(dim=-1, keepdim=True)
    else:
        return added, None
    return (added, None) if all_seen(problem, seen) else (added.masked_fill(~seen, 0.0), seen)


def _strip(problem: Problem, piece: Piece) -> Tensor:
    """Return mask and bias of a piece that depend on the distance only, (1, heads, queries, keys), to be added.

    The problem must have a bias. A view of one value per distance; the queries are in reverse order, so that each row
    is the one above, shifted.
    """
    assert problem.bias is not None
    queries, keys = lengths_of(problem, piece)
    query = torch.tensor(piece.queries.stop - 1, device=problem.device).view(1, 1, 1, 1)
    key = torch.arange(queries + keys - 1, device=problem.device).view(1, 1, 1, -1)
    pairs = query, key + piece.keys.start, problem.extent
    added = in_precision(problem, problem.bias.at(*pairs))
    if problem.mask is not None:
        added = torch.where(problem.mask.visible(*pairs), added, -torch.inf)
    return added[:, :, 0].unfold(2, keys, 1)


def in_precision(problem: Problem, added: Tensor) -> Tensor:
    """Return the bias in the dtype of the query.

    Unchanged for 16-bit queries on the CPU, whose kernel accepts float32.
    """
    query = problem.query
    keeps = query.is_cpu and query.dtype in (torch.float16, torch.bfloat16)
    return added if keeps else added.to(query.dtype)
