"""Functions of query, key and value: right ones in unusual styles, and wrong ones."""

import math
import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import clearhead as ch
from tests.checking.bank.entry import right, wrong

INF = float("inf")
HIDDEN_DIM = 64


def scores(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])


def future(like: Tensor) -> Tensor:
    """True on what causal hides, the last query on the last key."""
    query_len, kv_len = like.shape[-2:]
    return torch.ones(query_len, kv_len, dtype=torch.bool).triu(1 + kv_len - query_len)


def causal_scores(query: Tensor, key: Tensor) -> Tensor:
    raw = scores(query, key)
    return raw.masked_fill(future(raw), -INF)


# What is right.


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scores(query, key).softmax(-1) @ value


def renormalised(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = scores(query, key).softmax(-1) * ~future(scores(query, key))
    return weights / weights.sum(-1, keepdim=True) @ value


def filled_with_a_billion(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query.float(), key.float())
    return (raw.masked_fill(future(raw), -1e9).softmax(-1) @ value.float()).to(query.dtype)


def added_infinity(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    return (raw + torch.full(raw.shape[-2:], -INF).triu(1 + raw.shape[-1] - raw.shape[-2])).softmax(
        -1
    ) @ value


def scaled_query(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query = query * query.shape[-1] ** -0.25
    key = key * key.shape[-1] ** -0.25
    return torch.einsum(
        "bhqk,bhkv->bhqv", torch.einsum("bhqd,bhkd->bhqk", query, key).softmax(-1), value
    )


def blockwise(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    masked = causal_scores(query, key)
    largest = torch.full((*masked.shape[:-1], 1), -1e30, dtype=query.dtype)
    total = torch.zeros_like(largest)
    output = torch.zeros(*masked.shape[:-1], value.shape[-1], dtype=query.dtype)
    for start in range(0, key.shape[-2], 4):
        block = masked[..., start : start + 4]
        above = torch.maximum(largest, block.amax(-1, keepdim=True))
        shrink, grown = (largest - above).exp(), (block - above).exp()
        total = total * shrink + grown.sum(-1, keepdim=True)
        output = output * shrink + grown @ value[..., start : start + 4, :]
        largest = above
    return output / total


def head_loop(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    heads = []
    for head in range(query.shape[1]):
        heads.append(scores(query[:, head], key[:, head]).softmax(dim=2) @ value[:, head])
    return torch.stack(heads, dim=1)


def grouped_by_repeat(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    return plain(query, key, value)


def grouped_by_view(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    batch, heads, query_len, dim = query.shape
    query = query.reshape(batch, key.shape[1], heads // key.shape[1], query_len, dim)
    output = scores(query, key[:, :, None]).softmax(-1) @ value[:, :, None]
    return output.reshape(batch, heads, query_len, -1)


def merged(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return plain(query, key, value).transpose(1, 2).flatten(2)


def capped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = 5.0 * torch.tanh(scores(query, key) / 5.0)
    return raw.masked_fill(future(raw), -INF).softmax(-1) @ value


def windowed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return window_of(query, key, value, 3)


def window_of(query: Tensor, key: Tensor, value: Tensor, left: int) -> Tensor:
    raw = scores(query, key)
    queries = torch.arange(raw.shape[-2])[:, None] + raw.shape[-1] - raw.shape[-2]
    distance = queries - torch.arange(raw.shape[-1])
    return raw.masked_fill((distance < 0) | (distance > left), -INF).softmax(-1) @ value


def given_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return scores(query, key).masked_fill(~mask, torch.finfo(query.dtype).min).softmax(-1) @ value


def safe_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return ch.attend(query, key, value, mask=ch.dense(mask))


SLOPES = torch.tensor([0.5, 0.25, 0.125])


def alibi_bias(query_len: int, kv_len: int) -> Tensor:
    positions = torch.arange(query_len)[:, None] + kv_len - query_len
    return -SLOPES[:, None, None] * (positions - torch.arange(kv_len)).abs()


def alibi(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    return (raw + alibi_bias(*raw.shape[-2:])).softmax(-1) @ value


def in_halves(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return causal_scores(query, key).float().softmax(-1).to(query.dtype) @ value


# The mask.


def inverted(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    return raw.masked_fill(~future(raw), -INF).softmax(-1) @ value


def inverted_by_triu(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    keep = torch.ones(raw.shape[-2:]).triu(raw.shape[-1] - raw.shape[-2])
    return torch.where(keep == 0, -1e9, raw).softmax(-1) @ value


def inverted_given(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return scores(query, key).masked_fill(mask, -1e9).softmax(-1) @ value


def result_thrown_away(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    raw.masked_fill(future(raw), -INF)
    return raw.softmax(-1) @ value


def causal_dropped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def sees_the_next(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    return raw.masked_fill(future(raw).roll(1, -1).triu(2), -INF).softmax(-1) @ value


def blind_to_itself(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    return raw.masked_fill(torch.ones(raw.shape[-2:]).triu(0).bool(), -1e9).softmax(-1) @ value


def from_the_first_key(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def tril_of_the_shape(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    return raw.masked_fill(torch.ones_like(raw).tril() == 0, -INF).softmax(-1) @ value


def window_of_one_more(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return window_of(query, key, value, 4)


def window_of_one_less(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    offset = raw.shape[-1] - raw.shape[-2]
    keep = torch.ones(raw.shape[-2:], dtype=torch.bool).tril(offset).triu(offset - 2)
    return raw.where(keep, torch.tensor(-INF).to(raw.dtype)).softmax(-1) @ value


def zeroed_after(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    return raw.softmax(-1).masked_fill(future(raw), 0.0) @ value


def tril_after(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = scores(query, key).softmax(-1)
    return torch.einsum(
        "bhqk,bhkd->bhqd", weights.tril(weights.shape[-1] - weights.shape[-2]), value
    )


def multiplied(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    return (raw * ~future(raw)).softmax(-1) @ value


def filled_with_little(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = query @ key.mT
    return (raw.masked_fill(future(raw), 1e-9) / query.shape[-1] ** 0.5).softmax(-1) @ value


def added(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return (scores(query, key) + mask).softmax(-1) @ value


def hidden_ones_added(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = query @ key.mT
    return ((raw + future(raw).to(raw.dtype)) / math.sqrt(query.shape[-1])).softmax(-1) @ value


def times_infinity(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return (scores(query, key) + (~mask).to(query.dtype) * -INF).softmax(-1) @ value


def zero_times_infinity(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    weights = raw.masked_fill(future(raw), -INF).log_softmax(-1)
    return (weights * weights.exp() / weights) @ value


def empty_is_nan(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return scores(query, key).masked_fill(~mask, -INF).softmax(-1) @ value


def empty_is_uniform(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, scores(query, key), -1e9).softmax(-1) @ value


def lets_nan_through(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return causal_scores(query, key).softmax(-1) @ value


def lets_nan_of_keys_through(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    weights = (raw - 1e9 * future(raw)).softmax(-1)
    return weights @ value.nan_to_num()


def first_mask_for_all(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return scores(query, key).masked_fill(~mask[0], -INF).softmax(-1) @ value


def tiled_over_heads(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    heads = query.shape[1]
    flat = [each.flatten(0, 1) for each in (query, key, value)]
    hidden = ~mask[:, 0].repeat(heads, 1, 1)
    return (scores(flat[0], flat[1]).masked_fill(hidden, -INF).softmax(-1) @ flat[2]).view(
        *query.shape[:3], -1
    )


# Softmax and scale.


def over_queries(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return causal_scores(query, key).softmax(dim=-2) @ value


def over_heads(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.softmax(scores(query, key), dim=1) @ value


def over_batch(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    grown = scores(query, key).exp()
    return grown / grown.sum(0) @ value


def no_softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scores(query, key) @ value


def not_divided(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return causal_scores(query, key).exp() @ value


def divided_without_exp(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    return raw / raw.sum(-1, keepdim=True) @ value


def not_scaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = query @ key.mT
    return raw.masked_fill(future(raw), -INF).softmax(-1) @ value


def scaled_too_late(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT).softmax(-1) / math.sqrt(query.shape[-1]) @ value


def by_heads(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (torch.einsum("bhqd,bhkd->bhqk", query, key) / query.shape[1] ** 0.5).softmax(-1) @ value


def by_length(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = query @ key.mT / math.sqrt(key.size(2))
    return raw.masked_fill(future(raw), -INF).softmax(-1) @ value


def by_a_constant(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, scale=0.3)


def multiplied_by_root(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT * query.shape[-1] ** 0.5).softmax(-1) @ value


def divided_by_inverse(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scale = query.shape[-1] ** -0.5
    raw = query @ key.mT / scale
    return raw.masked_fill(future(raw), -1e30).softmax(-1) @ value


def by_a_global(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT / HIDDEN_DIM**0.5).softmax(-1) @ value


# Bias, softcap, heads.


def scaled_bias(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = query @ key.mT
    return ((raw + alibi_bias(*raw.shape[-2:])) / query.shape[-1] ** 0.5).softmax(-1) @ value


def scaled_slopes(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scale = query.shape[-1] ** -0.5
    raw = torch.einsum("bhqd,bhkd->bhqk", query, key) * scale
    return (raw + scale * alibi_bias(*raw.shape[-2:])).softmax(-1) @ value


def bias_on_weights(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = scores(query, key).softmax(-1)
    return (weights + alibi_bias(*weights.shape[-2:])) @ value


def bias_on_context(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    bias = alibi_bias(query.shape[-2], key.shape[-2]).to(value.dtype)
    return plain(query, key, value) + bias @ value


def cap_after_mask(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (4.0 * torch.tanh(causal_scores(query, key) / 4.0)).softmax(-1) @ value


def cap_after_a_billion(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    raw = raw.masked_fill(future(raw), -1e9)
    return F.softmax(raw.div(4.0).tanh().mul(4.0), dim=-1) @ value


def merged_by_reshape(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return plain(query, key, value).reshape(query.shape[0], query.shape[2], -1)


def merged_and_split(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    output = causal_scores(query, key).softmax(-1) @ value
    merged = output.contiguous().view(output.shape[0], output.shape[2], -1)
    return merged.view(*output.shape[:1], output.shape[2], output.shape[1], -1).transpose(1, 2)


def always_the_first(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    heads = [plain(query[:, 0], key[:, 0], value[:, 0]) for _ in range(query.shape[1])]
    return torch.stack(heads, 1)


def shares_the_key(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scores(query, key[:, :1]).softmax(-1) @ value[:, :1]


def tiled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    return plain(query, key.repeat(1, groups, 1, 1), value.repeat(1, groups, 1, 1))


def tiled_by_index(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    index = torch.arange(query.shape[1]) % key.shape[1]
    return causal_scores(query, key[:, index]).softmax(-1) @ value[:, index]


def heads_as_tokens(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key, value = (each.transpose(1, 2) for each in (query, key, value))
    return plain(query, key, value).transpose(1, 2)


def heads_as_tokens_by_einsum(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = torch.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
    return torch.einsum("bhqk,bkhd->bqhd", raw.softmax(-1), value)


# What shows in other ways than in the numbers of one call.


def mean_over_batch(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scores(query - query.mean(0), key).softmax(-1) @ value


def last_samples_value(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scores(query, key).softmax(-1) @ value.flip(0)


def drops_always(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.dropout(scores(query, key).softmax(-1), 0.3) @ value


def jitters(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scores(query, key).softmax(-1) @ value * (1 + 0.01 * random.random())


def scales_in_place(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query /= query.shape[-1] ** 0.5
    return (query @ key.mT).softmax(-1) @ value


def inverts_the_mask_in_place(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    hidden = mask.logical_not_()
    return scores(query, key).masked_fill(hidden, -INF).softmax(-1) @ value


def supposes_strides(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    _, heads, query_len, dim = query.shape
    strides = (heads * query_len * dim, query_len * dim, dim, 1)
    return plain(query.as_strided(query.shape, strides), key, value)


def reads_storage(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())[: value.numel()]
    return plain(query, key, raw.view(value.shape))


def detached_weights(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scores(query, key).softmax(-1).detach() @ value


@torch.no_grad()
def no_gradient(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return causal_scores(query, key).softmax(-1) @ value


class ForgetsTheScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor) -> Tensor:
        ctx.save_for_backward(query, key)
        return scores(query, key)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, Tensor]:
        (gradient,) = grad_outputs
        query, key = ctx.saved_tensors
        return gradient @ key, gradient.mT @ query


def backward_not_scaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return ForgetsTheScale.apply(query, key).softmax(-1) @ value


def hooked(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = scores(query, key).softmax(-1)
    if weights.requires_grad:
        weights.register_hook(lambda gradient: gradient * 0.5)
    return weights @ value


def bare_exp(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    grown = scores(query, key).exp()
    return grown / grown.sum(-1, keepdim=True) @ value


def a_billion_in_halves(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    return raw.masked_fill(future(raw), -1e9).softmax(-1) @ value


def returns_the_unmasked(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return causal_scores(query, key).softmax(-1) @ value, scores(query, key).softmax(-1)


def returns_the_unscaled(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return plain(query, key, value), (query @ key.mT).softmax(-1)


def returns_the_weights(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    weights = scores(query, key).softmax(-1)
    return weights @ value, weights


def value_viewed_as_key(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return plain(query, key, value).reshape(query.shape)


def empty_like_query(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    output = plain(query, key, value)
    return output.view(*query.shape[:3], query.shape[-1])


def turned(tensor: Tensor, start: int, *, interleaved: bool) -> Tensor:
    half = tensor.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, dtype=tensor.dtype) / half)
    angles = (torch.arange(tensor.shape[-2], dtype=tensor.dtype)[:, None] + start) * rates
    one, two = (tensor[..., ::2], tensor[..., 1::2]) if interleaved else tensor.chunk(2, -1)
    first = one * angles.cos() - two * angles.sin()
    second = one * angles.sin() + two * angles.cos()
    if interleaved:
        return torch.stack([first, second], -1).flatten(-2)
    return torch.cat([first, second], -1)


ROPE = {"base": 10000.0, "layout": "half"}


def rotated(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query = turned(query, key.shape[-2] - query.shape[-2], interleaved=False)
    return causal_scores(query, turned(key, 0, interleaved=False)).softmax(-1) @ value


def interleaved(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query = turned(query, key.shape[-2] - query.shape[-2], interleaved=True)
    return plain(query, turned(key, 0, interleaved=True), value)


def halves(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query = turned(query, key.shape[-2] - query.shape[-2], interleaved=False)
    return causal_scores(query, turned(key, 0, interleaved=False)).softmax(-1) @ value


def queries_from_zero(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return plain(turned(query, 0, interleaved=False), turned(key, 0, interleaved=False), value)


def relu_by_sum(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key).relu()
    return raw / (raw.sum(-1, keepdim=True) + 1e-6) @ value


def multiplied_and_subtracted(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    mask = (~future(raw)).to(raw.dtype)
    return (raw * mask - 1e9 * mask).softmax(-1) @ value


def finite_in_float32(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A mask times the smallest number is made in float32, where that of float64 is −∞."""
    raw = scores(query, key)
    return (raw + future(raw) * torch.finfo(raw.dtype).min).softmax(-1) @ value


ENTRIES = [
    wrong(
        "mask.inverted",
        multiplied_and_subtracted,
        "qkv",
        causal=True,
        unproved="what is visible has equal weights",
    ),
    right(finite_in_float32, "qkv", causal=True, unproved="it is right in float32 only"),
    right(F.scaled_dot_product_attention, "qkv"),
    right(ch.attend, "qkv"),
    right(filled_with_a_billion, "qkv", causal=True),
    right(added_infinity, "qkv", causal=True),
    right(scaled_query, "qkv"),
    right(blockwise, "qkv", causal=True),
    right(grouped_by_view, "qkv", num_heads=6, num_kv_heads=2),
    right(merged, "qkv", unproved="it gives heads side by side"),
    right(capped, "qkv", softcap=5.0, causal=True),
    right(windowed, "qkv", window=(3, 0), causal=True),
    right(given_mask, "qkv,mask"),
    right(safe_mask, "qkv,mask", empty_row="zero", nan_safe=True),
    right(alibi, "qkv", alibi_slopes=SLOPES),
    right(in_halves, "qkv", dtypes=(torch.float16, torch.bfloat16), causal=True),
    wrong("mask.inverted", inverted_by_triu, "qkv", causal=True),
    wrong("mask.inverted", inverted_given, "qkv,mask"),
    wrong("mask.missing", causal_dropped, "qkv,mask", causal=True),
    wrong("mask.off-by-one", sees_the_next, "qkv", causal=True),
    wrong("mask.off-by-one", blind_to_itself, "qkv", causal=True),
    wrong("mask.window-off-by-one", window_of_one_more, "qkv", causal=True, window=(3, 0)),
    wrong("mask.window-off-by-one", window_of_one_less, "qkv", causal=True, window=(3, 0)),
    wrong("mask.after-softmax", zeroed_after, "qkv", causal=True),
    wrong("mask.after-softmax", tril_after, "qkv", causal=True),
    wrong("mask.multiplied", filled_with_little, "qkv", causal=True),
    wrong("mask.added-as-number", added, "qkv,mask"),
    wrong("mask.added-as-number", hidden_ones_added, "qkv", causal=True),
    wrong("mask.non-finite", times_infinity, "qkv,mask"),
    wrong("mask.non-finite", zero_times_infinity, "qkv", causal=True),
    wrong("mask.leaks-nan", lets_nan_through, "qkv", causal=True, nan_safe=True),
    wrong("mask.leaks-nan", lets_nan_of_keys_through, "qkv", causal=True, nan_safe=True),
    wrong("mask.batch-mixed", first_mask_for_all, "qkv,mask"),
    wrong("mask.batch-mixed", tiled_over_heads, "qkv,mask"),
    wrong("softmax.axis", over_batch, "qkv"),
    wrong("softmax.missing", no_softmax, "qkv"),
    wrong("softmax.missing", not_divided, "qkv", causal=True),
    wrong("softmax.missing", divided_without_exp, "qkv", unproved="its rows sum to one"),
    wrong("scale.missing", scaled_too_late, "qkv", unproved="scaled after the softmax"),
    wrong("scale.wrong", by_a_constant, "qkv"),
    wrong("scale.wrong", divided_by_inverse, "qkv", causal=True),
    wrong("state.global-dim", by_a_global, "qkv"),
    wrong("bias.scaled", scaled_bias, "qkv", bias=alibi_bias),
    wrong("bias.scaled", scaled_slopes, "qkv", alibi_slopes=SLOPES),
    wrong("bias.after-softmax", bias_on_weights, "qkv", bias=alibi_bias),
    wrong("bias.after-softmax", bias_on_context, "qkv", alibi_slopes=SLOPES),
    wrong("softcap.order", cap_after_a_billion, "qkv", softcap=4.0, causal=True),
    wrong("heads.layout", merged_by_reshape, "qkv", unproved="it gives heads side by side"),
    wrong(
        "heads.layout", merged_and_split, "qkv", unproved="it splits the heads again", causal=True
    ),
    wrong("heads.layout", always_the_first, "qkv"),
    wrong("heads.layout", shares_the_key, "qkv"),
    wrong("heads.gqa-tiled", tiled_by_index, "qkv", num_heads=6, num_kv_heads=3, causal=True),
    wrong("heads.layout", heads_as_tokens, "qkv"),
    wrong("heads.layout", heads_as_tokens_by_einsum, "qkv"),
    wrong("batch.mixed", mean_over_batch, "qkv"),
    wrong("batch.mixed", last_samples_value, "qkv"),
    wrong("output.nondeterministic", drops_always, "qkv"),
    wrong("output.nondeterministic", jitters, "qkv"),
    wrong("input.modified", inverts_the_mask_in_place, "qkv,mask"),
    wrong("input.strided", supposes_strides, "qkv"),
    wrong("input.strided", reads_storage, "qkv"),
    wrong("grad.blocked", detached_weights, "qkv"),
    wrong("grad.blocked", no_gradient, "qkv", causal=True),
    wrong("grad.wrong", backward_not_scaled, "qkv"),
    wrong("grad.wrong", hooked, "qkv"),
    wrong("dtype.overflow", a_billion_in_halves, "qkv", dtypes=(torch.float16,), causal=True),
    wrong("weights.not-used", returns_the_unscaled, "qkv"),
    right(returns_the_weights, "qkv"),
    wrong(
        "shape.square-only",
        value_viewed_as_key,
        "qkv",
        sizes={"head_dim": 5, "value_head_dim": 3},
        unproved="it works at no size that is declared",
    ),
    wrong("shape.square-only", empty_like_query, "qkv"),
    right(rotated, "qkv", rope=ROPE, causal=True),
    wrong("rope.layout", interleaved, "qkv", rope=ROPE),
    wrong("rope.layout", halves, "qkv", rope={"layout": "interleaved"}, causal=True),
    wrong("rope.offset", queries_from_zero, "qkv", rope=ROPE),
    wrong("softmax.missing", relu_by_sum, "qkv", unproved="its rows sum to one"),
]
