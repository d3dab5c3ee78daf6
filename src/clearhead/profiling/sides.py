"""The two sides of a profile: somebody's attention, and ours of the same sizes."""

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead.attention.biases import Bias, SumOfBiases, as_bias
from clearhead.attention.distance_biases import alibi
from clearhead.attention.functional import attend
from clearhead.checking.checking import KINDS
from clearhead.checking.contract import Contract
from clearhead.checking.evidence.feeding import found, longest, width_of
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.subject.embedding import Embedded
from clearhead.checking.subject.subject import Subject
from clearhead.errors import ArgumentError, ModelError
from clearhead.layers import MultiHeadAttention
from clearhead.masks.base import Mask
from clearhead.masks.causal import causal
from clearhead.masks.dense import and_masks, as_mask
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
        notes: what is to be said of the sizes.
    """

    draw: Callable[[int], tuple[Tensor, ...]]
    theirs: Callable[..., Tensor]
    ours: Callable[..., Tensor]
    parameters: tuple[list[nn.Parameter], list[nn.Parameter]]
    words: str
    longest: int | None
    notes: tuple[str, ...] = ()


class PeerSizes(NamedTuple):
    """The heads of a module, and the width of what it gives."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_head_dim: int
    d_out: int

    @property
    def words(self) -> str:
        """The heads as text."""
        text = f"{self.num_heads} head{'s' * (self.num_heads > 1)} of width {self.head_dim}"
        if self.value_head_dim != self.head_dim:
            text += f" (values {self.value_head_dim})"
        if self.num_kv_heads != self.num_heads:
            text += f", {self.num_kv_heads} of keys and values"
        return text


def sides(subject: Subject, contract: Contract, device: torch.device, seed: int) -> Sides:
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
    return _of_tokens(subject, contract, device, seed)


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


def _of_tokens(subject: Subject, contract: Contract, device: torch.device, seed: int) -> Sides:
    d_in = width_of(subject, contract)
    if d_in is None:
        raise ModelError(
            "profile.sizes",
            f"the width of the input of {subject.name} is not found; give it: sizes=dict(d_in=…).",
        )
    sizes, notes = _sizes(subject, contract, d_in, seed)
    d_context = (found("d_context", subject, contract) if "context" in subject.takes else 0) or d_in
    layer = MultiHeadAttention(
        d_in,
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        value_head_dim=sizes.value_head_dim,
        context_dim=d_context,
        output_dim=sizes.d_out,
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

    words = f"batch {BATCH}, width {d_in}, {sizes.words}"
    theirs = [] if subject.module is None else list(subject.module.parameters())
    parameters = (theirs, list(layer.parameters()))
    most = longest(subject, contract)
    return Sides(draw, subject.bare, ours, parameters, words, most, notes)


def _sizes(
    subject: Subject, contract: Contract, d_in: int, seed: int
) -> tuple[PeerSizes, tuple[str, ...]]:
    """The sizes of a module: those that are declared before those that a call shows, and its
    attributes where nothing is shown; and what is to be said of them."""
    notes: list[str] = []
    seen = _measured(subject, contract, seed)
    if seen is None:
        num_heads = found("num_heads", subject, contract) or 1
        dim = found("head_dim", subject, contract) or max(1, d_in // num_heads)
        kv_heads = found("num_kv_heads", subject, contract) or num_heads
        kv_heads = kv_heads if num_heads % kv_heads == 0 else num_heads
        sizes = PeerSizes(num_heads, kv_heads, dim, dim, found("d_out", subject, contract) or d_in)
        notes.append(
            f"no call shows its heads; the fused call has {sizes.words}, as far as declared or named"
        )
        return sizes, tuple(notes)
    sizes, count = seen
    if count > 1:
        notes.append(f"it attends {count} times; the fused call has the heads of the first")
    heads, kv_heads = contract.heads()
    heads = heads or sizes.num_heads
    dim, value_dim = (contract.sizes.get(name) for name in ("head_dim", "value_head_dim"))
    declared = sizes._replace(
        num_heads=heads,
        num_kv_heads=kv_heads or max(1, sizes.num_kv_heads * heads // sizes.num_heads),
        head_dim=dim or max(1, sizes.head_dim * sizes.num_heads // heads),
        value_head_dim=value_dim or max(1, sizes.value_head_dim * sizes.num_heads // heads),
    )
    if declared != sizes:
        notes.append(f"declared are {declared.words}; a call shows {sizes.words}")
    return declared, tuple(notes)


def _measured(subject: Subject, contract: Contract, seed: int) -> tuple[PeerSizes, int] | None:
    """The heads that `check` sees in a call, and how many attentions; None where it sees none."""
    try:
        evidence = KINDS[subject.takes](subject, contract, seed)
        assert isinstance(evidence, TokensEvidence)  # of anything else the inputs are heads
        group, split = evidence.groups[0], evidence.splittings[0]
        arranged = group.arranged
        if arranged is None:
            return None
        keys = torch.cat([arranged.heads(each.key, keys=True) for each in group.attentions], 1)
        num_heads, one = keys.shape[1], group.attentions[0]
        # One head of keys for all, but for the mistake that takes one of several.
        alone = torch.equal(keys, keys[:, :1].expand_as(keys)) and "key" not in split.alike
        kv_heads = split.kv_heads or (1 if alone else num_heads)
        dims = one.query.shape[-1], one.value.shape[-1]
        sizes = PeerSizes(num_heads, kv_heads, *dims, d_out=evidence.output.shape[-1])
        return sizes, len(evidence.groups)
    except Exception:  # what cannot be observed can be timed all the same
        return None


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
