"""PyTorch's FlexAttention, compiled, on CUDA (Dong et al., 2024, https://arxiv.org/abs/2412.05496).

The mask goes there as the runs of keys of each query, and its blocks are counted from these runs, so
that no pair is ever asked whether it is visible but those of the blocks at the edges. The first call
of a kind compiles for seconds, so that "auto" leaves this kernel to those who ask for it by name.
"""

import inspect
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from clearhead.attention.biases import Bias, DenseBias
from clearhead.attention.distance_biases import Alibi, Relative
from clearhead.attention.kernels._nonfinite import contain
from clearhead.attention.problem import Problem
from clearhead.errors import UnsupportedError
from clearhead.masks.algebra import leaves
from clearhead.masks.base import Mask
from clearhead.masks.blocks import FULL, PARTIAL
from clearhead.masks.causal import Causal
from clearhead.masks.documents import Documents
from clearhead.masks.padding import PaddedTo, Valid
from clearhead.masks.per_row import PerRow
from clearhead.masks.prefix import Prefix
from clearhead.masks.sliding_window import SlidingWindow
from clearhead.masks.spans import Spans

NAME = "flex"
SUMMARY = "PyTorch's FlexAttention, compiled, on CUDA; memory grows with tokens"

BLOCK = 128
"""Queries, and keys, of a block: what FlexAttention has been tuned for."""

RUNS = 4
"""The most runs of keys that a query may see: each is compared with at every pair of a ragged block or tile."""

LEAST_WIDTH = 16

OF_THEIR_FIELDS = (Causal, Documents, PaddedTo, Prefix, SlidingWindow, Valid)
"""The masks that are what their fields say, and change only where a tensor among these is written to."""

_BLOCKS: WeakKeyDictionary[Mask, tuple[Hashable, torch_flex.BlockMask]] = WeakKeyDictionary()
"""The blocks that a mask had when it was last asked, and what it was asked."""

Flex = Callable[..., Any]
Scores = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Visible = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def refusals(problem: Problem) -> list[str]:
    """Return the reasons why this kernel cannot run the problem; [] if it can. Off CUDA, that alone is the reason."""
    if not problem.query.is_cuda:
        # Alone: the rest would be computed for every call on the CPU that others refuse.
        return [f"it is compiled for CUDA; the tensors are on {problem.device}"]
    return limits(problem)


def limits(problem: Problem) -> list[str]:
    """Return the reasons why this kernel cannot run the problem on any device; [] if it can."""
    reasons = []
    if problem.query.dtype == torch.float64:
        reasons.append("float64: FlexAttention has none on CUDA")
    if problem.dropout is not None:
        reasons.append("dropout: FlexAttention has none")
    if problem.has_tangents:
        reasons.append("forward-mode derivatives: FlexAttention has none")
    if not (problem.query.numel() and problem.value.numel()):
        reasons.append("an empty axis: there is nothing to compile for")
    elif min(problem.query.shape[3], problem.value.shape[3]) < LEAST_WIDTH:
        reasons.append(
            f"narrow heads: FlexAttention wants a width of {LEAST_WIDTH} or more; got "
            f"head_dim={problem.query.shape[3]}, value_head_dim={problem.value.shape[3]}"
        )
    bias = problem.bias
    if bias is not None and bias.requires_grad:
        reasons.append("bias that is trained: this kernel gives it no gradient")
    elif bias is not None and not isinstance(bias, DenseBias | Alibi | Relative):
        reasons.append(
            "bias of one's own class: this kernel takes a tensor, alibi and relative; got "
            f"{type(bias).__name__}"
        )
    return reasons + _mask_refusals(problem)


