"""Functions of query, key and value: right ones in unusual styles, and wrong ones."""

import math
import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import clearhead as ch
from tests.conformance.entry import Bank

BANK = Bank()
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


@BANK.right("qkv")
def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scores(query, key).softmax(-1) @ value


BANK.right("qkv")(F.scaled_dot_product_attention)
BANK.right("qkv")(ch.attend)


@BANK.right("qkv", causal=True)
def renormalised(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = scores(query, key).softmax(-1) * ~future(scores(query, key))
    return weights / weights.sum(-1, keepdim=True) @ value


@BANK.right("qkv", causal=True)
def filled_with_a_billion(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query.float(), key.float())
    return (raw.masked_fill(future(raw), -1e9).softmax(-1) @ value.float()).to(query.dtype)


@BANK.right("qkv", causal=True)
def added_infinity(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    return (raw + torch.full(raw.shape[-2:], -INF).triu(1 + raw.shape[-1] - raw.shape[-2])).softmax(
        -1
    ) @ value


@BANK.right("qkv")
def scaled_query(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query = query * query.shape[-1] ** -0.25
    key = key * key.shape[-1] ** -0.25
    return torch.einsum(
        "bhqk,bhkv->bhqv", torch.einsum("bhqd,bhkd->bhqk", query, key).softmax(-1), value
    )


@BANK.right("qkv", causal=True)
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


@BANK.right("qkv")
def head_loop(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    heads = []
    for head in range(query.shape[1]):
        heads.append(scores(query[:, head], key[:, head]).softmax(dim=2) @ value[:, head])
    return torch.stack(heads, dim=1)


@BANK.right("qkv", num_heads=6, num_kv_heads=2)
def grouped_by_repeat(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    return plain(query, key, value)


@BANK.right("qkv", num_heads=6, num_kv_heads=2)
def grouped_by_view(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    batch, heads, query_len, dim = query.shape
    query = query.reshape(batch, key.shape[1], heads // key.shape[1], query_len, dim)
    output = scores(query, key[:, :, None]).softmax(-1) @ value[:, :, None]
    return output.reshape(batch, heads, query_len, -1)


@BANK.right("qkv")
def merged(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return plain(query, key, value).transpose(1, 2).flatten(2)


@BANK.right("qkv", softcap=5.0, causal=True)
def capped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = 5.0 * torch.tanh(scores(query, key) / 5.0)
    return raw.masked_fill(future(raw), -INF).softmax(-1) @ value


@BANK.right("qkv", window=(3, 0), causal=True)
def windowed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return window_of(query, key, value, 3)


def window_of(query: Tensor, key: Tensor, value: Tensor, left: int) -> Tensor:
    raw = scores(query, key)
    queries = torch.arange(raw.shape[-2])[:, None] + raw.shape[-1] - raw.shape[-2]
    distance = queries - torch.arange(raw.shape[-1])
    return raw.masked_fill((distance < 0) | (distance > left), -INF).softmax(-1) @ value


@BANK.right("qkv,mask")
def given_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return scores(query, key).masked_fill(~mask, torch.finfo(query.dtype).min).softmax(-1) @ value


@BANK.right("qkv,mask", empty_row="zero", nan_safe=True)
def safe_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return ch.attend(query, key, value, mask=ch.dense(mask))


SLOPES = torch.tensor([0.5, 0.25, 0.125])


def alibi_bias(query_len: int, kv_len: int) -> Tensor:
    positions = torch.arange(query_len)[:, None] + kv_len - query_len
    return -SLOPES[:, None, None] * (positions - torch.arange(kv_len)).abs()


@BANK.right("qkv", alibi_slopes=SLOPES)
def alibi(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    return (raw + alibi_bias(*raw.shape[-2:])).softmax(-1) @ value


@BANK.right("qkv", dtypes=(torch.float16, torch.bfloat16), causal=True)
def in_halves(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return causal_scores(query, key).float().softmax(-1).to(query.dtype) @ value


# The mask.


@BANK.wrong("mask.inverted", "qkv", causal=True)
def inverted(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    return raw.masked_fill(~future(raw), -INF).softmax(-1) @ value


@BANK.wrong("mask.inverted", "qkv", causal=True)
def inverted_by_triu(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    keep = torch.ones(raw.shape[-2:]).triu(raw.shape[-1] - raw.shape[-2])
    return torch.where(keep == 0, -1e9, raw).softmax(-1) @ value


@BANK.wrong("mask.inverted", "qkv,mask")
def inverted_given(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return scores(query, key).masked_fill(mask, -1e9).softmax(-1) @ value


@BANK.wrong("mask.missing", "qkv", causal=True)
def result_thrown_away(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    raw.masked_fill(future(raw), -INF)
    return raw.softmax(-1) @ value


@BANK.wrong("mask.missing", "qkv,mask", causal=True)
def causal_dropped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


@BANK.wrong("mask.off-by-one", "qkv", causal=True)
def sees_the_next(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    return raw.masked_fill(future(raw).roll(1, -1).triu(2), -INF).softmax(-1) @ value


@BANK.wrong("mask.off-by-one", "qkv", causal=True)
def blind_to_itself(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    return raw.masked_fill(torch.ones(raw.shape[-2:]).triu(0).bool(), -1e9).softmax(-1) @ value


@BANK.wrong("mask.top-left", "qkv", causal=True)
def from_the_first_key(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


@BANK.wrong("mask.top-left", "qkv", causal=True)
def tril_of_the_shape(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    return raw.masked_fill(torch.ones_like(raw).tril() == 0, -INF).softmax(-1) @ value


@BANK.wrong("mask.window-off-by-one", "qkv", causal=True, window=(3, 0))
def window_of_one_more(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return window_of(query, key, value, 4)


@BANK.wrong("mask.window-off-by-one", "qkv", causal=True, window=(3, 0))
def window_of_one_less(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    offset = raw.shape[-1] - raw.shape[-2]
    keep = torch.ones(raw.shape[-2:], dtype=torch.bool).tril(offset).triu(offset - 2)
    return raw.where(keep, torch.tensor(-INF).to(raw.dtype)).softmax(-1) @ value


@BANK.wrong("mask.after-softmax", "qkv", causal=True)
def zeroed_after(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    return raw.softmax(-1).masked_fill(future(raw), 0.0) @ value


@BANK.wrong("mask.after-softmax", "qkv", causal=True)
def tril_after(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = scores(query, key).softmax(-1)
    return torch.einsum(
        "bhqk,bhkd->bhqd", weights.tril(weights.shape[-1] - weights.shape[-2]), value
    )


@BANK.wrong("mask.multiplied", "qkv", causal=True)
def multiplied(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    return (raw * ~future(raw)).softmax(-1) @ value


@BANK.wrong("mask.multiplied", "qkv", causal=True)
def filled_with_little(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = query @ key.mT
    return (raw.masked_fill(future(raw), 1e-9) / query.shape[-1] ** 0.5).softmax(-1) @ value


@BANK.wrong("mask.added-as-number", "qkv,mask")
def added(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return (scores(query, key) + mask).softmax(-1) @ value


@BANK.wrong("mask.added-as-number", "qkv", causal=True)
def hidden_ones_added(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = query @ key.mT
    return ((raw + future(raw).to(raw.dtype)) / math.sqrt(query.shape[-1])).softmax(-1) @ value


@BANK.wrong("mask.non-finite", "qkv,mask")
def times_infinity(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return (scores(query, key) + (~mask).to(query.dtype) * -INF).softmax(-1) @ value


@BANK.wrong("mask.non-finite", "qkv", causal=True)
def zero_times_infinity(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    weights = raw.masked_fill(future(raw), -INF).log_softmax(-1)
    return (weights * weights.exp() / weights) @ value


@BANK.wrong("mask.empty-row", "qkv,mask", empty_row="zero")
def empty_is_nan(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return scores(query, key).masked_fill(~mask, -INF).softmax(-1) @ value


@BANK.wrong("mask.empty-row", "qkv,mask", empty_row="zero")
def empty_is_uniform(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, scores(query, key), -1e9).softmax(-1) @ value


@BANK.wrong("mask.leaks-nan", "qkv", causal=True, nan_safe=True)
def lets_nan_through(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return causal_scores(query, key).softmax(-1) @ value


@BANK.wrong("mask.leaks-nan", "qkv", causal=True, nan_safe=True)
def lets_nan_of_keys_through(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    weights = (raw - 1e9 * future(raw)).softmax(-1)
    return weights @ value.nan_to_num()


@BANK.wrong("mask.batch-mixed", "qkv,mask")
def first_mask_for_all(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return scores(query, key).masked_fill(~mask[0], -INF).softmax(-1) @ value


@BANK.wrong("mask.batch-mixed", "qkv,mask")
def tiled_over_heads(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    heads = query.shape[1]
    flat = [each.flatten(0, 1) for each in (query, key, value)]
    hidden = ~mask[:, 0].repeat(heads, 1, 1)
    return (scores(flat[0], flat[1]).masked_fill(hidden, -INF).softmax(-1) @ flat[2]).view(
        *query.shape[:3], -1
    )


# Softmax and scale.


@BANK.wrong("softmax.axis", "qkv", causal=True)
def over_queries(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return causal_scores(query, key).softmax(dim=-2) @ value


@BANK.wrong("softmax.axis", "qkv")
def over_heads(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.softmax(scores(query, key), dim=1) @ value


@BANK.wrong("softmax.axis", "qkv")
def over_batch(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    grown = scores(query, key).exp()
    return grown / grown.sum(0) @ value


@BANK.wrong("softmax.missing", "qkv")
def no_softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scores(query, key) @ value


@BANK.wrong("softmax.missing", "qkv", causal=True)
def not_divided(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return causal_scores(query, key).exp() @ value


@BANK.wrong("softmax.missing", "qkv")
def divided_without_exp(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    return raw / raw.sum(-1, keepdim=True) @ value


@BANK.wrong("scale.missing", "qkv", causal=True)
def not_scaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = query @ key.mT
    return raw.masked_fill(future(raw), -INF).softmax(-1) @ value


@BANK.wrong("scale.missing", "qkv")
def scaled_too_late(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT).softmax(-1) / math.sqrt(query.shape[-1]) @ value


@BANK.wrong("scale.wrong", "qkv")
def by_heads(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (torch.einsum("bhqd,bhkd->bhqk", query, key) / query.shape[1] ** 0.5).softmax(-1) @ value


@BANK.wrong("scale.wrong", "qkv", causal=True)
def by_length(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = query @ key.mT / math.sqrt(key.size(2))
    return raw.masked_fill(future(raw), -INF).softmax(-1) @ value


@BANK.wrong("scale.wrong", "qkv")
def by_a_constant(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, scale=0.3)


@BANK.wrong("scale.inverse", "qkv")
def multiplied_by_root(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT * query.shape[-1] ** 0.5).softmax(-1) @ value


@BANK.wrong("scale.inverse", "qkv", causal=True)
def divided_by_inverse(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scale = query.shape[-1] ** -0.5
    raw = query @ key.mT / scale
    return raw.masked_fill(future(raw), -1e30).softmax(-1) @ value


@BANK.wrong("state.global-dim", "qkv")
def by_a_global(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT / HIDDEN_DIM**0.5).softmax(-1) @ value


# Bias, softcap, heads.


@BANK.wrong("bias.scaled", "qkv", bias=alibi_bias)
def scaled_bias(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = query @ key.mT
    return ((raw + alibi_bias(*raw.shape[-2:])) / query.shape[-1] ** 0.5).softmax(-1) @ value


@BANK.wrong("bias.scaled", "qkv", alibi_slopes=SLOPES)
def scaled_slopes(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scale = query.shape[-1] ** -0.5
    raw = torch.einsum("bhqd,bhkd->bhqk", query, key) * scale
    return (raw + scale * alibi_bias(*raw.shape[-2:])).softmax(-1) @ value


@BANK.wrong("bias.after-softmax", "qkv", bias=alibi_bias)
def bias_on_weights(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = scores(query, key).softmax(-1)
    return (weights + alibi_bias(*weights.shape[-2:])) @ value


@BANK.wrong("bias.after-softmax", "qkv", alibi_slopes=SLOPES)
def bias_on_context(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    bias = alibi_bias(query.shape[-2], key.shape[-2]).to(value.dtype)
    return plain(query, key, value) + bias @ value


@BANK.wrong("softcap.order", "qkv", softcap=4.0, causal=True)
def cap_after_mask(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (4.0 * torch.tanh(causal_scores(query, key) / 4.0)).softmax(-1) @ value


@BANK.wrong("softcap.order", "qkv", softcap=4.0, causal=True)
def cap_after_a_billion(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    raw = raw.masked_fill(future(raw), -1e9)
    return F.softmax(raw.div(4.0).tanh().mul(4.0), dim=-1) @ value


@BANK.wrong("heads.merge", "qkv")
def merged_by_reshape(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return plain(query, key, value).reshape(query.shape[0], query.shape[2], -1)


@BANK.wrong("heads.merge", "qkv", causal=True)
def merged_and_split(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    output = causal_scores(query, key).softmax(-1) @ value
    merged = output.contiguous().view(output.shape[0], output.shape[2], -1)
    return merged.view(*output.shape[:1], output.shape[2], output.shape[1], -1).transpose(1, 2)


@BANK.wrong("heads.identical", "qkv")
def always_the_first(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    heads = [plain(query[:, 0], key[:, 0], value[:, 0]) for _ in range(query.shape[1])]
    return torch.stack(heads, 1)


@BANK.wrong("heads.identical", "qkv")
def shares_the_key(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scores(query, key[:, :1]).softmax(-1) @ value[:, :1]


@BANK.wrong("heads.gqa-tiled", "qkv", num_heads=6, num_kv_heads=2)
def tiled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    return plain(query, key.repeat(1, groups, 1, 1), value.repeat(1, groups, 1, 1))


@BANK.wrong("heads.gqa-tiled", "qkv", num_heads=6, num_kv_heads=3, causal=True)
def tiled_by_index(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    index = torch.arange(query.shape[1]) % key.shape[1]
    return causal_scores(query, key[:, index]).softmax(-1) @ value[:, index]


@BANK.wrong("heads.layout", "qkv")
def heads_as_tokens(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key, value = (each.transpose(1, 2) for each in (query, key, value))
    return plain(query, key, value).transpose(1, 2)


@BANK.wrong("heads.layout", "qkv")
def heads_as_tokens_by_einsum(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = torch.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
    return torch.einsum("bhqk,bkhd->bqhd", raw.softmax(-1), value)


# What shows in other ways than in the numbers of one call.


@BANK.wrong("batch.mixed", "qkv")
def mean_over_batch(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scores(query - query.mean(0), key).softmax(-1) @ value


@BANK.wrong("batch.mixed", "qkv")
def last_samples_value(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scores(query, key).softmax(-1) @ value.flip(0)


@BANK.wrong("output.nondeterministic", "qkv")
def drops_always(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.dropout(scores(query, key).softmax(-1), 0.3) @ value


@BANK.wrong("output.nondeterministic", "qkv")
def jitters(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scores(query, key).softmax(-1) @ value * (1 + 0.01 * random.random())


@BANK.wrong("input.modified", "qkv")
def scales_in_place(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query /= query.shape[-1] ** 0.5
    return (query @ key.mT).softmax(-1) @ value


@BANK.wrong("input.modified", "qkv,mask")
def inverts_the_mask_in_place(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    hidden = mask.logical_not_()
    return scores(query, key).masked_fill(hidden, -INF).softmax(-1) @ value


@BANK.wrong("input.strided", "qkv")
def supposes_strides(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    _, heads, query_len, dim = query.shape
    strides = (heads * query_len * dim, query_len * dim, dim, 1)
    return plain(query.as_strided(query.shape, strides), key, value)


@BANK.wrong("input.strided", "qkv")
def reads_storage(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())[: value.numel()]
    return plain(query, key, raw.view(value.shape))


@BANK.wrong("grad.blocked", "qkv")
def detached_weights(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scores(query, key).softmax(-1).detach() @ value


@BANK.wrong("grad.blocked", "qkv", causal=True)
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


@BANK.wrong("grad.wrong", "qkv")
def backward_not_scaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return ForgetsTheScale.apply(query, key).softmax(-1) @ value


@BANK.wrong("grad.wrong", "qkv")
def hooked(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = scores(query, key).softmax(-1)
    if weights.requires_grad:
        weights.register_hook(lambda gradient: gradient * 0.5)
    return weights @ value


@BANK.wrong("dtype.overflow", "qkv", dtypes=(torch.float16,))
def bare_exp(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    grown = scores(query, key).exp()
    return grown / grown.sum(-1, keepdim=True) @ value


@BANK.wrong("dtype.overflow", "qkv", dtypes=(torch.float16,), causal=True)
def a_billion_in_halves(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key)
    return raw.masked_fill(future(raw), -1e9).softmax(-1) @ value


@BANK.wrong("weights.not-used", "qkv", causal=True)
def returns_the_unmasked(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return causal_scores(query, key).softmax(-1) @ value, scores(query, key).softmax(-1)


@BANK.wrong("weights.not-used", "qkv")
def returns_the_unscaled(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return plain(query, key, value), (query @ key.mT).softmax(-1)


@BANK.right("qkv")
def returns_the_weights(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    weights = scores(query, key).softmax(-1)
    return weights @ value, weights


@BANK.wrong("shape.square-only", "qkv", sizes={"head_dim": 5, "value_head_dim": 3})
def value_viewed_as_key(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return plain(query, key, value).reshape(query.shape)


@BANK.wrong("shape.square-only", "qkv")
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


@BANK.right("qkv", rope=ROPE, causal=True)
def rotated(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query = turned(query, key.shape[-2] - query.shape[-2], interleaved=False)
    return causal_scores(query, turned(key, 0, interleaved=False)).softmax(-1) @ value


@BANK.wrong("rope.layout", "qkv", rope=ROPE)
def interleaved(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query = turned(query, key.shape[-2] - query.shape[-2], interleaved=True)
    return plain(query, turned(key, 0, interleaved=True), value)


@BANK.wrong("rope.layout", "qkv", rope={"layout": "interleaved"}, causal=True)
def halves(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query = turned(query, key.shape[-2] - query.shape[-2], interleaved=False)
    return causal_scores(query, turned(key, 0, interleaved=False)).softmax(-1) @ value


@BANK.wrong("rope.offset", "qkv", rope=ROPE)
def queries_from_zero(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return plain(turned(query, 0, interleaved=False), turned(key, 0, interleaved=False), value)


@BANK.wrong("softmax.missing", "qkv")
def relu_by_sum(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raw = scores(query, key).relu()
    return raw / (raw.sum(-1, keepdim=True) + 1e-6) @ value
