"""Stitching of calls into one matrix that they are rows of, such as the steps of a generation.

Keys are at their places in the whole text. A step of a window has the last keys only, and a step of a
beam search continues rows of the step before: its link says which (`watching/continuing.py`). Each query sees one run
of keys, up to its own or, inside a picture, up to the picture's last.

Cross-attention has the same keys in each call, which says nothing of its queries: they continue where those of the
self-attention of the same text do, row by row.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import NamedTuple, cast

import torch
from torch import Tensor

from clearhead.attention.problem import Problem
from clearhead.masks.algebra import And
from clearhead.masks.base import Mask
from clearhead.masks.causal import causal
from clearhead.masks.documents import documents
from clearhead.masks.full import Full, full
from clearhead.masks.padding import PaddedTo, Valid
from clearhead.masks.sliding_window import sliding_window
from clearhead.matrix.matrix import AttentionMatrix, matrix_of
from clearhead.matrix.real_queries import read_queries, real_queries
from clearhead.watching.continuing import Continuation, QueryRun
from clearhead.watching.mask_recovery import among, padding_of

NOT_CAUSAL = "no causal mask, with or without padding, a window, chunks or pictures"
DIFFERS = "a mask that differs from query to query"


class Reach(NamedTuple):
    """The run of keys that each query of a call sees.

    Attributes:
        first: the place among the keys of the first that each query sees, padding aside, (batch or 1, query_len).
        stop: the place after the last, in the same shape: after the query's own key, or after its picture.
        valid: True for the keys that are not padded, (batch or 1, kv_len); also for those before
            `first`, whose weights are not known.
    """

    first: Tensor
    stop: Tensor
    valid: Tensor


def stitch(
    matrices: Sequence[AttentionMatrix],
    links: Sequence[Continuation | None],
    text: Sequence[AttentionMatrix] | None = None,
) -> AttentionMatrix | str:
    """Return the one matrix that the calls are rows of, or why they are not.

    They are if each continues the call before (`continued`), and each query sees one run of keys, with the same
    padding; or, in cross-attention, if all have the same keys and mask, and the self-attention of their queries
    continues.

    Args:
        matrices: one for each call.
        links: the link of each call of self-attention to the call before.
        text: of cross-attention, the calls of the self-attention of the same queries; None where it was not seen.
    """
    if matrices[0].problem.cross and text is None:
        if all(b.kv_len - a.kv_len == b.query_len for a, b in pairwise(matrices)):
            return "its keys grow with its queries, as if it attended to its own text and to a source at once"
        return "no self-attention of the same queries was seen, which tells whether they go on"
    rows = continued(matrices if text is None else text, links)
    if isinstance(rows, str):
        reason = rows if text is None else f"in the self-attention of its queries {rows}"
        return _unlike(matrices) or reason
    pieces = [
        QueryRun(number, some, slice(0, matrices[number].query_len))
        for number, some in enumerate(rows)
    ]
    return assembled(matrices, pieces)


def assembled(
    matrices: Sequence[AttentionMatrix], pieces: Sequence[QueryRun]
) -> AttentionMatrix | str:
    """Return the matrix of a text whose queries are these pieces, or why there is none, in words.

    It has values and contexts if every call has them.
    """
    calls = [each.problem for each in matrices]
    reason = _unlike(matrices)
    if reason:
        return reason
    held = [[each.problem.key] for each in matrices]
    if all(each.value is not None for each in matrices):
        held = [[each.problem.key, cast(Tensor, each.value)] for each in matrices]
    found = _joined(calls, held, pieces)
    contexts = [each.context for each in matrices]
    if isinstance(found, AttentionMatrix) and all(each is not None for each in contexts):
        found._context = _in_order(cast("list[Tensor]", contexts), pieces)
    return found


def _unlike(matrices: Sequence[AttentionMatrix]) -> str:
    """Return why the calls cannot be rows of one matrix, by bias, cross, scale, softcap or sinks; "" if they can."""
    calls = [each.problem for each in matrices]
    for number, call in enumerate(calls):
        reason = ""
        if call.bias is not None:
            reason = "a bias"
        elif call.cross != calls[0].cross:
            reason = "keys of another text and the call before has its own, or the other way round"
        elif number and not _alike(call, calls[number - 1]):
            reason = "another scale, softcap or sinks than the call before"
        if reason:
            return f"call {number} has {reason}"
    return ""


def continued(
    matrices: Sequence[AttentionMatrix], links: Sequence[Continuation | None]
) -> list[Tensor] | str:
    """Return, for each call, its sample that each sample of the last call continues, int64, (batch,).

    Or why the chain breaks. The calls are of self-attention. Each must continue the last keys of the call before it.

    Args:
        matrices: one for each call.
        links: the link of each call to the call before.
    """
    rows = [torch.arange(matrices[-1].batch, device=matrices[0].device)]
    for number in range(len(matrices) - 1, 0, -1):
        call, link, before = matrices[number], links[number], matrices[number - 1].kv_len
        if link is None or not link.is_last:
            if not 0 < call.kv_len - call.query_len <= before:
                sizes = f"query_len={call.query_len} and kv_len={call.kv_len}"
                return f"call {number} has {sizes}, after {before} keys"
            return f"call {number} has keys that do not continue those of the call before"
        rows.insert(0, link.rows[rows[0]])
    if matrices[0].kv_len < matrices[0].query_len:
        return f"call 0 has query_len={matrices[0].query_len} and kv_len={matrices[0].kv_len}"
    return rows


def _in_order(parts: Sequence[Tensor], pieces: Sequence[QueryRun]) -> Tensor:
    """Concatenate the queries or contexts of the pieces, (batch, heads, queries, dim), from those of each call."""
    return torch.cat([each.samples(parts[each.call][:, :, each.queries]) for each in pieces], dim=2)


def _real_queries(calls: Sequence[Problem], pieces: Sequence[QueryRun]) -> Tensor | None:
    """Return the real queries of all pieces, bool, (batch, queries); None if no call has more than its keys tell."""
    if all(calls[each.call].real_queries is each.live is None for each in pieces):
        return None
    parts = []
    for each in pieces:
        call = calls[each.call]
        real = read_queries("real_queries", real_queries(call), call).expand(call.batch, -1)
        real = real[each.rows, each.queries]
        parts.append(real if each.live is None else real & each.live[:, None])
    return torch.cat(parts, dim=1)


def _joined(
    calls: Sequence[Problem], held: Sequence[Sequence[Tensor]], pieces: Sequence[QueryRun]
) -> AttentionMatrix | str:
    """Return calls with growing keys, or with the keys of one source, as one matrix.

    Or why they are not its rows, in words. `held` are the keys of each call, and its values if kept.
    """
    cross = calls[0].cross
    reaches: dict[int, Reach] = {}
    for number in dict.fromkeys(each.call for each in pieces):
        reach = (_of_source if cross else _reach)(calls[number])
        if reach is None:
            return f"call {number} has {DIFFERS if cross else NOT_CAUSAL}"
        reaches[number] = reach
    valid = torch.ones(1, 0, dtype=torch.bool, device=calls[0].device)
    parts: list[list[Tensor]] = []
    runs: list[list[Tensor]] = [[], []]
    for piece in pieces:
        call, reach = calls[piece.call], reaches[piece.call]
        past, total = call.kv_len - call.query_len, valid.shape[1]
        # Of the first call every key is new, and of a source no later one.
        fresh, stop = past + piece.queries.start if parts else 0, past + piece.queries.stop
        if cross:
            fresh, stop = call.kv_len if parts else 0, call.kv_len
        start = total - fresh
        real = piece.samples(reach.valid)
        run = [piece.samples(each[:, piece.queries]) for each in (reach.first, reach.stop)]
        least = int(run[0].min())
        keys = [piece.samples(each) for each in held[piece.call]]
        if cross and parts and not all(map(piece.agrees, keys, parts[0])):
            return f"call {piece.call} has other keys than the call before"
        if not piece.agrees(valid[:, start + least :], real[:, least:fresh]):
            return f"call {piece.call} has other padding than the call before"
        new = real[:, fresh:stop]
        if piece.live is not None:
            new = new & piece.live[:, None]
        valid = _side_by_side([valid, new])
        parts.append([each[:, :, fresh:stop] for each in keys])
        for every, each in zip(runs, run, strict=True):
            every.append(start + each)
    mask = padding_of(valid)
    if not cross:
        described = _described(*map(_side_by_side, runs))
        if described is None:
            return f"call {pieces[-1].call} has {NOT_CAUSAL}"
        mask = among(described, mask)
    query = _in_order([each.query for each in calls], pieces)
    last = pieces[-1]
    if held[last.call][0].shape[2] == valid.shape[1] and last.is_own(len(held[last.call][0])):
        key, *value = held[
            last.call
        ]  # it has every key and every sample, so that nothing is copied
    else:
        key, *value = (torch.cat(each, dim=2) for each in zip(*parts, strict=True))
    real = _real_queries(calls, pieces)
    if real is not None and not cross and _equal(real, valid[:, -query.shape[2] :]):
        real = None  # the keys of the whole tell
    mask = None if isinstance(mask, Full) else mask
    whole = calls[0].replace(query=query, key=key, mask=mask, real_queries=real)
    return matrix_of(whole, *value)


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors (batch or 1, count) along the second dimension; rows of 1 are expanded."""
    count = max(map(len, parts))
    return torch.cat([each.expand(count, -1) for each in parts], dim=1)