def _mask_refusals(problem: Problem) -> list[str]:
    """Return the reasons why no block mask can be made from the spans of the mask; [] if one can, or without a mask."""
    if not problem.readable:
        return [
            "tensors that cannot be read: blocks are found by reading the mask, which "
            "torch.compile, torch.func and the meta device do not allow"
        ]
    if problem.mask is None:
        return []
    spans = problem.spans
    if spans is None:
        return ["mask that is no short list of runs of keys for each query"]
    if spans.pieces > RUNS:
        return [f"mask of many runs: up to {RUNS} runs of keys a query; got {spans.pieces}"]
    return []


def defers(problem: Problem) -> list[str]:
    """Return the reasons why "auto" prefers a later kernel: its first call compiles for seconds."""
    return ["its first call compiles for seconds: it runs where it is asked for by name"]


def how(problem: Problem) -> str:
    """Return one line that describes how the kernel runs the problem; the mask is read for its blocks."""
    if problem.mask is None:
        return "one compiled call, without a mask"
    kinds = problem.mask.blocks(problem.query_len, problem.kv_len, BLOCK).kinds
    partial, empty = int((kinds == PARTIAL).sum()), int((kinds != FULL).sum())
    empty -= partial
    return (
        f"one compiled call; of {kinds.numel()} blocks of {BLOCK} × {BLOCK} pairs {empty} are "
        f"skipped and {partial} masked"
    )


def attend(problem: Problem) -> Tensor:
    """Return the context, (batch, num_heads, query_len, value_head_dim).

    Raises:
        UnsupportedError: code `kernel.compilations`, where PyTorch would run uncompiled, with queries × keys numbers.
    """
    from torch._dynamo import config, exc  # the compiler, which takes seconds to import

    try:
        with config.patch(fail_on_recompile_limit_hit=True):
            return attend_by(_compiled(_kind(problem)), problem)
    except exc.FailOnRecompileLimitHit as error:
        raise UnsupportedError(
            "kernel.compilations",
            'kernel="flex" compiles each kind of call; PyTorch compiles one function up to '
            f"{config.recompile_limit} times and then runs it uncompiled, with queries × keys numbers. "
            "Raise torch._dynamo.config.recompile_limit, or call torch.compiler.reset() and ask for fewer kinds.",
        ) from error


def attend_by(flex: Flex, problem: Problem) -> Tensor:
    """Return the context by `flex`, compiled or not, on any device; NaN is contained, block masks are cached."""
    spans = problem.spans
    blocks = None if spans is None else _kept_block_mask(problem, spans)
    return contain(
        problem,
        lambda finite: _run(flex, finite, blocks),
        lambda _, marks: _shares(flex, problem, blocks, marks),
    )


def _run(flex: Flex, problem: Problem, blocks: torch_flex.BlockMask | None) -> Tensor:
    """Return the context of a finite problem, with sinks, in the query's dtype; 0 for queries that see nothing."""
    wanted = _hides(problem) or problem.sinks is not None
    context, total = _call(flex, problem, _scores(problem), blocks, wanted)
    if problem.sinks is not None:
        assert total is not None
        share = torch.sigmoid(total - problem.sinks.to(total.dtype)[:, None])
        context = context * share[..., None].to(context.dtype)
    return _zero_empty_rows(problem, context, total).to(problem.query.dtype)


def _zero_empty_rows(problem: Problem, context: Tensor, total: Tensor | None) -> Tensor:
    """Return the context with 0 for queries that see nothing, by the logsumexp or the spans; unchanged without both."""
    sees = _sees(problem.spans) if total is None else total.detach() > -torch.inf
    return context if sees is None else context.masked_fill(~sees[..., None], 0)


def _hides(problem: Problem) -> bool:
    """Return True if there is a bias that may contain −∞."""
    return problem.bias is not None and problem.bias.may_hide


