"""PyTorch's fused attention, which never holds queries × keys.

A mask is lowered to the cheapest calls that mean the same: none at all, the causal flag, calls on
slices where every sample sees a rectangle or a triangle, one call over identical tiles (a window,
documents of one length), or chunks of queries with their part of the mask. On every path a query that sees nothing
gets zeros, and a hidden NaN has no effect (Dao et al., 2022, https://arxiv.org/abs/2205.14135).
"""

import torch
from torch import Tensor

from clearhead._common.torch_internals import (
    can_read_now,
    is_autocast,
    is_exporting_to_onnx,
    is_inside_functorch,
    is_jit_tracing,
    is_transformed,
)
from clearhead._text import format_bytes
from clearhead.attention.kernels._by_scores import MOST_QUERIES, context_by_scores, fits
from clearhead.attention.kernels._fused_calls import (
    are_documents,
    documents_by_length,
    fused_call,
    in_precision,
    logsumexp_of_piece,
    run_documents,
    run_piece,
)
from clearhead.attention.kernels._lowering import (
    EVERYTHING,
    EVERYTHING_CAUSAL,
    EVERYTHING_MASKED,
    MOST_CALLS,
    WORTH_SLICING,
    Piece,
    assemble,
    count,
    cut_to_read_keys,
    lower,
    mask_numbers,
)
from clearhead.attention.kernels._nonfinite import SMALL, all_finite, contain
from clearhead.attention.problem import Problem
from clearhead.masks.small import hide
from clearhead.masks.tiles import WIDE_TILE, length
from clearhead.sharding.dtensors import is_dtensor

NAME = "fused"
SUMMARY = "PyTorch's fused scaled dot-product attention; memory grows with tokens"

FEW = 0.25
"""Up to which share of the pairs a mask is better gone through by blocks, with gradients."""


def refusals(problem: Problem) -> list[str]:
    """Return the reasons why this kernel cannot run the problem; [] if it can.

    Each reason starts with the option against it.
    """
    reasons = []
    query, bias, sinks = problem.query, problem.bias, problem.sinks
    on_cpu = query.is_cpu
    if problem.softcap is not None:
        reasons.append("softcap: PyTorch's fused attention has none")
    if sinks is not None and not on_cpu:
        reasons.append(
            "sinks: they need the logsumexp and its gradient, which this kernel has on the CPU alone; "
            f"the tensors are on {problem.device}"
        )
    if sinks is not None and is_exporting_to_onnx():
        reasons.append("sinks in ONNX: its operator for attention gives no logsumexp")
    if problem.dropout is not None and on_cpu:
        reasons.append("dropout: PyTorch's fused attention has none on the CPU")
    # torch.jit.trace checks what it has recorded without gradients. Without sinks it finds its way at
    # each call.
    if (
        bias is not None
        and on_cpu
        and (sinks is not None if is_jit_tracing() else bias.requires_grad)
    ):
        reasons.append(
            "bias that is trained: PyTorch's fused attention on the CPU gives it no gradient"
        )
    if query.is_cuda and query.dtype == torch.float64:
        reasons.append("float64: PyTorch's fused attention has none on CUDA")
    if on_cpu and type(query) is not Tensor and is_dtensor(query):
        reasons.append("DTensors: PyTorch's fused attention on the CPU gives them no gradient")
    has_others = bias is not None or sinks is not None
    if has_others and on_cpu and _has_transformed_option(problem):
        reasons.append(
            "sinks or a bias under torch.func: PyTorch's fused attention on the CPU gives them no "
            "gradient there"
        )
    if problem.has_tangents:
        reasons.append("forward-mode derivatives: PyTorch's fused attention has none")
    if not (query.numel() and problem.value.numel()):
        reasons.append("an empty axis: there is nothing to fuse")
    return reasons


