"""The two sides of a profile: somebody's attention, and ours of the same sizes."""

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead.attention.biases import Bias, SumOfBiases, as_bias
from clearhead.attention.distance_biases import alibi
from clearhead.attention.functional import attend
from clearhead.checking.contract import Contract
from clearhead.checking.evidence.feeding import found, longest, width_of
from clearhead.checking.subject.embedding import Embedded
from clearhead.checking.subject.subject import Subject
from clearhead.errors import ArgumentError, ModelError
from clearhead.layers import MultiHeadAttention
from clearhead.masks.base import Mask
from clearhead.masks.causal import causal
from clearhead.masks.coerce import and_masks, as_mask
from clearhead.masks.sliding_window import sliding_window

HEADS, HEAD_DIM, BATCH = 4, 64, 1


class Sides(NamedTuple):
    """Both sides, with inputs for any length.

    Attributes:
        draw: the inputs of a length; the floating ones are trained on the way back.
        theirs: somebody's attention.
        ours: ours.
        parameters: of both, trained on the way back.
        words: the sizes.
        longest: the most tokens that theirs takes, or None.
    """

    draw: Callable[[int], tuple[Tensor, ...]]
    theirs: Callable[..., Tensor]
    ours: Callable[..., Tensor]
    parameters: tuple[list[nn.Parameter], list[nn.Parameter]]
    words: str
    longest: int | None


def sides(subject: Subject, contract: Contract, device: torch.device) -> Sides:
    """Both sides for what is profiled.

    Raises:
        ArgumentError: code `profile.takes`, for "decode" and "ids".
        ModelError: code `profile.sizes`, for a module whose width is not found.
    """
    if subject.takes == "decode":
        raise ArgumentError(
            "profile.takes",
            'what is called one step at a time (takes="decode") is not profiled; profile its full '
            'pass with takes="x".',
        )
    if isinstance(subject.run, Embedded):
        raise ArgumentError(
            "profile.takes",
            'a whole model (takes="ids") does more than attend; profile the attention in it.',
        )
    subject = subject.within(torch.float32)
    if subject.module is not None and subject.copied:
        subject.module.to(device)
    if subject.takes.startswith("qkv"):
        return _of_qkv(subject, contract, device)
    return _of_tokens(subject, contract, device)


def _of_qkv(subject: Subject, contract: Contract, device: torch.device) -> Sides:
    num_heads, num_kv_heads = contract.heads()
    num_heads = num_heads or max(HEADS, num_kv_heads or 1)
    num_kv_heads = num_kv_heads or num_heads
    dim = contract.sizes.get("head_dim", HEAD_DIM)
    value_dim = contract.sizes.get("value_head_dim", dim)
    masked = subject.takes == "qkv,mask"

    def draw(tokens: int) -> tuple[Tensor, ...]:
        shapes = (num_heads, tokens, dim), (num_kv_heads, tokens, dim)
        shapes = *shapes, (num_kv_heads, tokens, value_dim)
        drawn = tuple(torch.randn(BATCH, *shape, device=device) for shape in shapes)
        if not masked:
            return drawn
        every = torch.ones(BATCH, 1, tokens, tokens, dtype=torch.bool, device=device)
        return (*drawn, every.tril() if contract.causal else every)

    def ours(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        seen = and_masks(_mask(contract), as_mask(mask))
        return attend(query, key, value, mask=seen, **_options(contract, query))

    words = f"batch {BATCH}, {num_heads} heads of width {dim}"
    if num_kv_heads != num_heads:
        words += f", {num_kv_heads} of keys and values"
    return Sides(draw, subject.bare, ours, ([], []), words, contract.sizes.get("context_length"))


def _of_tokens(subject: Subject, contract: Contract, device: torch.device) -> Sides:
    d_in = width_of(subject, contract)
    if d_in is None:
        raise ModelError(
            "profile.sizes",
            f"the width of the input of {subject.name} is not found; give it: sizes=dict(d_in=…).",
        )
    num_heads = found("num_heads", subject, contract) or 1
    num_kv_heads = found("num_kv_heads", subject, contract) or num_heads
    d_out = found("d_out", subject, contract) or d_in
    d_context = (found("d_context", subject, contract) if "context" in subject.takes else 0) or d_in
    dim = found("head_dim", subject, contract) or max(1, d_out // num_heads)
    layer = MultiHeadAttention(
        d_in,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads if num_heads % num_kv_heads == 0 else num_heads,
        head_dim=dim,
        context_dim=d_context,
        output_dim=d_out,
        mask=_mask(contract),
    ).to(device)
    layer.eval()
    leading = () if subject.takes == "x2d" else (BATCH,)

    def draw(tokens: int) -> tuple[Tensor, ...]:
        x = torch.randn(*leading, tokens, d_in, device=device)
        if subject.takes == "x,context":
            return x, torch.randn(*leading, tokens, d_context, device=device)
        if subject.takes == "x,mask":
            # The last eighth is padding.
            real = torch.arange(tokens, device=device) < tokens - tokens // 8
            return x, real.expand(*leading, tokens)
        return (x,)

    def ours(x: Tensor, beside: Tensor | None = None) -> Tensor:
        if beside is None or subject.takes == "x,context":
            return layer(x, beside)
        return layer(x, valid=beside)

    words = f"batch {BATCH}, width {d_in}, {num_heads} head{'s' * (num_heads > 1)} of width {dim}"
    theirs = [] if subject.module is None else list(subject.module.parameters())
    parameters = (theirs, list(layer.parameters()))
    return Sides(draw, subject.bare, ours, parameters, words, longest(subject, contract))


def _mask(contract: Contract) -> Mask | None:
    seen = causal() if contract.causal else None
    if contract.window is None:
        return seen
    left, right = contract.window
    return and_masks(seen, sliding_window(left=left, right=right))


def _options(contract: Contract, query: Tensor) -> dict[str, Any]:
    """The options of `attend` that are declared beside the mask."""
    biases: list[Bias] = []
    if contract.bias is not None:
        tokens = query.shape[2]
        biases.append(as_bias(contract.bias(tokens, tokens).to(query)[None]))
    if contract.alibi_slopes is not None:
        biases.append(alibi(slopes=contract.alibi_slopes.to(query)))
    bias = reduce(SumOfBiases, biases) if biases else None
    sinks = None if contract.sinks is None else contract.sinks.to(query)
    return {"scale": contract.scale, "softcap": contract.softcap, "bias": bias, "sinks": sinks}
