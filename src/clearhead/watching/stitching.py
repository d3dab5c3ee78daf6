"""Stitching of calls into one matrix that they are rows of, such as the steps of a generation.

Keys are at their places in the whole text. A step of a window has the last keys only, and a step of a
beam search continues rows of the step before: its link says which (`watching/continuing.py`).

Cross-attention has the same keys in each call, which says nothing of its queries: they go on where those of the
self-attention of the same text do, row by row.
"""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.attention.problem import Problem
from clearhead.masks.algebra import And
from clearhead.masks.base import Mask
from clearhead.masks.causal import causal
from clearhead.masks.documents import documents
from clearhead.masks.padding import PaddedTo, Valid, padding
from clearhead.masks.sliding_window import sliding_window
from clearhead.matrix.matrix import AttentionMatrix, matrix_of
from clearhead.matrix.real_queries import counting, real_queries
from clearhead.watching.continuing import Continuation

Held = Sequence[Tensor]
"""The key of a call, and its value where that is known."""

NOT_CAUSAL = "no causal mask, with or without padding, a window or chunks"


class Reach(NamedTuple):
    """The keys that the queries of a call see.

    Attributes:
        first: the place among the keys of the first that each query sees, padding aside, (query_len,);
            the last is its own.
        valid: True for the keys that are not padded, (batch or 1, kv_len); also for those before
            `first`, whose weights are not known.
    """

    first: Tensor
    valid: Tensor


def stitch(
    matrices: Sequence[AttentionMatrix],
    links: Sequence[Continuation | None],
    text: Sequence[AttentionMatrix] | None = None,
) -> AttentionMatrix | str:
    """Return the one matrix that the calls are rows of, or why they are not.

    They are if they go on from one another, as `continued` has it, and see their keys causally, in a window or in
    chunks, with the same padding; or, in cross-attention, if all have the same keys and mask, and the self-attention
    of their queries goes on.

    Args:
        matrices: one for each call.
        links: the link of each call of self-attention to the call before.
        text: of cross-attention, the calls of the self-attention of the same queries; None where it was not seen.
    """
    calls, held = [each.problem for each in matrices], _held(matrices)
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
    if calls[0].cross and text is None:
        return "no self-attention of the same queries was seen, which tells whether they go on"
    rows = continued(matrices if text is None else text, links)
    if isinstance(rows, str):
        return rows if text is None else f"in the self-attention of its queries {rows}"
    found = (_of_one_source if calls[0].cross else _of_growing_keys)(calls, held, rows)
    contexts = [each.context for each in matrices if each.context is not None]
    if isinstance(found, AttentionMatrix) and len(contexts) == len(calls):
        found._context = _in_order(contexts, rows)
    return found