def defers(problem: Problem) -> list[str]:
    """Return the reasons why "auto" prefers a later kernel; [] if there are none.

    It defers, with gradients, for a mask that has spans, shows at most FEW of the pairs and needs a mask tensor, but
    for wide tiles: a gradient of all keys for each chunk takes twice as long as blocks. Never with a bias, or for small
    or unreadable problems.
    """
    if (
        problem.mask is None
        or problem.bias is not None
        or not _has_gradient(problem)
        or not can_read_now(problem.query)
        or problem.query_len * problem.kv_len < WORTH_SLICING
    ):
        return []
    spans = problem.spans
    if spans is None:
        return []
    share = float((spans.stop - spans.start).sum(dim=(1, 2)).double().mean())
    share /= problem.query_len * problem.kv_len
    if share > FEW:
        return []
    pieces = lower(problem)
    # One call over tiles is as fast, but for narrow ones with a mask: each key is in many of them.
    wide = any(piece.tiles > 1 and length(piece.queries) >= WIDE_TILE for piece in pieces)
    if wide or not any(piece.masked for piece in pieces):
        return []
    return [f"gradients through a mask that shows {share:.1%} of the pairs: blocks are faster"]


def how(problem: Problem) -> str:
    """Return one line that describes how the kernel runs the problem; the mask is read for its pieces."""
    pieces = lower(problem)
    if _is_by_scores(*_sliced(problem, pieces)):
        queries = "1 query" if problem.query_len == 1 else f"{problem.query_len} queries"
        return f"two products around a softmax on {problem.device.type}, for {queries}"
    if _is_documents(problem, pieces):
        groups = documents_by_length(problem, pieces)
        return f"{len(groups)} fused calls on {problem.device.type}, over {len(pieces)} documents by length"
    kinds = []
    for kind, name in (
        ((False, False), "without a mask"),
        ((True, False), "with the causal flag"),
        ((False, True), "with a part of the mask"),
    ):
        some = [piece for piece in pieces if (piece.causal, piece.masked) == kind]
        if some:
            tiles = sum(piece.tiles for piece in some if piece.tiles > 1)
            over = f" ({tiles} tiles in one)" if tiles else ""
            kinds.append(f"{len(some)} {name}{over}" if len(pieces) > 1 else f"{name}{over}")
    calls = "one fused call" if len(pieces) == 1 else f"{len(pieces)} fused calls"
    text = f"{calls} on {problem.device.type}, {', '.join(kinds)}"
    largest = max((mask_numbers(problem, piece) for piece in pieces if piece.masked), default=0)
    if largest:
        corner = problem.bias_block(slice(0, 1), slice(0, 1))
        width = 1 if corner is None else in_precision(problem, corner).dtype.itemsize
        text += f"; the largest part of the mask takes {format_bytes(largest * width)}"
    if _is_bare(problem, pieces):
        text += "; non-finite entries are not contained"
    width = problem.value.shape[3]
    if width != problem.query.shape[3]:
        text += f"; head_dim {problem.query.shape[3]} and value_head_dim {width} padded to one"
    return text


def attend(problem: Problem) -> Tensor:
    """Return the context, (batch, num_heads, query_len, value_head_dim), in the query's dtype, with autocast disabled.

    Non-finite inputs are contained, except in ONNX, and off the CPU without a mask or with the causal flag
    alone. Second derivatives raise UnsupportedError, code `kernel.second-derivative`.
    """
    query = problem.query
    if is_autocast(query):
        # The tensors have been brought to their precision; a float32 bias keeps its own.
        with torch.autocast(query.device.type, enabled=False):
            return attend(problem)
    pieces = lower(problem)
    if not pieces[0].whole:
        problem, pieces = _sliced(problem, pieces)
    if problem.key.numel() > SMALL and _is_by_scores(problem, pieces):
        mask, nothing = problem.mask if pieces[0].masked else None, query.new_zeros(())
        added = None if mask is None else hide(nothing, mask, problem.extent)
        context = context_by_scores(query, problem.key, problem.value, problem.scale, added)
        if context is not None:
            return context
    if can_read_now(query):
        # The inputs are checked, and not the result: small calls of the kernel treat a visible NaN as −∞, and the
        # gradient of a hidden one is NaN even where the result is not.
        is_safe = all_finite(problem if pieces[0].whole else cut_to_read_keys(problem, pieces))
    else:
        # ONNX does not define what NaN does.
        is_safe = _is_bare(problem, pieces) or is_exporting_to_onnx()
    if is_safe:
        return _run(problem, pieces)
    return contain(
        problem,
        lambda finite: _run(finite, pieces),
        lambda _, marks: count(problem, pieces, marks),
        read=False,
    )


