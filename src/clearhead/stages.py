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
end.

The stages come first, as plain arithmetic. Below them each product and each softmax is contained,
which decides two things for all of the package. An empty row, a query that may attend to nothing,
gets weights 0, context 0, gradient 0 and logsumexp −∞. And a hidden pair exchanges nothing at all,
so that a hidden NaN has no effect; a visible one shows.
"""

import math
from collections.abc import Callable
from functools import wraps
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead._shapes import Bool, Float

NAMES = (
    "scores",
    "scaled_scores",
    "capped_scores",
    "masked_scores",
    "weights",
    "dropped_weights",
    "context",
)


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
    query: Float[Tensor, "*batch query_len head_dim"],
    key: Float[Tensor, "*batch kv_len head_dim"],
    factor: float = 1.0,
) -> Float[Tensor, "*batch query_len kv_len"]:
    """Return the dot product of each query with each key, upcast.

    NaN for a query or key that is not finite or could overflow; it sends no gradient. `factor` is for that check alone:
    the number that the product is multiplied by later.
    """
    return matmul(query, key.mT)


def scaled_scores(
    scores: Float[Tensor, "*batch query_len kv_len"], scale: float
) -> Float[Tensor, "*batch query_len kv_len"]:
    """Return the scores times the scale, usually 1/√head_dim, so that they do not grow with it."""
    return scores * scale


def capped_scores(
    scaled_scores: Float[Tensor, "*batch query_len kv_len"], softcap: float | None
) -> Float[Tensor, "*batch query_len kv_len"]:
    """Return softcap · tanh(scores / softcap), which is in (−softcap, softcap); the scores if softcap is None."""
    return scaled_scores if softcap is None else softcap * torch.tanh(scaled_scores / softcap)


def masked_scores(
    capped_scores: Float[Tensor, "*batch query_len kv_len"],
    bias: Float[Tensor, "..."] | None,
    visible: Bool[Tensor, "..."] | None,
) -> Float[Tensor, "*batch query_len kv_len"]:
    """Return the scores with the bias added, and −∞ where `visible` is False; None adds or hides nothing."""
    if bias is not None:
        capped_scores = capped_scores + upcast(bias)
    if visible is not None:
        capped_scores = torch.where(visible, capped_scores, -torch.inf)
    return capped_scores


def weights(
    masked_scores: Float[Tensor, "*batch query_len kv_len"],
    sinks: Float[Tensor, "*#heads"] | None = None,
    log: bool = False,
) -> Float[Tensor, "*batch query_len kv_len"]:
    """Return the softmax of the scores of each query over the keys, or with `log` its logarithm.

    A sink is one more score per head that takes its share and has no value (Xiao et al., 2024,
    https://arxiv.org/abs/2309.17453; learned in gpt-oss, 2025). A query that sees nothing gets zeros; one with a NaN or
    +∞ in its scores or sink gets NaN for visible keys, and sends no gradient. A logarithm is −∞ for hidden keys alone.
    """
    softmax = torch.log_softmax if log else torch.softmax
    if sinks is None:
        return softmax(masked_scores, dim=-1)
    sink = upcast(sinks)[..., :, None, None].expand(*masked_scores.shape[:-1], 1)
    return softmax(torch.cat([masked_scores, sink], dim=-1), dim=-1)[..., :-1]


def logsumexp(
    masked_scores: Float[Tensor, "*batch query_len kv_len"],
) -> Float[Tensor, "*batch query_len"]:
    """Return log Σ exp of each query's masked scores, over the keys, without sinks.

    −∞ if it may attend to nothing, NaN if a score is NaN; neither sends a gradient.
    """
    return torch.logsumexp(masked_scores, dim=-1)


def dropped_weights(
    weights: Float[Tensor, "*batch query_len kv_len"], dropout: float | None
) -> Float[Tensor, "*batch query_len kv_len"]:
    """Return the weights with some set to zero at random and the others × 1/(1 − dropout); unchanged for None.

    See Srivastava et al., 2014, https://jmlr.org/papers/v15/srivastava14a.html.
    """
    return weights if dropout is None else torch.dropout(weights, dropout, True)


def context(
    dropped_weights: Float[Tensor, "*batch query_len kv_len"],
    value: Float[Tensor, "*batch kv_len value_head_dim"],
    visible: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch query_len value_head_dim"]:
    """Return the mean of the values, each with its weight, in the dtype of the value.

    NaN where a query may see a non-finite entry, or has a weight of NaN. `visible` says which values are hidden from
    it; None means that all are seen.
    """
    return matmul(dropped_weights, value)


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
    """Return all stages, computed in order, each by the function of its name; None leaves an option out.

    Example:
        >>> import torch
        >>> query = key = value = torch.eye(2)
        >>> compute(query, key, value, scale=1.0).weights
        tensor([[0.7311, 0.2689],
                [0.2689, 0.7311]])
    """
    raw = scores(query, key, largest_factor(scale, softcap))
    scaled = scaled_scores(raw, scale)
    capped = capped_scores(scaled, softcap)
    masked = masked_scores(capped, bias, visible)
    shares = weights(masked, sinks)
    dropped = dropped_weights(shares, dropout)
    return Stages(raw, scaled, capped, masked, shares, dropped, context(dropped, value, visible))


def repeat_kv_heads(
    tensor: Float[Tensor, "batch num_kv_heads kv_len dim"], num_heads: int
) -> Float[Tensor, "batch num_heads kv_len dim"]:
    """Return the key or value of each query head, repeated; the tensor itself if there is one for each.

    Head h reads key head h // (num_heads / num_kv_heads); see Ainslie et al., 2023, https://arxiv.org/abs/2305.13245.
    """
    groups = num_heads // tensor.shape[-3]
    return tensor if groups == 1 else tensor.repeat_interleave(groups, dim=-3)


def upcast(tensor: Tensor) -> Tensor:
    """Return the tensor in the precision of sums: float32 for 16-bit dtypes, otherwise unchanged."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """Return the matrix product of two tensors, in their own dtype, with autocast disabled."""
    device = left.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return left @ right
    with torch.autocast(device, enabled=False):
        return left @ right


def zero_nonfinite(tensor: Tensor) -> Tensor:
    """Return a copy of the tensor with 0 instead of NaN and ±∞."""
    return tensor.masked_fill(~torch.isfinite(tensor), 0.0)


def largest_factor(scale: float, softcap: float | None) -> float:
    """Return the largest of 1, |scale| and |scale| / softcap.

    The largest number that a kernel may multiply scores by.
    """
    factor = max(1.0, abs(scale))
    return factor if softcap is None else max(factor, abs(scale) / softcap)


def nonfinite_rows(
    tensor: Float[Tensor, "*batch len dim"], factor: float = 1.0
) -> Bool[Tensor, "*batch len"]:
    """Return True for each row of a query or key that is not finite, or whose products may overflow.

    A row whose length times `factor` is too large counts as well: its sum of squares is above a quarter of the largest
    number. The product of two rows within the bound does not overflow (Cauchy-Schwarz), in any order of summation. A
    query that sees a non-finite entry, or a score that overflows, is NaN on every kernel. Where only this bound
    is exceeded and the score does not overflow, NaN and the number are both right.

    Example:
        >>> nonfinite_rows(torch.tensor([[1.0, 2.0], [1e20, 0.0], [torch.nan, 0.0]]))
        tensor([False,  True,  True])
    """
    exact = upcast(tensor.detach())
    if factor > 1.0:
        exact = exact * factor
    return ~(exact.square().sum(dim=-1) <= longest(exact.dtype))


def longest(dtype: torch.dtype) -> float:
    """Return the largest sum of squares of a row at which it counts as finite: a quarter of the largest number.

    That of float32 for every dtype but float64.
    """
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).max / 4


SAFE_LENGTH = 2.0**60
"""The length that all rows together may have so that each of them counts as finite, in any dtype."""


def zero_rows(tensor: Tensor, rows: Bool[Tensor, "*batch len"]) -> Tensor:
    """Return a copy of a tensor, (*batch, len, dim), with 0 in the rows where `rows` is True."""
    return tensor.masked_fill(rows[..., None], 0.0)


def infinite_sinks(sinks: Float[Tensor, "*heads"]) -> Bool[Tensor, "*heads"]:
    """Return True for each sink that is NaN or +∞, bool; a sink of −∞ has no share."""
    return ~(sinks.detach() < torch.inf)


def all_finite(tensor: Tensor) -> bool:
    """Return True if every entry is finite, without another tensor of its size; it syncs the device.

    The sum decides, unless it overflows.

    Example:
        >>> all_finite(torch.tensor([1.0, torch.inf]))
        False
    """
    if math.isfinite(tensor.sum().item()):
        return True
    return all(math.isfinite(end.item()) for end in torch.aminmax(tensor))


def rows_finite(tensor: Tensor, factor: float = 1.0) -> bool:
    """Return True if no row of a query or key is not finite or could overflow, as `nonfinite_rows` decides; it syncs.

    The norm of all rows together, or of each part of the tensor, decides where it is small enough.

    Example:
        >>> rows_finite(torch.tensor([[1e18, 1.0]])), rows_finite(torch.tensor([[1e20, 1.0]]))
        (True, False)
    """
    safe = 2.0**500 if tensor.dtype == torch.float64 else SAFE_LENGTH
    if tensor.dtype in (torch.float32, torch.float64) and tensor.is_contiguous():
        numbers = tensor.detach().view(-1)
        length = math.sqrt(torch.dot(numbers, numbers).item())  # faster than the norm
    else:
        length = _longest_part(tensor).item()
    if length * factor <= safe:
        return True
    return not nonfinite_rows(tensor, factor).any()


def _longest_part(tensor: Tensor) -> Tensor:
    """Return, as a scalar tensor, the largest norm of the slices that are dense in memory, or of the whole tensor.

    It bounds the norm of every row. PyTorch takes seven times as long over gaps in memory.
    """
    if tensor.is_contiguous():
        return torch.linalg.vector_norm(tensor)
    sizes, strides = tensor.shape, tensor.stride()
    for first in range(tensor.ndim - 1):
        steps = zip(sizes[first:], strides[first:], strict=True)
        if 1 + sum((n - 1) * step for n, step in steps) == math.prod(sizes[first:]):
            inside = tuple(range(first, tensor.ndim))
            return torch.linalg.vector_norm(tensor, dim=inside).max()
    return torch.linalg.vector_norm(tensor)


# Containment. A weight of 0 is not enough to keep a NaN behind the mask: 0 · NaN is NaN, forward
# through the values and backward through keys and queries. So each stage is computed with the finite
# part of its inputs, and NaN is then written where something non-finite may be seen.


def _contain_scores(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap `scores`: upcast both; a query or key that `nonfinite_rows` names gets NaN, and sends no gradient."""

    @wraps(plain)
    def contained(query: Tensor, key: Tensor, factor: float = 1.0) -> Tensor:
        """Return the scores of the upcast query and key, NaN for rows of either that `nonfinite_rows` names."""
        query, key = upcast(query), upcast(key)
        queries, keys = nonfinite_rows(query, factor), nonfinite_rows(key)
        matches = plain(zero_rows(query, queries), zero_rows(key, keys))
        return matches.masked_fill(queries[..., :, None] | keys[..., None, :], torch.nan)

    return contained


def _contain_weights(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap `weights`: empty rows get 0, with `log` −∞, and a query with NaN or ∞ in scores or sink gets NaN.

    Neither sends a gradient, since 0 · NaN would reach the keys.
    """

    @wraps(plain)
    def contained(masked_scores: Tensor, sinks: Tensor | None = None, log: bool = False) -> Tensor:
        """Return the weights, or with `log` their logarithms; NaN at visible keys of queries that are not finite."""
        hidden, empty = _hidden_and_empty(masked_scores)
        nonfinite = ~(masked_scores < torch.inf).all(dim=-1, keepdim=True)
        if sinks is not None:
            infinite = infinite_sinks(sinks)
            sinks = sinks.masked_fill(infinite, 0.0)
            nonfinite = nonfinite | infinite[..., :, None, None]
        shares = plain(masked_scores.masked_fill(empty | nonfinite, 0.0), sinks, log)
        of_hidden = -torch.inf if log else 0.0
        return shares.masked_fill(nonfinite, torch.nan).masked_fill(hidden, of_hidden)

    return contained


def _contain_logsumexp(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap `logsumexp`: an empty row gets −∞, and a query with NaN scores NaN; neither sends a gradient."""

    @wraps(plain)
    def contained(masked_scores: Tensor) -> Tensor:
        """Return the logsumexp of each query: −∞ for an empty row, NaN for one with NaN."""
        _, empty = _hidden_and_empty(masked_scores)
        nonfinite = torch.isnan(masked_scores).any(dim=-1, keepdim=True)
        total = plain(masked_scores.masked_fill(empty | nonfinite, 0.0))
        total = total.masked_fill(nonfinite[..., 0], torch.nan)
        return total.masked_fill(empty[..., 0], -torch.inf)

    return contained


def _contain_context(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a stage that returns the context: a non-finite value entry becomes NaN for every query that may see it.

    Weights that are NaN make the whole context NaN.
    """

    @wraps(plain)
    def contained(dropped_weights: Tensor, value: Tensor, visible: Tensor | None = None) -> Tensor:
        """Return the context of the finite values, in the values' dtype; NaN where another value or weight counts."""
        finite = zero_nonfinite(upcast(value))
        nonfinite = torch.isnan(dropped_weights.sum(dim=-1, keepdim=True))
        mixed = plain(dropped_weights.masked_fill(nonfinite, 0.0), finite)
        marks = ~torch.isfinite(value)
        if visible is None:
            seen = marks.any(dim=-2, keepdim=True)
        else:
            shown = visible.to(mixed.dtype).expand(dropped_weights.shape)
            seen = matmul(shown, marks.to(mixed.dtype)) > 0
        return mixed.masked_fill(seen | nonfinite, torch.nan).to(value.dtype)

    return contained


def _hidden_and_empty(masked_scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return which scores are −∞, and which queries have no other score, both bool.

    They are (…, queries, keys) and (…, queries, 1).
    """
    hidden = masked_scores == -torch.inf
    return hidden, hidden.all(dim=-1, keepdim=True)


# What everybody calls: the stages above, contained.
scores = _contain_scores(scores)
weights = _contain_weights(weights)
logsumexp = _contain_logsumexp(logsumexp)
context = _contain_context(context)