def continued(
    matrices: Sequence[AttentionMatrix], links: Sequence[Continuation | None]
) -> list[Tensor] | str:
    """Return the samples of each call that the last call continues, or the reason why the chain breaks, in words.

    The calls are of self-attention. Each must continue the call before it.

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


def _held(matrices: Sequence[AttentionMatrix]) -> list[Held]:
    """Return the key of each matrix, with its value if all matrices have one."""
    values = [each.value for each in matrices if each.value is not None]
    if len(values) < len(matrices):
        return [(each.problem.key,) for each in matrices]
    return [(each.problem.key, value) for each, value in zip(matrices, values, strict=True)]


def _of_one_source(
    calls: Sequence[Problem], held: Sequence[Held], rows: Sequence[Tensor]
) -> AttentionMatrix | str:
    """Return calls with the same keys as one matrix, or why they are not its rows, in words."""
    first, valid = calls[0], None
    again = held[-1]
    for number in range(len(calls) - 1, -1, -1):
        real = _valid(calls[number])
        if real is None:
            return f"call {number} has a mask that differs from query to query"
        known = [each[rows[number]] for each in held[number]]
        if number + 1 < len(calls) and not all(map(_is_same, known, again)):
            return f"call {number + 1} has other keys than the call before"
        again = known
        real = _of_rows(real, rows[number])
        if valid is not None and not _equal(valid, real):
            return f"call {number + 1} has other padding than the call before"
        valid = real
    assert valid is not None
    query = _in_order([each.query for each in calls], rows)
    key, *value = held[-1]
    changes = {"query": query, "key": key, "mask": _padding(valid)}
    whole = first.replace(**changes, real_queries=_real_queries(calls, rows))
    return matrix_of(whole, *value)


def _in_order(parts: Sequence[Tensor], rows: Sequence[Tensor]) -> Tensor:
    """Concatenate the queries or contexts of all calls, with the samples of each that the last call continues."""
    return torch.cat([each[some] for each, some in zip(parts, rows, strict=True)], dim=2)


def _real_queries(calls: Sequence[Problem], rows: Sequence[Tensor]) -> Tensor | None:
    """Return the real queries of all calls, concatenated; None if no call has more than its keys tell."""
    if all(each.real_queries is None for each in calls):
        return None
    return torch.cat(
        [
            counting("real_queries", real_queries(each), each).expand(each.batch, -1)[some]
            for each, some in zip(calls, rows, strict=True)
        ],
        dim=1,
    )


def _of_growing_keys(
    calls: Sequence[Problem], held: Sequence[Held], rows: Sequence[Tensor]
) -> AttentionMatrix | str:
    """Return calls with growing keys as one causal matrix, or why they are not its rows, in words."""
    reaches: list[Reach] = []
    for number, call in enumerate(calls):
        reach = _reach(call)
        if reach is None:
            return f"call {number} has {NOT_CAUSAL}"
        reaches.append(reach)
    new_held = [[each[rows[0]] for each in held[0]]]
    valid = _of_rows(reaches[0].valid, rows[0])
    firsts = [reaches[0].first]
    for number, (call, reach, some) in enumerate(zip(calls, reaches, rows, strict=True)):
        if not number:
            continue
        before = valid.shape[1]
        # The keys of the call are the last so far, its own included.
        start = before + call.query_len - call.kv_len
        real = _of_rows(reach.valid, some)
        least = int(reach.first.min())
        known, again = valid[:, start + least :], real[:, least : call.kv_len - call.query_len]
        if not _equal(known, again):
            return f"call {number} has other padding than the call before"
        fresh = call.kv_len - call.query_len
        new_held.append([each[:, :, fresh:][some] for each in held[number]])
        new = real[:, call.kv_len - call.query_len :]
        count = max(len(valid), len(new))
        valid = torch.cat([valid.expand(count, -1), new.expand(count, -1)], dim=1)
        firsts.append(start + reach.first)
    mask = _described(torch.cat(firsts), valid.shape[1])
    if mask is None:
        return f"call {len(calls) - 1} has {NOT_CAUSAL}"
    if not valid.all():
        mask = mask & padding(valid if len(valid) > 1 else valid[0])
    query = _in_order([each.query for each in calls], rows)
    if _is_whole(calls[-1], rows, valid.shape[1]):
        key, *value = held[-1]
    else:
        key, *value = (torch.cat(each, dim=2) for each in zip(*new_held, strict=True))
    real = _real_queries(calls, rows)
    if real is not None and _equal(real, valid[:, valid.shape[1] - query.shape[2] :]):
        real = None  # the keys of the whole tell
    whole = calls[0].replace(query=query, key=key, mask=mask, real_queries=real)
    return matrix_of(whole, *value)


def _is_whole(last: Problem, rows: Sequence[Tensor], total: int) -> bool:
    """Return True if the last call has every key and every sample, so that nothing must be copied."""
    return last.kv_len == total and len(rows[-1]) == last.batch


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Return True if dtype and values of two tensors are equal; False on the meta device."""
    return not one.is_meta and one.dtype == other.dtype and torch.equal(one, other)