def _kept_block_mask(problem: Problem, spans: Spans) -> torch_flex.BlockMask:
    """Return the block mask of a problem with a mask, cached in `_BLOCKS` under it: layers and steps share it.

    Another length, device, inference mode or a write to a tensor replaces it. Not cached if a change could go
    unnoticed.
    """
    assert problem.mask is not None
    versions = _versions(problem.mask)
    if versions is None:
        return block_mask(problem, spans)
    lengths = problem.query_len, problem.kv_len
    asked = *lengths, problem.device, torch.is_inference_mode_enabled(), versions
    before, blocks = _BLOCKS.get(problem.mask, (None, None))
    if blocks is None or before != asked:
        blocks = block_mask(problem, spans)
        _BLOCKS[problem.mask] = asked, blocks
    return blocks


def _versions(mask: Mask) -> tuple[int, ...] | None:
    """Return how often each tensor of a mask was written to; None if a change could go unnoticed."""
    versions = []
    for leaf in leaves(mask):
        if type(leaf) not in OF_THEIR_FIELDS:
            return None
        for field in vars(leaf).values():
            numbers = field.value if isinstance(field, PerRow) else field
            if isinstance(numbers, Tensor):
                if numbers.is_inference():  # nobody counts
                    return None
                versions.append(numbers._version)
    return tuple(versions)


