"""PyTorch's fused attention, which never holds queries × keys
(Dao et al., 2022, https://arxiv.org/abs/2205.14135).

A mask is lowered to the cheapest calls that mean the same: none at all, the causal flag, calls on
slices where every sample sees a rectangle or a triangle, or portions of queries with their part of
the mask. On every way a query with nothing to see gets zeros, and a NaN behind the mask stays there.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead import stages
from clearhead._common.text import format_bytes
from clearhead._common.torch_internals import (
    flash_cpu,
    flash_cpu_backward,
    is_autocast,
    is_plain,
)
from clearhead.attention.problem import Problem
from clearhead.errors import UnsupportedError
from clearhead.masks.causal import Causal
from clearhead.masks.spans import Spans

NAME = "fused"
SUMMARY = "PyTorch's fused scaled dot-product attention; memory grows with tokens"
MASK_PORTION = 1 << 22
SLICES_PER_ROW = 3
WORTH_SLICING = 1 << 19

FEW = 0.25
"""Up to which share of the pairs a mask is better gone through by blocks, with gradients."""


class Piece(NamedTuple):
    """One fused call: some samples, some queries, some keys."""

    rows: slice
    queries: slice
    keys: slice
    causal: bool
    masked: bool
    whole: bool = False
    """Whether it is the entire problem, so that there is nothing to slice."""


ALL = slice(None)
EVERYTHING = [Piece(ALL, ALL, ALL, causal=False, masked=False, whole=True)]
EVERYTHING_CAUSAL = [Piece(ALL, ALL, ALL, causal=True, masked=False, whole=True)]
EVERYTHING_MASKED = [Piece(ALL, ALL, ALL, causal=False, masked=True, whole=True)]


def refusals(problem: Problem) -> list[str]:
    """Why this kernel cannot run the problem, a line each; empty if it can."""
    reasons = []
    on_cpu = problem.query.is_cpu
    if problem.softcap is not None:
        reasons.append("softcap: PyTorch's fused attention has none")
    if problem.sinks is not None and not on_cpu:
        reasons.append(
            f"sinks: they need the logsumexp, which PyTorch's fused attention gives on the CPU; "
            f"the tensors are on {problem.device}"
        )
    if problem.dropout is not None and on_cpu:
        reasons.append("dropout: PyTorch's fused attention has none on the CPU")
    if problem.bias is not None and problem.bias.requires_grad and on_cpu:
        reasons.append(
            "bias that is trained: PyTorch's fused attention on the CPU gives it no gradient"
        )
    if problem.query.dtype == torch.float64 and problem.query.is_cuda:
        reasons.append("float64: PyTorch's fused attention has none on CUDA")
    if problem.has_tangents:
        reasons.append("forward-mode derivatives: PyTorch's fused attention has none")
    if not (problem.query.numel() and problem.value.numel()):
        reasons.append("an empty axis: there is nothing to fuse")
    return reasons


def defers(problem: Problem) -> list[str]:
    """Why another kernel is to be preferred to this one, where both can.

    With gradients, a mask as a tensor is slow, and each portion of it costs a gradient of all keys:
    where most pairs are hidden, blocks take half of the time.
    """
    if (
        problem.mask is None
        or problem.bias is not None
        or not _may_look(problem.query)
        or problem.query_len * problem.kv_len < WORTH_SLICING
        or not _has_gradient(problem)
    ):
        return []
    spans = problem.spans
    if spans is None:
        return []
    share = float((spans.stop - spans.start).sum(dim=(1, 2)).double().mean())
    share /= problem.query_len * problem.kv_len
    if share > FEW or not any(piece.masked for piece in lower(problem)):
        return []
    return [f"gradients through a mask that shows {share:.1%} of the pairs: blocks are faster"]


def how(problem: Problem) -> str:
    """What a run of the problem does, in a line."""
    pieces = lower(problem)
    kinds = []
    for kind, name in (
        ((False, False), "without a mask"),
        ((True, False), "with the causal flag"),
        ((False, True), "with a part of the mask"),
    ):
        count = sum((piece.causal, piece.masked) == kind for piece in pieces)
        if count:
            kinds.append(f"{count} {name}" if len(pieces) > 1 else name)
    calls = "one fused call" if len(pieces) == 1 else f"{len(pieces)} fused calls"
    text = f"{calls} on {problem.device.type}, {', '.join(kinds)}"
    largest = max((_mask_numbers(problem, piece) for piece in pieces if piece.masked), default=0)
    if largest:
        corner = problem.bias_block(slice(0, 1), slice(0, 1))
        width = 1 if corner is None else _in_precision(problem, corner).dtype.itemsize
        text += f"; the largest part of the mask takes {format_bytes(largest * width)}"
    width = problem.value.shape[3]
    if width != problem.query.shape[3]:
        text += f"; head_dim {problem.query.shape[3]} and value_head_dim {width} padded to one"
    return text


def attend(problem: Problem) -> Tensor:
    """The context, (batch, num_heads, query_len, value_head_dim)."""
    query, key, value = problem.query, problem.key, problem.value
    if is_autocast(query):
        # The tensors have been brought to their precision; a float32 bias keeps its own.
        with torch.autocast(query.device.type, enabled=False):
            return attend(problem)
    if _has_gradient(problem) and is_plain(query):
        query, key, value = _FirstDerivatives.apply(query, key, value)
        problem = problem.replace(query=query, key=key, value=value)
    pieces = lower(problem)
    if _may_look(query):
        # Small calls of the kernel take a NaN in the open for −∞, and the gradient of a hidden one
        # is NaN even where the result is not: so it is the inputs that are looked at.
        known = problem.keys_finite
        if stages.all_finite(query) and (
            known or (stages.all_finite(key) and stages.all_finite(value))
        ):
            return _run(problem, pieces, query, key, value)
    elif pieces is EVERYTHING or torch.onnx.is_in_onnx_export():
        # ONNX has an operator for attention, which says nothing of NaN.
        return _run(problem, pieces, query, key, value)
    return _run_apart(problem, pieces)


def logsumexp(problem: Problem) -> Tensor | None:
    """log Σ exp of the masked scores of each query, (batch, num_heads, query_len), in the
    precision of sums; None where PyTorch does not give it, or gives it wrong, as for a NaN."""
    query, key = problem.query, problem.key
    if not query.is_cpu or refusals(problem):
        return None
    known = problem.keys_finite
    if _may_look(query) and not (stages.all_finite(query) and (known or stages.all_finite(key))):
        return None
    pieces = lower(problem)
    parts = [_logsumexp_of_piece(problem, piece)[..., None] for piece in pieces]
    return _assemble(parts, pieces)[..., 0]


def lower(problem: Problem) -> list[Piece]:
    """The calls that together are the problem; together they cover every query of every sample."""
    mask = problem.mask
    if problem.bias is None:
        if mask is None:
            return EVERYTHING
        if isinstance(mask, Causal) and mask.offset is None:
            if problem.query.shape[2] == 1:
                return EVERYTHING  # the last token, as a cache asks for it
            if problem.query.shape[2] == problem.key.shape[2]:
                return EVERYTHING_CAUSAL
    spans = None
    if mask is not None and problem.query.is_cpu and not torch.compiler.is_compiling():
        spans = problem.spans
        if spans is not None and spans.pieces == 1 and problem.bias is None:
            sliced = _slices(problem, spans)
            if sliced:
                return sliced
    return _portions(problem, spans)


def _slices(problem: Problem, spans: Spans) -> list[Piece]:
    """Rectangles and triangles of queries × keys, if a few of them are the whole mask."""
    start, stop = spans.start[..., 0], spans.stop[..., 0]
    if bool((start == start[:1]).all()) and bool((stop == stop[:1]).all()):
        start, stop = start[:1], stop[:1]
    rows = start.shape[0]
    work = problem.num_heads * problem.query_len * problem.kv_len * problem.batch // rows
    if rows > 1 and work < WORTH_SLICING:
        return []
    # Both edges of the runs stand still (a rectangle), or only the end moves on (a triangle).
    steps = torch.stack([start.diff(dim=1), stop.diff(dim=1)], dim=-1)
    turns = (steps[:, 1:] != steps[:, :-1]).any(-1)
    if int(turns.sum()) > 2 * SLICES_PER_ROW * rows:
        return []
    pieces = []
    for row in range(rows):
        samples = slice(0, problem.batch) if rows == 1 else slice(row, row + 1)
        first = 0
        while first < problem.query_len:
            last = _end_of_run(steps[row], turns[row], first)
            low, high = int(start[row, first]), int(stop[row, first])
            step = steps[row, first].tolist() if last > first else [0, 0]
            queries = slice(first, last + 1)
            if step == [0, 0]:
                pieces.append(Piece(samples, queries, slice(low, high), False, False))
            elif step == [0, 1] and high == low + 1:
                square = slice(low, low + last + 1 - first)
                pieces.append(Piece(samples, queries, square, True, False))
            else:
                return []
            first = last + 1
    return pieces if len(pieces) <= SLICES_PER_ROW * rows else []


def _end_of_run(steps: Tensor, turns: Tensor, first: int) -> int:
    """The last query that goes on from `first` in equal steps."""
    if first >= steps.shape[0]:
        return first
    ahead = turns[first:].nonzero()
    return first + 1 + int(ahead[0]) if ahead.numel() else steps.shape[0]


def _portions(problem: Problem, spans: Spans | None) -> list[Piece]:
    """Portions of queries, each with the keys that they see and their part of the mask."""
    per_query = max(1, _masks(problem) * problem.kv_len)
    if problem.is_one_graph(per_query * problem.query_len, MASK_PORTION):
        return EVERYTHING_MASKED
    everything = slice(0, problem.batch)
    portion = max(16, MASK_PORTION // per_query)
    if spans is not None and problem.query_len > portion // 4:
        portion = min(portion, max(256, problem.query_len // 64))
    pieces = []
    for first in range(0, problem.query_len, portion):
        queries = slice(first, min(first + portion, problem.query_len))
        keys = slice(0, problem.kv_len)
        if spans is not None:
            start, stop = spans.start[:, queries], spans.stop[:, queries]
            used = stop > start
            low = int(start.masked_fill(~used, problem.kv_len).min())
            high = int(stop.masked_fill(~used, 0).max())
            keys = slice(min(low, high), high)
        pieces.append(Piece(everything, queries, keys, False, True))
    return pieces


def _mask_numbers(problem: Problem, piece: Piece) -> int:
    """How many numbers the part of the mask and bias of a piece has."""
    queries, keys = _lengths(problem, piece)
    return _masks(problem) * queries * keys


def _lengths(problem: Problem, piece: Piece) -> tuple[int, int]:
    """How many queries and keys a piece has."""
    if piece.whole:
        return problem.query_len, problem.kv_len
    return piece.queries.stop - piece.queries.start, piece.keys.stop - piece.keys.start


def _place(piece: Piece) -> tuple[slice | None, slice | None]:
    """The queries and keys of a piece; None for all."""
    return (None, None) if piece.whole else (piece.queries, piece.keys)


def _masks(problem: Problem) -> int:
    """How many samples and heads have a mask or a bias of their own."""
    heads = 1
    batch = 1
    if problem.mask is not None:
        batch, heads = problem.mask.batch or 1, problem.mask.heads or 1
    if problem.bias is not None:
        corner = problem.bias_block(slice(0, 1), slice(0, 1))
        assert corner is not None
        batch, heads = max(batch, corner.shape[0]), max(heads, corner.shape[1])
    return batch * heads


def _run(
    problem: Problem, pieces: list[Piece], query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    if pieces[0].whole and not pieces[0].masked and problem.sinks is None:
        return _fused(problem, query, key, value, None, pieces[0].causal)
    if len(pieces) == 1 or not _may_look(query) or _has_gradient(problem):
        parts = [_run_piece(problem, piece, query, key, value) for piece in pieces]
        return _assemble(parts, pieces)
    # Without gradients the results go straight to their place: half the memory.
    batch, heads, query_len, _ = query.shape
    context = query.new_empty(batch, query_len, heads, value.shape[3]).transpose(1, 2)
    for piece in pieces:
        part = _run_piece(problem, piece, query, key, value)
        context[piece.rows, :, piece.queries] = part
    return context


def _has_gradient(problem: Problem) -> bool:
    inputs = (problem.query, problem.key, problem.value, problem.sinks)
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)


def _run_piece(problem: Problem, piece: Piece, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key, value = _cut(piece, query, key, value)
    if key.shape[2] == 0:
        # Zeros that hang on everything given, so that each gets its gradient of zeros.
        nothing = query[..., :0].sum(dim=-1, keepdim=True) + key.sum() + value.sum()
        if problem.sinks is not None:
            nothing = nothing + problem.sinks[:0].sum()
        return nothing.expand(-1, -1, -1, value.shape[3])
    added, seen = _attn_mask(problem, piece)
    if problem.sinks is None:
        context = _fused(problem, query, key, value, added, piece.causal)
    else:
        context, total = _fused_with_logsumexp(problem, query, key, value, added, piece.causal)
        share = torch.sigmoid(total - stages.upcast(problem.sinks)[:, None])
        context = (context * share[..., None]).to(context.dtype)
    return context if seen is None else context.masked_fill(~seen, 0.0)


def _logsumexp_of_piece(problem: Problem, piece: Piece) -> Tensor:
    query, key = problem.query[piece.rows, :, piece.queries], problem.key[piece.rows, :, piece.keys]
    if key.shape[2] == 0:
        return torch.full_like(stages.upcast(query[..., 0]), -torch.inf)
    added, seen = _attn_mask(problem, piece)
    # Only the logsumexp is wanted; the key is at hand, and as wide as the kernel wants a value.
    _, total = _fused_with_logsumexp(problem, query, key, key, added, piece.causal)
    return total if seen is None else total.masked_fill(~seen[..., 0], -torch.inf)


def _cut(piece: Piece, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if piece.whole:
        return query, key, value
    return (
        query[piece.rows, :, piece.queries],
        key[piece.rows, :, piece.keys],
        value[piece.rows, :, piece.keys],
    )


def _fused(
    problem: Problem,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    causal: bool,
) -> Tensor:
    width = value.shape[3]
    query, key, value = _as_the_kernels_want(query, key, value)
    context = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask,
        problem.dropout or 0.0,
        causal,
        scale=problem.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return context if context.shape[3] == width else context[..., :width]


def _fused_with_logsumexp(
    problem: Problem,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    width = value.shape[3]
    query, key, value = _as_the_kernels_want(query, key, value)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(
            ~attn_mask, -torch.inf
        )
    context, total = _FlashWithLogsumexp.apply(query, key, value, attn_mask, causal, problem.scale)
    return context if context.shape[3] == width else context[..., :width], total


def _as_the_kernels_want(
    query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One width for all three, and neighbours in memory along it."""
    width, value_width = query.shape[3], value.shape[3]
    if width < value_width:
        query, key = (F.pad(t, (0, value_width - width)) for t in (query, key))
    elif width > value_width:
        value = F.pad(value, (0, width - value_width))
    if query.stride(3) != 1 or key.stride(3) != 1 or value.stride(3) != 1:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    return query, key, value