def _described(first: Tensor, stop: Tensor) -> Mask | None:
    """Return a mask for the last queries of a text, or None if the pattern is not a known one.

    Each query sees the keys from its entry of `first` to that of `stop`, (batch or 1, query_len). The mask is causal,
    with a window or in chunks if it has one; or causal, and whole within each picture.
    """
    total = int(stop.max())
    before = total - first.shape[1]
    own = torch.arange(before, total, device=first.device)
    ends = torch.cat([own.new_tensor(range(1, before + 1)).expand(len(stop), -1), stop], dim=1)
    # Tokens of one picture are those whose runs end alike.
    begin = torch.searchsorted(ends, stop)
    is_run = torch.equal(ends.gather(1, stop - 1), stop) and bool((ends.diff(dim=1) >= 0).all())
    plain = _equal(stop, own + 1)
    mask: Mask = causal()
    if bool((first > 0).any()):
        left = int((own - first).where(begin == own, 0).max())
        mask = causal() & sliding_window(left=left)
        if not _equal(first, (own - left).clamp(min=0).minimum(begin)):
            chunk = torch.unique_consecutive(first[0], return_inverse=True)[1]
            if before or not plain or not torch.equal(first[0], torch.searchsorted(chunk, chunk)):
                return None
            return documents(chunk) & causal() if _equal(first, first[:1]) else None
    if plain:
        return mask
    return mask | documents(ends if len(ends) > 1 else ends[0]) if is_run else None


