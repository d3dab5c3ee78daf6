"""Stitching of calls into one matrix that they are rows of, such as the steps of a generation.

Keys are at their places in the whole text. A step of a window has the last keys only (`watching/continuing.py`). Each
query sees one run of keys, up to its own or, inside a picture, up to the picture's last.

Cross-attention has the same keys in each call, which says nothing of its queries: they continue where those of the
self-attention of the same text do.
"""

from collections.abc import Sequence
from functools import reduce
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
from clearhead.watching.mask_recovery import among, padding_of

NOT_CAUSAL = "no causal mask, with or without padding, a window or pictures"
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
    links: Sequence[int | None],
    text: Sequence[AttentionMatrix] | None = None,
) -> AttentionMatrix | str:
    """Return the one matrix that the calls are rows of, or why they are not.

    They are if each continues the call before, and each query sees one run of keys, with the same padding; or, in
    cross-attention, if all have the same keys and mask, and the self-attention of their queries continues. It has
    values and contexts if every call has them.

    Args:
        matrices: one for each call.
        links: the link of each call of self-attention to the call before, as `Continuations.of` returns it.
        text: of cross-attention, the calls of the self-attention of the same queries; None where it was not seen.
    """
    calls = [each.problem for each in matrices]
    if calls[0].cross and text is None:
        return "no self-attention of the same queries was seen, which tells whether they go on"
    reason = _unlike(calls)
    broken = _broken(calls if text is None else [each.problem for each in text], links)
    if broken and not reason:
        reason = broken if text is None else f"in the self-attention of its queries {broken}"
    return reason or _joined(matrices)


def _unlike(calls: Sequence[Problem]) -> str:
    """Return why the calls cannot be rows of one matrix, by bias, cross, scale, softcap or sinks; "" if they can."""
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


def _broken(calls: Sequence[Problem], links: Sequence[int | None]) -> str:
    """Return why a call of self-attention does not continue the call before it, by its link; "" if all do."""
    for number, call in enumerate(calls):
        before = calls[number - 1].kv_len if number else call.kv_len
        past = call.kv_len - call.query_len
        if number and links[number] is None and 0 < past <= before:
            return f"call {number} has keys that do not continue those of the call before"
        if past < 0 or (number and links[number] is None):
            sizes = f"call {number} has query_len={call.query_len} and kv_len={call.kv_len}"
            return f"{sizes}, after {before} keys" if number else sizes
    return ""


def _joined(matrices: Sequence[AttentionMatrix]) -> AttentionMatrix | str:
    """Return calls with growing keys, or with the keys of one source, as one matrix; or why they are not its rows."""
    calls = [each.problem for each in matrices]
    cross = calls[0].cross
    held = [[call.key] for call in calls]
    if all(each.value is not None for each in matrices):
        held = [[each.problem.key, cast(Tensor, each.value)] for each in matrices]
    valid = torch.ones(1, 0, dtype=torch.bool, device=calls[0].device)
    parts: list[list[Tensor]] = []
    firsts: list[Tensor] = []
    stops: list[Tensor] = []
    for number, call in enumerate(calls):
        reach = (_of_source if cross else _reach)(call)
        if reach is None:
            return f"call {number} has {DIFFERS if cross else NOT_CAUSAL}"
        # Of the first call every key is new, and of a source no later one.
        fresh = 0 if not number else call.kv_len if cross else call.kv_len - call.query_len
        start, least = valid.shape[1] - fresh, int(reach.first.min())
        grows = call.kv_len != calls[0].kv_len
        if cross and (grows or not all(map(_equal, held[number], held[0]))):
            return f"call {number} has other keys than the call before"
        if not _equal(valid[:, start + least :], reach.valid[:, least:fresh]):
            return f"call {number} has other padding than the call before"
        valid = _side_by_side([valid, reach.valid[:, fresh:]])
        parts.append([each[:, :, fresh:] for each in held[number]])
        firsts.append(start + reach.first)
        stops.append(start + reach.stop)
    mask = padding_of(valid)
    if not cross:
        runs = _described(_side_by_side(firsts), _side_by_side(stops))
        if runs is None:
            return f"call {len(calls) - 1} has {NOT_CAUSAL}"
        mask = among(runs, mask)
    query = torch.cat([each.query for each in calls], dim=2)
    # The last call may have every key, so that nothing is copied.
    is_whole = held[-1][0].shape[2] == valid.shape[1]
    key, *value = (
        held[-1] if is_whole else [torch.cat(each, 2) for each in zip(*parts, strict=True)]
    )
    real = None
    if any(call.real_queries is not None for call in calls):
        every = [read_queries("real_queries", real_queries(call), call) for call in calls]
        real = _side_by_side(every)
        if not cross and _equal(real, valid[:, -query.shape[2] :]):
            real = None  # the keys of the whole tell
    mask = None if isinstance(mask, Full) else mask
    whole = calls[0].replace(query=query, key=key, mask=mask, real_queries=real)
    found = matrix_of(whole, *value)
    if all(each.context is not None for each in matrices):
        found._context = torch.cat([cast(Tensor, each.context) for each in matrices], dim=2)
    return found


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors (batch or 1, count) along the second dimension; rows of 1 are expanded."""
    count = max(map(len, parts))
    return torch.cat([each.expand(count, -1) for each in parts], dim=1)


def _described(first: Tensor, stop: Tensor) -> Mask | None:
    """Return a mask for the last queries of a text, or None if the pattern is not a known one.

    Each query sees the keys from its entry of `first` to that of `stop`, (batch or 1, query_len). The mask is causal,
    with a window if it has one; or causal, and whole within each picture.
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
            return None
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
    """Return True if two tensors of one dtype are equal after broadcasting; False for meta tensors."""
    alike = tensor.dtype == other.dtype and not tensor.is_meta
    return alike and torch.equal(*torch.broadcast_tensors(tensor, other))


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