def _attn_mask(problem: Problem, piece: Piece) -> tuple[Tensor | None, Tensor | None]:
    """The part of mask and bias for one piece, and which queries see something; None for all.

    A query that sees nothing is shown everything, and its result is thrown away: kernels disagree
    about such queries, in the gradient above all.
    """
    if not piece.masked:
        return None, None
    visible, added = problem.visible(*_place(piece)), problem.bias_block(*_place(piece))
    if added is None:
        assert visible is not None
        seen = visible.any(dim=-1, keepdim=True)
        return (visible, None) if _all_seen(problem, seen) else (visible | ~seen, seen)
    assert problem.bias is not None
    queries, keys = _lengths(problem, piece)
    added = _in_precision(problem, added).expand(-1, -1, queries, keys)
    if visible is not None:
        added = torch.where(visible, added, -torch.inf)
    if problem.bias.may_hide:
        seen = added.amax(dim=-1, keepdim=True) != -torch.inf
    elif visible is not None:
        seen = visible.any(dim=-1, keepdim=True)
    else:
        return added, None
    return (added, None) if _all_seen(problem, seen) else (added.masked_fill(~seen, 0.0), seen)


def _in_precision(problem: Problem, added: Tensor) -> Tensor:
    """The bias in a dtype that the kernel takes beside the query's: on the CPU float32 with 16 bits
    too, which are not enough for numbers that stand beside sums."""
    query = problem.query
    keeps = query.is_cpu and query.dtype in (torch.float16, torch.bfloat16)
    return added if keeps else added.to(query.dtype)