def _of_rows(valid: Tensor, rows: Tensor) -> Tensor:
    """Return the rows of a batch, or the tensor itself if it has a single row for all."""
    return valid[rows] if len(valid) > 1 else valid


def _described(first: Tensor, total: int) -> Mask | None:
    """Return a mask for queries at the end of `total` tokens, or None if the pattern is not a known one.

    Each query sees the keys from its entry of `first` on. The mask is causal, with a window or in chunks if it has
    one.
    """
    own = torch.arange(total - len(first), total, device=first.device)
    if bool((first == 0).all()):
        return causal()
    left = int((own - first).max())
    if torch.equal(first, (own - left).clamp(min=0)):
        return causal() & sliding_window(left=left)
    chunk = torch.unique_consecutive(first, return_inverse=True)[1]
    if len(first) == total and torch.equal(first, torch.searchsorted(chunk, chunk)):
        return documents(chunk) & causal()
    return None


def _reach(call: Problem) -> Reach | None:
    """Return the keys that the queries of a call see; None if that is not causal."""
    if call.query_len == 1:
        visible = torch.ones(1, 1, 1, call.kv_len, dtype=torch.bool, device=call.device)
        if call.mask is not None:
            given = call.visible()
            assert given is not None
            visible = given
        if visible.shape[1] > 1 or not visible[..., -1].any():
            return None
        # What no sample sees before the first key that one does may be out of a window.
        first = visible.any(dim=0).to(torch.uint8)[0].argmax(dim=-1)
        before = torch.arange(call.kv_len, device=call.device) < first
        return Reach(first, visible[:, 0, 0] | before)
    valid, rest = _padded(call)
    if not rest or not call.query_len:
        return None
    mask = reduce(lambda one, other: one & other, rest)
    spans = mask.spans(call.extent)
    if spans is not None:
        if spans.start.shape[0] > 1 or spans.pieces > 1:
            return None
        first, stop = spans.start[0, :, 0], spans.stop[0, :, 0]
    else:
        visible = mask.block(slice(0, call.query_len), slice(0, call.kv_len), call.extent)
        if visible.shape[:2] != (1, 1):
            return None
        visible = visible[0, 0]
        first = visible.to(torch.uint8).argmax(dim=-1)
        stop = first + visible.sum(dim=-1)
        last = call.kv_len - visible.flip(-1).to(torch.uint8).argmax(dim=-1)
        if not torch.equal(stop, last):
            return None
    own = torch.arange(call.kv_len - call.query_len, call.kv_len, device=call.device)
    return Reach(first, valid) if torch.equal(stop, own + 1) else None


def _valid(call: Problem) -> Tensor | None:
    """Return the keys that are visible, bool, (batch or 1, kv_len); None if queries or heads differ."""
    valid, rest = _padded(call)
    if rest and call.query_len != 1:
        return None
    for part in rest:
        seen = part.block(slice(0, 1), slice(0, call.kv_len), call.extent)
        if seen.shape[1] > 1:
            return None
        valid = valid & seen[:, 0, 0]
    return valid


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


def _padding(valid: Tensor) -> Mask | None:
    """Return the padding mask of the real keys; None if all are real."""
    if valid.all():
        return None
    return padding(valid if len(valid) > 1 else valid[0])


def _equal(tensor: Tensor, other: Tensor) -> bool:
    """Return True if two tensors are equal after broadcasting."""
    return torch.equal(*torch.broadcast_tensors(tensor, other))


def _alike(problem: Problem, other: Problem) -> bool:
    """Return True if two problems have equal options, apart from the mask."""
    if (problem.scale, problem.softcap) != (other.scale, other.softcap):
        return False
    if problem.sinks is None or other.sinks is None:
        return problem.sinks is other.sinks
    return torch.equal(problem.sinks, other.sinks)


def _parts(mask: Mask | None) -> list[Mask]:
    """Return the masks that are joined by &."""
    if isinstance(mask, And):
        return _parts(mask.left) + _parts(mask.right)
    return [] if mask is None else [mask]
