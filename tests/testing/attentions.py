"""Attentions as their authors would hand them to the suite: right ones, and wrong ones."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import clearhead as ch
from clearhead.testing.posing import FEATURES

ALL = frozenset(FEATURES)


def ours(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    return_logsumexp: bool = False,
    **options: Any,
) -> Any:
    """`attend`, with the keywords of the suite."""
    seen = ch.full() if mask is None else ch.dense(mask)
    if causal:
        seen = seen & ch.causal()
    if window is not None:
        seen = seen & ch.sliding_window(left=window[0], right=window[1])
    context = ch.attend(query, key, value, mask=seen, **options)
    if return_logsumexp:
        return context, ch.AttentionMatrix(query, key, mask=seen, **options).logsumexp
    return context


def pytorch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """PyTorch's function, with the keywords of the suite."""
    if causal or window is not None:
        band = visible(query, key, causal, window)
        mask = band if mask is None else mask & band
    if bias is not None:
        mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
    grouped = query.ndim > 2 and query.shape[-3] != key.shape[-3]
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scale, enable_gqa=grouped
    )


PYTORCHS = ALL - {"softcap", "sinks", "sinks_gradients", "logsumexp", "nan_behind_mask"}


def visible(
    query: Tensor,
    key: Tensor,
    causal: bool,
    window: tuple[int, int] | None,
    past: int | None = None,
) -> Tensor:
    """The visible pairs, the first query at `past`."""
    query_len, kv_len = query.shape[-2], key.shape[-2]
    past = kv_len - query_len if past is None else past
    distance = torch.arange(kv_len) - torch.arange(query_len)[:, None] - past
    seen = distance <= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    if window is not None:
        seen = seen & (distance >= -window[0]) & (distance <= window[1])
    return seen


def plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    **wrong: Any,
) -> Tensor:
    """Attention as it is written by hand; `wrong` makes one mistake of it."""
    groups = query.shape[1] // key.shape[1]
    repeated = wrong.get("repeated", lambda each: each.repeat_interleave(groups, 1))
    key, value = repeated(key), repeated(value)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    hide = causal or window is not None
    seen = visible(query, key, causal, window, wrong.get("past")) if hide else None
    if mask is not None:
        seen = mask if seen is None else mask & seen
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        sink = sinks[:, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, sink], -1).softmax(-1)
        return wrong.get("spent", lambda w: w[..., :-1])(weights) @ value
    return scores.softmax(-1) @ value


PLAINS = frozenset({"mask", "causal", "window", "grouped", "scale", "softcap", "sinks"})


def inverted(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    return plain(query, key, value, mask=None if mask is None else ~mask)


def from_the_first_key(query: Tensor, key: Tensor, value: Tensor, causal: bool = False) -> Tensor:
    return plain(query, key, value, causal=causal, past=0)


def window_without_itself(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "window" in options:
        left, right = options["window"]
        options["window"] = left - 1, right
    return plain(query, key, value, **options)


def tiled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    return plain(query, key, value, repeated=lambda each: each.repeat(1, groups, 1, 1))


def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return plain(query, key, value, scale=1.0)


def scores_of(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.mT * query.shape[-1] ** -0.5


def capped_before_the_scale(
    query: Tensor, key: Tensor, value: Tensor, softcap: float = torch.inf
) -> Tensor:
    scores = query @ key.mT
    if softcap < torch.inf:
        scores = softcap * torch.tanh(scores / softcap)
    return (scores * query.shape[-1] ** -0.5).softmax(-1) @ value


def sink_that_gives(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None
) -> Tensor:
    def spent(weights: Tensor) -> Tensor:
        return weights[..., :-1] / weights[..., :-1].sum(-1, keepdim=True)

    return plain(query, key, value, sinks=sinks, spent=spent)


def edge_of_the_block(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Only whole blocks of 32 keys are looked at, beyond the first."""
    whole = max(32, key.shape[-2] // 32 * 32)
    return plain(query, key[..., :whole, :], value[..., :whole, :])


def without_the_largest(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    grown = scores_of(query, key).exp()
    return grown / grown.sum(-1, keepdim=True) @ value


def scales_in_place(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return plain(query.mul_(query.shape[-1] ** -0.5), key, value, scale=1.0)


def clears_what_is_padded(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Right, but the caller's value has zeros afterwards."""
    if mask is not None:
        value.masked_fill_(~mask[:, :, :1].mT, 0.0)
    return plain(query, key, value, mask=mask)


def turns_the_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    hidden = None if mask is None else mask.logical_not_()
    return plain(query, key, value, mask=None if hidden is None else ~hidden)


def of_contiguous_memory(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
    return plain(query, key, raw[: value.numel()].view(value.shape))


def in_half_the_precision(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return plain(query.bfloat16(), key.bfloat16(), value.bfloat16()).to(query.dtype)


def wrong_on_the_way_back(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = scores_of(query, key).softmax(-1)
    if weights.requires_grad:
        weights.register_hook(lambda gradient: 2 * gradient)
    return weights @ value


def key_is_a_constant(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return plain(query, key.detach(), value)


def logsumexp_in_bits(
    query: Tensor, key: Tensor, value: Tensor, return_logsumexp: bool = False
) -> Any:
    total = scores_of(query, key).logsumexp(-1) / 0.6931471805599453
    context = plain(query, key, value)
    return (context, total) if return_logsumexp else context


def nothing(query: Tensor, key: Tensor, value: Tensor) -> None:
    return None


def narrow(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return plain(query, key, value)[..., :-1]


def doubled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return plain(query, key, value).double()


def detached(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return plain(query, key, value).detach()


def fails(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raise RuntimeError("out of registers")


def without_logsumexp(
    query: Tensor, key: Tensor, value: Tensor, return_logsumexp: bool = False
) -> Tensor:
    return plain(query, key, value)


def modest(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if len(options) > 1:
        raise NotImplementedError("one thing at a time")
    return plain(query, key, value, **options)


def refuses(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if options:
        raise NotImplementedError("not yet")
    return plain(query, key, value)
