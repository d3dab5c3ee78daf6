"""The definition of attention, one small function per stage.

Scaled dot-product attention (Vaswani et al., 2017, https://arxiv.org/abs/1706.03762):

    scores          = query · keyᵀ
    scaled_scores   = scale · scores
    capped_scores   = softcap · tanh(scaled_scores / softcap)      (Gemma Team, 2024, arXiv:2408.00118)
    masked_scores   = capped_scores + bias where visible, −∞ elsewhere
    weights         = softmax(masked_scores) over the keys
    dropped_weights = weights, some set to zero, the others × 1/(1 − dropout)
    context         = dropped_weights · value

Everything else in the package is held against this file: the kernels, the trace, the ladder.
Inputs have shape (..., len, dim). 16-bit inputs are computed in float32 and rounded once, at the
end. Two things are decided here for all of the package. A query that may attend to nothing gets
weights 0, context 0, gradient 0 and logsumexp −∞. And a hidden pair exchanges nothing at all, so
that a NaN behind the mask stays there; one in the open shows.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

NAMES = (
    "scores",
    "scaled_scores",
    "capped_scores",
    "masked_scores",
    "weights",
    "dropped_weights",
    "context",
)

IN_A_ROW = 1 << 14
"""How many numbers are looked at by a dot product, for which they may have to be copied."""


class Stages(NamedTuple):
    """Every stage between the query, key and value and the context, in order."""

    scores: Tensor
    scaled_scores: Tensor
    capped_scores: Tensor
    masked_scores: Tensor
    weights: Tensor
    dropped_weights: Tensor
    context: Tensor


def scores(
    query: Float[Tensor, "*batch query_len head_dim"], key: Float[Tensor, "*batch kv_len head_dim"]
) -> Float[Tensor, "*batch query_len kv_len"]:
    """How well each query matches each key: their dot product.

    A query or key with an entry that is not finite makes its own scores NaN and no others, in the
    gradient as well.
    """
    query, key = upcast(query), upcast(key)
    matches = matmul(zero_nonfinite(query), zero_nonfinite(key).mT)
    return matches.masked_fill(
        nonfinite_rows(query)[..., :, None] | nonfinite_rows(key)[..., None, :], torch.nan
    )


def scaled_scores(
    scores: Float[Tensor, "*batch query_len kv_len"], scale: float
) -> Float[Tensor, "*batch query_len kv_len"]:
    """The scores in units that do not grow with head_dim: usually scale = 1/√head_dim."""
    return scores * scale


def capped_scores(
    scaled_scores: Float[Tensor, "*batch query_len kv_len"], softcap: float | None
) -> Float[Tensor, "*batch query_len kv_len"]:
    """The scores bent into (−softcap, softcap)."""
    return scaled_scores if softcap is None else softcap * torch.tanh(scaled_scores / softcap)


def masked_scores(
    capped_scores: Float[Tensor, "*batch query_len kv_len"],
    bias: Float[Tensor, "..."] | None,
    visible: Bool[Tensor, "..."] | None,
) -> Float[Tensor, "*batch query_len kv_len"]:
    """The scores with the bias added, and −∞ where a query may not attend."""
    if bias is not None:
        capped_scores = capped_scores + upcast(bias)
    if visible is not None:
        capped_scores = torch.where(visible, capped_scores, -torch.inf)
    return capped_scores


def weights(
    masked_scores: Float[Tensor, "*batch query_len kv_len"],
    sinks: Float[Tensor, "*#heads"] | None = None,
) -> Float[Tensor, "*batch query_len kv_len"]:
    """The scores of a query as shares of one: their softmax, over the keys.

    A sink is one more score per head that takes its share and gives no value
    (Xiao et al., 2024, https://arxiv.org/abs/2309.17453; learned in gpt-oss, 2025).
    """
    hidden, empty = _hidden_and_empty(masked_scores)
    # A query whose scores are NaN gets NaN, and sends no gradient: 0 · NaN would reach its keys.
    broken = ~(masked_scores < torch.inf).all(dim=-1, keepdim=True)
    masked_scores = masked_scores.masked_fill(empty | broken, 0.0)
    if sinks is None:
        shares = torch.softmax(masked_scores, dim=-1)
    else:
        sink = upcast(sinks)[..., :, None, None].expand(*masked_scores.shape[:-1], 1)
        shares = torch.softmax(torch.cat([masked_scores, sink], dim=-1), dim=-1)[..., :-1]
    return shares.masked_fill(broken, torch.nan).masked_fill(hidden, 0.0)


def logsumexp(
    masked_scores: Float[Tensor, "*batch query_len kv_len"],
) -> Float[Tensor, "*batch query_len"]:
    """log Σ exp of a query's masked scores, over the keys; −∞ if it may attend to nothing."""
    _, empty = _hidden_and_empty(masked_scores)
    # As in the weights: a query whose scores are NaN sends no gradient.
    broken = torch.isnan(masked_scores).any(dim=-1, keepdim=True)
    total = torch.logsumexp(masked_scores.masked_fill(empty | broken, 0.0), dim=-1)
    return total.masked_fill(broken[..., 0], torch.nan).masked_fill(empty[..., 0], -torch.inf)


def dropped_weights(
    weights: Float[Tensor, "*batch query_len kv_len"], dropout: float | None
) -> Float[Tensor, "*batch query_len kv_len"]:
    """The weights with some set to zero at random and the others × 1/(1 − dropout)
    (Srivastava et al., 2014, https://jmlr.org/papers/v15/srivastava14a.html)."""
    return weights if dropout is None else torch.dropout(weights, dropout, True)


def context(
    dropped_weights: Float[Tensor, "*batch query_len kv_len"],
    value: Float[Tensor, "*batch kv_len value_head_dim"],
    visible: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch query_len value_head_dim"]:
    """The values, each counted as much as its weight says.

    A value that is not finite makes NaN of what every query that may attend to it gets, and so do
    weights that are NaN.
    """
    accumulating = upcast(value)
    broken = torch.isnan(dropped_weights.sum(dim=-1, keepdim=True))
    mixed = matmul(dropped_weights.masked_fill(broken, 0.0), zero_nonfinite(accumulating))
    unusable = ~torch.isfinite(accumulating)
    if visible is None:
        shows = unusable.any(dim=-2, keepdim=True)
    else:
        seen = visible.to(mixed.dtype).expand(dropped_weights.shape)
        shows = matmul(seen, unusable.to(mixed.dtype)) > 0
    return mixed.masked_fill(shows | broken, torch.nan).to(value.dtype)


def compute(
    query: Float[Tensor, "*batch query_len head_dim"],
    key: Float[Tensor, "*batch kv_len head_dim"],
    value: Float[Tensor, "*batch kv_len value_head_dim"],
    *,
    scale: float,
    softcap: float | None = None,
    bias: Float[Tensor, "..."] | None = None,
    visible: Bool[Tensor, "..."] | None = None,
    sinks: Float[Tensor, "..."] | None = None,
    dropout: float | None = None,
) -> Stages:
    """All stages in order, each a call of the function of its name.

    Example:
        >>> import torch
        >>> query = key = value = torch.eye(2)
        >>> compute(query, key, value, scale=1.0).weights
        tensor([[0.7311, 0.2689],
                [0.2689, 0.7311]])
    """
    raw = scores(query, key)
    scaled = scaled_scores(raw, scale)
    capped = capped_scores(scaled, softcap)
    masked = masked_scores(capped, bias, visible)
    shares = weights(masked, sinks)
    dropped = dropped_weights(shares, dropout)
    return Stages(raw, scaled, capped, masked, shares, dropped, context(dropped, value, visible))


def repeat_kv_heads(
    tensor: Float[Tensor, "batch num_kv_heads kv_len dim"], num_heads: int
) -> Float[Tensor, "batch num_heads kv_len dim"]:
    """Keys or values for each query head: head h reads key head h // (num_heads / num_kv_heads)
    (Ainslie et al., 2023, https://arxiv.org/abs/2305.13245)."""
    groups = num_heads // tensor.shape[-3]
    return tensor if groups == 1 else tensor.repeat_interleave(groups, dim=-3)


def upcast(tensor: Tensor) -> Tensor:
    """The tensor in the precision that sums are made in: float32 for 16 bits, else its own."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """A matrix product in the precision of its factors, which autocast would lower."""
    device = left.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return left @ right
    with torch.autocast(device, enabled=False):
        return left @ right


def zero_nonfinite(tensor: Tensor) -> Tensor:
    """The tensor with 0 where an entry is not finite."""
    return tensor.masked_fill(~torch.isfinite(tensor), 0.0)


def all_finite(tensor: Tensor) -> bool:
    """Whether every entry is finite, found without another tensor of its size.

    A sum tells, unless it overflows.

    Example:
        >>> all_finite(torch.tensor([1.0, torch.inf]))
        False
    """
    if math.isfinite(tensor.sum().item()):
        return True
    return all(math.isfinite(end.item()) for end in torch.aminmax(tensor))


def both_finite(left: Tensor, right: Tensor) -> bool:
    """Whether every entry of two tensors is finite.

    Their dot product tells in one go, where they are small enough to be laid out in a row for it.

    Example:
        >>> both_finite(torch.tensor([1.0, 0.0]), torch.tensor([0.0, torch.inf]))
        False
    """
    numbers = left.numel()
    if (
        numbers == right.numel()
        and numbers <= IN_A_ROW
        and math.isfinite(torch.dot(left.reshape(-1), right.reshape(-1)).item())
    ):
        return True
    return all_finite(left) and all_finite(right)


def nonfinite_rows(tensor: Float[Tensor, "*batch len dim"]) -> Bool[Tensor, "*batch len"]:
    """True for each row that has an entry that is not finite."""
    return ~torch.isfinite(tensor).all(dim=-1)


def _hidden_and_empty(masked_scores: Tensor) -> tuple[Tensor, Tensor]:
    """Which scores are −∞, and, with a last axis of size 1, which queries have nothing else."""
    hidden = masked_scores == -torch.inf
    return hidden, hidden.all(dim=-1, keepdim=True)