def block_mask(problem: Problem, spans: Spans) -> torch_flex.BlockMask:
    """Return the mask of a problem, which must have one, as FlexAttention's BlockMask, made from its spans.

    It equals the result of `create_block_mask`, which evaluates every pair, in O(tokens + blocks).
    """
    assert problem.mask is not None
    query_len, kv_len = problem.query_len, problem.kv_len
    kinds = problem.mask.blocks(query_len, kv_len, BLOCK).kinds.to(problem.device)
    kinds = kinds.view(-1, 1, *kinds.shape[-2:])
    full = kinds == FULL
    # A full block is not masked at all, so that it must not reach beyond the tokens there are.
    full[:, :, query_len // BLOCK :] = False
    full[:, :, :, kv_len // BLOCK :] = False
    partial = (kinds == PARTIAL) | ((kinds == FULL) & ~full)
    return torch_flex.BlockMask.from_kv_blocks(
        *_listed(partial),
        *_listed(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=_visible(spans),
        seq_lengths=(query_len, kv_len),
    )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of True blocks in each row, (…, rows), and its block indices, True ones first, both int32.

    `blocks` is bool, (…, rows, columns), and the indices have its shape.
    """
    number = blocks.sum(-1, dtype=torch.int32)
    order = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return number, order.to(torch.int32).contiguous()


def _sees(spans: Spans | None) -> Tensor | None:
    """Return which queries see a key, (batch or 1, 1, query_len); None without spans, when all do."""
    if spans is None:
        return None
    return (spans.stop > spans.start).any(-1)[:, None]


def _visible(spans: Spans) -> Visible:
    """Return the mask_mod of FlexAttention: True if a key is in one of the runs of a query."""
    start, stop = spans.start.contiguous(), spans.stop.contiguous()
    pieces, several = spans.pieces, spans.start.shape[0] > 1

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Return True if the key is in a run of the query in sample `row`; all are indices."""
        row = row if several else torch.zeros_like(row)
        seen = (start[row, query, 0] <= key) & (key < stop[row, query, 0])
        for piece in range(1, pieces):
            seen = seen | ((start[row, query, piece] <= key) & (key < stop[row, query, piece]))
        return seen

    return visible


def _scores(problem: Problem) -> Scores | None:
    """Return the score_mod for softcap and bias; None if there is neither."""
    softcap = problem.softcap
    added = None if problem.bias is None else _added(problem.bias, problem)
    if softcap is None and added is None:
        return None

    def scores(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Return the scaled score of a pair of sample `row`, capped, and with its bias added."""
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if added is not None:
            score = score + added(row, head, query, key)
        return score

    return scores


def _hiding(problem: Problem) -> Scores | None:
    """Return the score_mod that sets a pair to −∞ where the bias is −∞; None without a bias that may hide."""
    if problem.bias is None or not problem.bias.may_hide:
        return None
    added = _added(problem.bias, problem)

    def hiding(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Return −∞ where the bias of the pair is −∞, else the score."""
        return torch.where(added(row, head, query, key) == -torch.inf, -torch.inf, score)

    return hiding


def _added(bias: Bias, problem: Problem) -> Visible:
    """Return the function (sample, head, query, key) → bias of the pair; the bias must have `numbers`."""
    numbers = bias.numbers
    assert numbers is not None
    numbers = numbers.to(problem.device)
    behind = problem.kv_len - problem.query_len
    if isinstance(bias, Alibi):
        return lambda row, head, query, key: -numbers[head] * (query + behind - key).abs()
    if isinstance(bias, Relative):
        reach, one = numbers.shape[1] // 2, numbers.shape[0] == 1
        return lambda row, head, query, key: numbers[
            torch.zeros_like(head) if one else head,
            (key - query - behind).clamp(-reach, reach) + reach,
        ]
    single = [size == 1 for size in numbers.shape]
    return lambda *place: numbers[
        tuple(
            torch.zeros_like(index) if one else index
            for index, one in zip(place, single, strict=True)
        )
    ]


def _call(
    flex: Flex,
    problem: Problem,
    scores: Scores | None,
    blocks: torch_flex.BlockMask | None,
    logsumexp: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return the context, and the logsumexp or None if `logsumexp` is False.

    Mask and bias are `blocks` and `scores`.
    """
    options: dict[str, Any] = {}
    if logsumexp and hasattr(torch_flex, "AuxRequest"):
        options["return_aux"] = torch_flex.AuxRequest(lse=True)
    elif logsumexp:
        options["return_lse"] = True
    result = flex(
        problem.query,
        problem.key,
        problem.value,
        score_mod=scores,
        block_mask=blocks,
        scale=problem.scale,
        enable_gqa=problem.num_heads != problem.num_kv_heads,
        **options,
    )
    if not logsumexp:
        return result, None
    context, more = result
    return context, more if isinstance(more, Tensor) else more.lse


def _shares(
    flex: Flex, problem: Problem, blocks: torch_flex.BlockMask | None, marks: Tensor
) -> Tensor:
    """Return the share of each query's visible keys that are marked, (batch, num_heads, query_len, marks).

    0 for a query that sees no key.
    """
    # Scores of nought give every visible key the same share, which nothing makes too small.
    query, key = torch.zeros_like(problem.query), torch.zeros_like(problem.key)
    marks = marks.to(query.dtype)
    width, more = problem.value.shape[3], marks.shape[3] - problem.value.shape[3]
    shares = []
    # As wide as the value: FlexAttention does not take every width.
    for some in (marks[..., :width], marks[..., -width:]):
        nought = problem.replace(query=query, key=key, value=some)
        share, total = _call(flex, nought, _hiding(problem), blocks, _hides(problem))
        shares.append(_zero_empty_rows(problem, share, total))
    return torch.cat([shares[0], shares[1][..., -more:]], dim=-1)


def _kind(problem: Problem) -> Hashable:
    """Return, as a hashable tuple, what the compiled code depends on apart from the sizes of tensors."""
    bias, spans = problem.bias, problem.spans
    numbers = None if bias is None else bias.numbers
    return (
        problem.softcap,
        problem.scale,
        type(bias),
        None if numbers is None else tuple(size == 1 for size in numbers.shape),
        None if spans is None else (spans.pieces, spans.start.shape[0] > 1),
        problem.sinks is None,
        problem.num_heads == problem.num_kv_heads,
        problem.query.dtype,
    )


@cache
def _compiled(kind: Hashable) -> Flex:
    """Return FlexAttention compiled for one kind of call.

    Cached, since PyTorch limits the compilations per function.
    """
    apart: dict[str, Any] = {}
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        apart["isolate_recompiles"] = True
    return torch.compile(torch_flex.flex_attention, **apart)