def _is_bare(problem: Problem, pieces: list[Piece]) -> bool:
    """Return True if non-finite values are not contained: off the CPU, without a mask or with the causal flag alone.

    A check would wait for the device, and these kernels propagate a visible NaN themselves.
    """
    return not problem.query.is_cpu and (pieces is EVERYTHING or pieces is EVERYTHING_CAUSAL)


def _sliced(problem: Problem, pieces: list[Piece]) -> tuple[Problem, list[Piece]]:
    """Return the problem cut to the keys of its only piece, without a mask, and EVERYTHING; else both unchanged.

    It is cut if there is one piece that is open, has keys, and is not the whole problem.
    """
    first = pieces[0]
    if first.whole or not first.is_open or len(pieces) > 1 or not length(first.keys):
        return problem, pieces
    key, value = problem.key[:, :, first.keys], problem.value[:, :, first.keys]
    return problem.replace(key=key, value=value, mask=None), EVERYTHING


def logsumexp(problem: Problem) -> Tensor | None:
    """Return log Σ exp of the masked scores of each query, (batch, num_heads, query_len), without the sinks, upcast.

    None off the CPU, if this kernel refuses the problem, under torch.func, and if query or key is not finite.
    """
    query = problem.query
    in_functorch = not torch.compiler.is_compiling() and is_inside_functorch()
    if not query.is_cpu or refusals(problem) or in_functorch:
        return None
    pieces = lower(problem)
    if can_read_now(query) and not all_finite(cut_to_read_keys(problem, pieces), with_value=False):
        return None
    parts = [logsumexp_of_piece(problem, piece)[..., None] for piece in pieces]
    return assemble(parts, pieces)[..., 0]


def _run(problem: Problem, pieces: list[Piece]) -> Tensor:
    """Return the context, (batch, num_heads, query_len, value_head_dim), of a finite problem, lowered to `pieces`."""
    query, key, value = problem.query, problem.key, problem.value
    if pieces[0].whole and not pieces[0].masked and problem.sinks is None:
        return fused_call(problem, query, key, value, None, pieces[0].causal)
    if _is_documents(problem, pieces):
        return run_documents(problem, pieces)
    return assemble([run_piece(problem, piece) for piece in pieces], pieces)


def _is_documents(problem: Problem, pieces: list[Piece]) -> bool:
    """Return True if the pieces are documents, as `are_documents` decides, that are computed together.

    They are if there are more than MOST_CALLS, or more than one with gradients: a slice for each would take a gradient
    of all keys.
    """
    few = 1 if _has_gradient(problem) else MOST_CALLS
    return len(pieces) > few and are_documents(pieces)


def _has_gradient(problem: Problem) -> bool:
    """Return True if grad mode is on and query, key, value or sinks require grad; the bias does not count."""
    inputs = problem.query, problem.key, problem.value, problem.sinks
    wanted = any(each is not None and each.requires_grad for each in inputs)
    return wanted and torch.is_grad_enabled()


def _is_by_scores(problem: Problem, pieces: list[Piece]) -> bool:
    """Return True if two matmuls around a softmax compute the problem at least as fast as a fused call.

    That takes a single piece for all queries, up to MOST_QUERIES, on the CPU, without bias, sinks and gradients.
    """
    query = problem.query
    return (
        (pieces is EVERYTHING or pieces is EVERYTHING_MASKED)
        and query.shape[2] <= MOST_QUERIES
        and problem.bias is None
        and problem.sinks is None
        and can_read_now(query)
        and not _has_gradient(problem)
        and fits(query, problem.key, problem.value, problem.keys_finite)
    )


def _has_transformed_option(problem: Problem) -> bool:
    """Return True if torch.func transforms the tensor of the bias, or is active for a problem with sinks.

    False while torch.compile compiles.
    """
    if torch.compiler.is_compiling():
        return False
    bias = None if problem.bias is None else problem.bias.numbers
    if bias is not None and is_transformed(bias):
        return True
    return problem.sinks is not None and is_inside_functorch()