def _all_seen(problem: Problem, seen: Tensor) -> bool:
    """Whether every query sees something, as far as that can be read at once."""
    return _may_look(problem.query) and bool(seen.all())


def _assemble(parts: list[Tensor], pieces: list[Piece]) -> Tensor:
    """Put the results of the pieces side by side; they come sample by sample, query by query."""
    if len(parts) == 1:
        return parts[0]
    samples: dict[int, list[Tensor]] = {}
    for part, piece in zip(parts, pieces, strict=True):
        # As the fused kernels lay it out, tokens before heads: what a layer wants next.
        samples.setdefault(piece.rows.start, []).append(part.transpose(1, 2))
    rows = [row[0] if len(row) == 1 else torch.cat(row, dim=1) for row in samples.values()]
    return (rows[0] if len(rows) == 1 else torch.cat(rows)).transpose(1, 2)


def _may_look(query: Tensor) -> bool:
    """Whether the values of the inputs can be read at once: not while tracing, and not on a device
    that would have to stop for it."""
    return query.is_cpu and is_plain(query)


def _run_apart(problem: Problem, pieces: list[Piece]) -> Tensor:
    """Compute with the finite part of the inputs, then put NaN where the rest may be seen."""
    query, key, value = problem.query, problem.key, problem.value
    context = _run(problem, pieces, *(stages.zero_nonfinite(t) for t in (query, key, value)))
    with torch.no_grad():
        unusable = torch.cat(
            [
                ~torch.isfinite(value),
                stages.nonfinite_rows(key)[..., None],
                torch.ones_like(key[..., :1], dtype=torch.bool),
            ],
            dim=-1,
        ).float()
        unusable = stages.repeat_kv_heads(unusable, problem.num_heads)
        counts = _assemble([_seen_of(problem, piece, unusable) for piece in pieces], pieces)
        from_value, from_key, any_key = counts[..., :-2], counts[..., -2:-1], counts[..., -1:]
        whole_query = (from_key > 0) | (stages.nonfinite_rows(query)[..., None] & (any_key > 0))
        shows = (from_value > 0) | whole_query
    return context.masked_fill(shows, torch.nan)