def _reach(call: Problem) -> Reach | None:
    """Return the run of keys that each query of self-attention sees; None if it is no run up to its own key or beyond.

    None too for heads that differ, for samples whose runs begin differently, and for a call without queries.
    """
    own = torch.arange(call.kv_len - call.query_len, call.kv_len, device=call.device)
    if not call.query_len:
        return None
    valid, rest = _padded(call)
    spans = reduce(lambda one, other: one & other, rest, full()).spans(call.extent)
    if spans is not None and call.query_len > 1:
        first, stop = spans.start[:, :, 0], spans.stop[:, :, 0]
        whole = len(first) == 1 and spans.pieces == 1 and bool((stop > own).all())
        return Reach(first, stop, valid) if whole else None
    visible = call.visible()
    if visible is None:
        visible = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=call.device)
    visible = visible.expand(-1, -1, call.query_len, call.kv_len)
    rows, places = visible[:, 0], torch.arange(call.kv_len, device=call.device)
    seen = rows.any(dim=0)
    if visible.shape[1] > 1 or not seen.gather(1, own[:, None]).all():
        return None
    # What no sample sees before the first key that one does may be out of a window.
    first = seen.to(torch.uint8).argmax(dim=-1)
    last = (places + 1).where(rows, 0).amax(dim=-1)
    valid, stop = rows.any(dim=1) | (places < first.min()), last.maximum(own + 1)
    inside = (places >= first[:, None]) & (places < stop[..., None])
    return Reach(first[None], stop, valid) if torch.equal(rows, inside & valid[:, None]) else None


def _of_source(call: Problem) -> Reach | None:
    """Return the run of keys of a call of cross-attention, which is all of them; None if queries or heads differ."""
    visible = call.visible()
    if visible is None:
        visible = torch.ones(1, 1, 1, call.kv_len, dtype=torch.bool, device=call.device)
    if visible.shape[1] > 1 or not _equal(visible, visible[:, :, :1]):
        return None
    first = torch.zeros(1, call.query_len, dtype=torch.int64, device=call.device)
    return Reach(first, first + call.kv_len, visible[:, 0, 0])


def _padded(call: Problem) -> tuple[Tensor, list[Mask]]:
    """Return the keys that are not padding, bool, (batch or 1, kv_len), and the other parts of the mask."""
    valid = torch.ones(1, call.kv_len, dtype=torch.bool, device=call.device)
    places = torch.arange(call.kv_len, device=call.device).view(1, 1, 1, -1)
    rest = []
    for part in _parts(call.mask):
        if isinstance(part, Valid | PaddedTo):
            seen = part.visible(torch.zeros_like(places), places, call.extent)
            valid = valid & seen[:, 0, 0]
        else:
            rest.append(part)
    return valid, rest


def _equal(tensor: Tensor, other: Tensor) -> bool:
    """Return True if two tensors are equal after broadcasting."""
    return torch.equal(*torch.broadcast_tensors(tensor, other))


def _alike(problem: Problem, other: Problem) -> bool:
    """Return True if two problems have equal scale, softcap and sinks."""
    if (problem.scale, problem.softcap) != (other.scale, other.softcap):
        return False
    if problem.sinks is None or other.sinks is None:
        return problem.sinks is other.sinks
    return torch.equal(problem.sinks, other.sinks)


def _parts(mask: Mask | None) -> list[Mask]:
    """Return the masks that are joined by &, left to right; [] for None."""
    if isinstance(mask, And):
        return _parts(mask.left) + _parts(mask.right)
    return [] if mask is None else [mask]