def _seen_of(problem: Problem, piece: Piece, marks: Tensor) -> Tensor:
    """How many marked keys each query of a piece may attend to, per mark."""
    marks = marks[piece.rows, :, piece.keys]
    if piece.causal:
        return marks.cumsum(dim=2)
    visible = problem.visible(*_place(piece)) if piece.masked else None
    if visible is None:
        queries, _ = _lengths(problem, piece)
        return marks.sum(dim=2, keepdim=True).expand(-1, -1, queries, -1)
    return visible.float() @ marks


class _FirstDerivatives(torch.autograd.Function):
    """Inputs as they are, whose gradients say why they have none of their own: PyTorch would name an
    operator that nobody has called, or nothing at all."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)
        return tuple(each.view_as(each) for each in inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        # With the inputs, so that a gradient hangs on all of them.
        return _NoSecond.apply(*grads, *ctx.saved_tensors)


class _NoSecond(torch.autograd.Function):
    """Gradients that cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        grads = tensors[: len(tensors) // 2]
        return tuple(None if each is None else each.view_as(each) for each in grads)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        raise UnsupportedError(
            "kernel.second-derivative",
            'kernel="fused" has first derivatives only; kernel="eager" has all of them.',
        )


class _FlashWithLogsumexp(torch.autograd.Function):
    """PyTorch's flash attention on the CPU, with a gradient through the logsumexp as well."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None,
        causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        context, total = flash_cpu(query, key, value, attn_mask, causal, scale)
        ctx.save_for_backward(query, key, value, attn_mask, context, total)
        ctx.causal, ctx.scale = causal, scale
        return context, total

    @staticmethod
    @torch.autograd.function.once_differentiable  # its type hides the name of ctx
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        grad_context, grad_total = grads
        query, key, value, attn_mask, context, total = ctx.saved_tensors
        # The gradient of a score is P · (dP − Σ P dP), and the logsumexp adds P · its gradient.
        # One more value column of ones, with that gradient, adds it to dP; its context is given
        # as 0, so that the sum does not take it away again.
        width = query.shape[3]
        query, key = F.pad(query, (0, 1)), F.pad(key, (0, 1))
        value = F.pad(value, (0, 1), value=1.0)
        context = F.pad(context, (0, 1))
        grad_context = torch.cat(
            [grad_context, grad_total[..., None].to(grad_context.dtype)], dim=-1
        )
        tensors, results = (query, key, value), (context, total)
        grad_query, grad_key, grad_value = flash_cpu_backward(
            grad_context, tensors, results, attn_mask, ctx.causal, ctx.scale
        )
        return (
            grad_query[..., :width],
            grad_key[..., :width],
            grad_value[..., :width],
            None,
            None,
            None,
        )
