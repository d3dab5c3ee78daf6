# type: ignore
# Written as people write it, hence without types.
"""Cached decoders whose steps are not the whole."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checking.bank.entry import Built, right, wrong

# cache.offset


class StepIsCausal(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.proj = nn.Linear(d_model, d_model, bias=False)
        self.reset()

    def reset(self):
        self.past = None

    def split(self, x):
        b, t, d = x.shape
        return self.qkv(x).view(b, t, 3, self.n_heads, d // self.n_heads).permute(2, 0, 3, 1, 4)

    def step(self, x_t):
        q, k, v = self.split(x_t)
        if self.past is not None:
            k = torch.cat([self.past[0], k], dim=2)
            v = torch.cat([self.past[1], v], dim=2)
        self.past = (k, v)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(out.transpose(1, 2).flatten(2))

    def full(self, x):
        q, k, v = self.split(x)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(out.transpose(1, 2).flatten(2))


class ChunkMaskFromBuffer(nn.Module):
    def __init__(self, d_in, d_out, max_len):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        mask = torch.triu(torch.ones(max_len, max_len), diagonal=1).bool()
        self.register_buffer("mask", mask, persistent=False)
        self.reset()

    def reset(self):
        self.cache_k, self.cache_v = None, None

    def attend(self, queries, keys, values):
        rows, columns = queries.shape[1], keys.shape[1]
        attn_scores = queries @ keys.transpose(1, 2)
        if rows > 1:
            attn_scores = attn_scores.masked_fill(self.mask[:rows, :columns], -torch.inf)
        return torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1) @ values

    def step(self, x_t):
        keys, values = self.W_key(x_t), self.W_value(x_t)
        if self.cache_k is not None:
            keys = torch.cat([self.cache_k, keys], dim=1)
            values = torch.cat([self.cache_v, values], dim=1)
        self.cache_k, self.cache_v = keys, values
        return self.attend(self.W_query(x_t), keys, values)

    def full(self, x):
        return self.attend(self.W_query(x), self.W_key(x), self.W_value(x))


class AlibiStep(nn.Module):
    def __init__(self, hidden, heads, slopes):
        super().__init__()
        self.heads = heads
        self.register_buffer("slopes", slopes.clone(), persistent=False)
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, hidden)
        self.v_proj = nn.Linear(hidden, hidden)
        self.o_proj = nn.Linear(hidden, hidden)
        self.keys, self.values = [], []

    def reset(self):
        self.keys, self.values = [], []

    def heads_of(self, layer, x):
        return layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def attend(self, q, k, v, start):
        i = torch.arange(q.shape[2])[:, None]
        j = torch.arange(k.shape[2])[None, :]
        bias = -self.slopes[:, None, None] * (i - j).abs()
        scores = q @ k.mT / math.sqrt(q.shape[-1]) + bias
        scores = scores.masked_fill(j > i + start, float("-inf"))
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def step(self, x_t):
        start = sum(k.shape[2] for k in self.keys)
        self.keys.append(self.heads_of(self.k_proj, x_t))
        self.values.append(self.heads_of(self.v_proj, x_t))
        k, v = torch.cat(self.keys, dim=2), torch.cat(self.values, dim=2)
        return self.attend(self.heads_of(self.q_proj, x_t), k, v, start)

    def full(self, x):
        q, k, v = (self.heads_of(layer, x) for layer in (self.q_proj, self.k_proj, self.v_proj))
        return self.attend(q, k, v, 0)


class PositionCountsCalls(nn.Module):
    """Grouped heads; the mask is made from the number of calls, not of tokens."""

    def __init__(self, hidden, heads, kv_heads, head_dim):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.wq = nn.Linear(hidden, heads * head_dim, bias=False)
        self.wk = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.wv = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.wo = nn.Linear(heads * head_dim, hidden, bias=False)
        self.reset()

    def reset(self):
        self.k = self.v = None
        self.position = 0

    def forward(self, x, start):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        self.k = k if self.k is None else torch.cat([self.k, k], dim=2)
        self.v = v if self.v is None else torch.cat([self.v, v], dim=2)
        key_positions = torch.arange(self.k.shape[2])
        query_positions = start + torch.arange(t)
        mask = key_positions[None, :] <= query_positions[:, None]
        out = F.scaled_dot_product_attention(q, self.k, self.v, attn_mask=mask, enable_gqa=True)
        return self.wo(out.transpose(1, 2).reshape(b, t, -1))

    def step(self, x_t):
        out = self.forward(x_t, self.position)
        self.position += 1
        return out

    def full(self, x):
        self.reset()
        return self.forward(x, 0)


# cache.unmasked


class CausalWithoutPast(nn.Module):
    """Rotary positions that are right; is_causal as long as nothing is cached, and no mask at all afterwards."""

    def __init__(self, d_model, n_heads, base=10000.0):
        super().__init__()
        self.n_heads, self.head_dim, self.base = n_heads, d_model // n_heads, base
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)
        self.reset()

    def reset(self):
        self.past_key_value = None

    def rotate(self, x, start):
        half = self.head_dim // 2
        inv_freq = self.base ** (-torch.arange(half, dtype=x.dtype) / half)
        angles = (start + torch.arange(x.shape[2], dtype=x.dtype))[:, None] * inv_freq
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin

    def forward(self, x, past=None):
        b, t, d = x.shape
        q = self.q_proj(x).view(b, t, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.n_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.n_heads, self.head_dim).transpose(1, 2)
        start = 0 if past is None else past[0].shape[2]
        q, k = self.rotate(q, start), self.rotate(k, start)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=past is None and t > 1)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, d)), (k, v)

    def step(self, x_t):
        out, self.past_key_value = self.forward(x_t, self.past_key_value)
        return out

    def full(self, x):
        return self.forward(x)[0]


class PrefillWithoutMask(nn.Module):
    """A step is written for one token, and takes a prompt as well; grouped heads, a buffer for the keys."""

    def __init__(self, dim, n_heads, n_kv_heads, max_seq_len):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.wq = nn.Linear(dim, dim)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim)
        self.wo = nn.Linear(dim, dim)
        self.max_seq_len = max_seq_len
        self.reset()

    def reset(self):
        self.cache, self.position = None, 0

    def project(self, x):
        q, k, v = (
            each(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for each in (self.wq, self.wk, self.wv)
        )
        return q, torch.stack((k, v))

    def attend(self, q, kv, mask=None):
        k, v = kv.repeat_interleave(self.n_heads // self.n_kv_heads, dim=2)
        scores = q @ k.transpose(2, 3) / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores + mask
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def step(self, x_t):
        q, kv = self.project(x_t)
        if self.cache is None:
            self.cache = kv.new_zeros(*kv.shape[:3], self.max_seq_len, self.head_dim)
        stop = self.position + x_t.shape[1]
        self.cache[:, :, :, self.position : stop] = kv.detach()
        self.position = stop
        return self.attend(q, self.cache[:, :, :, :stop])

    def full(self, x):
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf"), dtype=x.dtype).triu(1)
        return self.attend(*self.project(x), mask)


class EmptyPlacesAreSeen(nn.Module):
    """Room for all tokens, of which only those behind the query in its chunk are hidden."""

    hides_the_rest, unwritten = False, 0.0

    def __init__(self, d_model, n_heads, max_len):
        super().__init__()
        self.n_heads, self.max_len = n_heads, max_len
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.proj = nn.Linear(d_model, d_model, bias=False)
        self.reset()

    def reset(self):
        self.k = self.v = None
        self.used = 0

    def split(self, x):
        return self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)

    def step(self, x_t):
        q, k, v = self.split(x_t)
        if self.k is None:
            room = *k.shape[:2], self.max_len, k.shape[3]
            self.k, self.v = k.new_full(room, self.unwritten), k.new_full(room, self.unwritten)
        stop = self.used + x_t.shape[1]
        self.k[:, :, self.used : stop], self.v[:, :, self.used : stop] = k, v
        i, j = torch.arange(self.used, stop)[:, None], torch.arange(self.max_len)
        hidden = j > i if self.hides_the_rest else (j > i) & (j < stop)
        self.used = stop
        scores = (q @ self.k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
        return self.proj((scores.softmax(-1) @ self.v).transpose(1, 2).flatten(2))

    def full(self, x):
        q, k, v = self.split(x)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(out.transpose(1, 2).flatten(2))


class EmptyPlacesAreHidden(EmptyPlacesAreSeen):
    hides_the_rest = True


# cache.window


class TrimmedBeforeUse(nn.Module):
    def __init__(self, d_in, d_out, num_heads, window):
        super().__init__()
        self.num_heads, self.window = num_heads, window
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        self.reset()

    def reset(self):
        self.cache_k = self.cache_v = None
        self.seen = 0

    def heads(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def attend(self, q, k, v, first_query, first_key):
        i = first_query + torch.arange(q.shape[2])[:, None]
        j = first_key + torch.arange(k.shape[2])[None, :]
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill((j > i) | (i - j > self.window), -1e9)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    def step(self, x_t):
        q, k, v = (self.heads(w(x_t)) for w in (self.W_query, self.W_key, self.W_value))
        if self.cache_k is not None:
            k, v = torch.cat([self.cache_k, k], dim=2), torch.cat([self.cache_v, v], dim=2)
        k, v = k[:, :, -self.window - 1 :], v[:, :, -self.window - 1 :]
        self.cache_k, self.cache_v = k, v
        first_query, self.seen = self.seen, self.seen + x_t.shape[1]
        return self.attend(q, k, v, first_query, self.seen - k.shape[2])

    def full(self, x):
        q, k, v = (self.heads(w(x)) for w in (self.W_query, self.W_key, self.W_value))
        return self.attend(q, k, v, 0, 0)


class RingBuffer(nn.Module):
    """Slot = position % size: a chunk longer than the ring overwrites what it still needs."""

    def __init__(self, d_model, n_heads, window):
        super().__init__()
        self.n_heads, self.window, self.size = n_heads, window, window + 1
        self.c_attn = nn.Linear(d_model, 3 * d_model)
        self.c_proj = nn.Linear(d_model, d_model)
        self.reset()

    def reset(self):
        self.ring = None
        self.slots = torch.full((self.size,), -1)
        self.position = 0

    def qkv(self, x):
        return self.c_attn(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)

    def attend(self, q, k, v, i, j):
        visible = (j >= 0) & (j <= i[:, None]) & (i[:, None] - j <= self.window)
        bias = torch.zeros(visible.shape, dtype=q.dtype).masked_fill(~visible, -1e9)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.c_proj(out.transpose(1, 2).flatten(2))

    def step(self, x_t):
        q, k, v = self.qkv(x_t)
        if self.ring is None:
            self.ring = k.new_zeros(2, *k.shape[:2], self.size, k.shape[-1])
        positions = self.position + torch.arange(x_t.shape[1])
        for t, position in enumerate(positions.tolist()):
            self.ring[0, :, :, position % self.size] = k[:, :, t].detach()
            self.ring[1, :, :, position % self.size] = v[:, :, t].detach()
            self.slots[position % self.size] = position
        self.position += x_t.shape[1]
        return self.attend(q, self.ring[0], self.ring[1], positions, self.slots)

    def full(self, x):
        positions = torch.arange(x.shape[1])
        return self.attend(*self.qkv(x), positions, positions)


class KeepsTheFirst(nn.Module):
    """After a long prefill the cache keeps its first tokens, not its last."""

    def __init__(self, d_in, d_head, window):
        super().__init__()
        self.window = window
        self.q = nn.Linear(d_in, d_head, bias=False)
        self.k = nn.Linear(d_in, d_head, bias=False)
        self.v = nn.Linear(d_in, d_head, bias=False)
        self.reset()

    def reset(self):
        self.keys = self.values = self.places = None
        self.length = 0

    def attend(self, q, k, v, i, j):
        hidden = (j[None] > i[:, None]) | (i[:, None] - j[None] > self.window)
        scores = torch.einsum("bqd,bkd->bqk", q, k) * q.shape[-1] ** -0.5
        return torch.einsum("bqk,bkd->bqd", scores.masked_fill(hidden, -1e9).softmax(-1), v)

    def step(self, x_t):
        i = self.length + torch.arange(x_t.shape[1])
        k, v, j = self.k(x_t), self.v(x_t), i
        if self.keys is not None:
            k, v = torch.cat([self.keys, k], dim=1), torch.cat([self.values, v], dim=1)
            j = torch.cat([self.places, i])
        out = self.attend(self.q(x_t), k, v, i, j)
        self.length += x_t.shape[1]
        keep = self.window + 1
        self.keys, self.values, self.places = k[:, :keep], v[:, :keep], j[:keep]
        return out

    def full(self, x):
        i = torch.arange(x.shape[1])
        return self.attend(self.q(x), self.k(x), self.v(x), i, i)


class CutOneLate(nn.Module):
    """Without a mask in a step, so that what is kept is what is seen: one more than the window."""

    def __init__(self, d_model, n_heads, window):
        super().__init__()
        self.n_heads, self.window = n_heads, window
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.proj = nn.Linear(d_model, d_model, bias=False)
        self.reset()

    def reset(self):
        self.k = self.v = None

    def split(self, x):
        return self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)

    def merge(self, out):
        return self.proj(out.transpose(1, 2).flatten(2))

    def step(self, x_t):
        outputs = []
        for token in x_t.split(1, dim=1):
            q, k, v = self.split(token)
            if self.k is not None:
                k, v = torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2)
            self.k, self.v = k[:, :, -(self.window + 1) :], v[:, :, -(self.window + 1) :]
            outputs.append(self.merge(F.scaled_dot_product_attention(q, self.k, self.v)))
        return torch.cat(outputs, dim=1)

    def full(self, x):
        q, k, v = self.split(x)
        i = torch.arange(x.shape[1])
        distance = i[:, None] - i
        near = (distance >= 0) & (distance < self.window)
        return self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=near))


# cache.stale


class ResetForgetsCache(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.past_k, self.past_v, self.current_pos = None, None, 0

    def reset(self):
        self.current_pos = 0

    def attend(self, q, k, v):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in (q, k, v))
        n, m = q.shape[2], k.shape[2]
        mask = torch.ones(n, m, dtype=torch.bool).tril(m - n)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(out.transpose(1, 2).flatten(2))

    def step(self, x_t):
        k, v = self.k_proj(x_t), self.v_proj(x_t)
        if self.past_k is not None:
            k = torch.cat([self.past_k, k], dim=1)
            v = torch.cat([self.past_v, v], dim=1)
        self.past_k, self.past_v = k, v
        self.current_pos += x_t.shape[1]
        return self.attend(self.q_proj(x_t), k, v)

    def full(self, x):
        return self.attend(self.q_proj(x), self.k_proj(x), self.v_proj(x))


class PositionSurvivesReset(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        self.ptr_current_pos = 0
        self.cache_k = self.cache_v = None

    def reset(self):
        self.cache_k = self.cache_v = None

    def attend(self, queries, keys, values, start):
        q_positions = torch.arange(start, start + queries.shape[1])
        k_positions = torch.arange(keys.shape[1])
        scores = queries @ keys.transpose(1, 2) / keys.shape[-1] ** 0.5
        scores = scores.masked_fill(q_positions[:, None] < k_positions[None], -torch.inf)
        return torch.softmax(scores, dim=-1) @ values

    def step(self, x_t):
        keys, values = self.W_key(x_t), self.W_value(x_t)
        if self.cache_k is not None:
            keys = torch.cat([self.cache_k, keys], dim=1)
            values = torch.cat([self.cache_v, values], dim=1)
        self.cache_k, self.cache_v = keys, values
        out = self.attend(self.W_query(x_t), keys, values, self.ptr_current_pos)
        self.ptr_current_pos += x_t.shape[1]
        return out

    def full(self, x):
        return self.attend(self.W_query(x), self.W_key(x), self.W_value(x), 0)


class PreallocatedNotCleared(nn.Module):
    def __init__(self, dim, heads, max_len):
        super().__init__()
        self.heads, self.max_len = heads, max_len
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.k = self.v = None
        self.used, self.longest = 0, 0

    def reset(self):
        self.used = 0

    def attend(self, q, k, v, last):
        i = last - q.shape[2] + torch.arange(q.shape[2])[:, None]
        hidden = torch.arange(k.shape[2])[None] > i
        if q.shape[2] == 1:
            hidden = torch.zeros_like(hidden)  # one query sees everything that is cached
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(hidden, -math.inf)
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def split(self, x):
        b, t, d = x.shape
        return self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)

    def step(self, x_t):
        q, k, v = self.split(x_t)
        if self.k is None or len(self.k) != len(k):
            self.k = k.new_zeros(*k.shape[:2], self.max_len, k.shape[3])
            self.v = torch.zeros_like(self.k)
        stop = self.used + x_t.shape[1]
        self.k[:, :, self.used : stop] = k.detach()
        self.v[:, :, self.used : stop] = v.detach()
        self.used, self.longest = stop, max(stop, self.longest)
        return self.attend(q, self.k[:, :, : self.longest], self.v[:, :, : self.longest], stop)

    def full(self, x):
        return self.attend(*self.split(x), x.shape[1])


SLOPES = torch.tensor([0.5, 0.25, 0.125])

ENTRIES = [
    wrong("cache.offset", Built(StepIsCausal, 15, 3), "decode", causal=True, num_heads=3),
    wrong(
        "cache.offset",
        Built(ChunkMaskFromBuffer, 7, 5, 32),
        "decode",
        causal=True,
        num_heads=1,
        sizes={"d_in": 7, "d_out": 5, "context_length": 32},
    ),
    wrong(
        "cache.offset",
        Built(AlibiStep, 15, 3, SLOPES),
        "decode",
        causal=True,
        num_heads=3,
        alibi_slopes=SLOPES,
    ),
    wrong(
        "cache.offset",
        Built(PositionCountsCalls, 11, 6, 2, 5),
        "decode",
        causal=True,
        num_heads=6,
        num_kv_heads=2,
        sizes={"d_in": 11, "head_dim": 5},
    ),
    wrong(
        "cache.unmasked",
        Built(CausalWithoutPast, 18, 3),
        "decode",
        causal=True,
        num_heads=3,
        rope={"base": 10000.0, "layout": "half"},
    ),
    wrong(
        "cache.unmasked",
        Built(PrefillWithoutMask, 20, 4, 2, 64),
        "decode",
        causal=True,
        num_heads=4,
        num_kv_heads=2,
        sizes={"d_in": 20, "context_length": 64},
    ),
    wrong(
        "cache.offset",
        Built(EmptyPlacesAreSeen, 15, 3, 64),
        "decode",
        causal=True,
        num_heads=3,
        sizes={"d_in": 15},
    ),
    right(
        Built(EmptyPlacesAreHidden, 15, 3, 64),
        "decode",
        causal=True,
        num_heads=3,
        sizes={"d_in": 15},
    ),
    wrong(
        "cache.window",
        Built(TrimmedBeforeUse, 7, 15, 3, 4),
        "decode",
        causal=True,
        window=(4, 0),
        num_heads=3,
        sizes={"d_in": 7, "d_out": 15},
    ),
    wrong(
        "cache.window",
        Built(RingBuffer, 15, 3, 4),
        "decode",
        causal=True,
        window=(4, 0),
        num_heads=3,
    ),
    wrong(
        "cache.window",
        Built(KeepsTheFirst, 7, 5, 3),
        "decode",
        causal=True,
        window=(3, 0),
        num_heads=1,
    ),
    wrong(
        "cache.window",
        Built(CutOneLate, 15, 3, 4),
        "decode",
        causal=True,
        window=(3, 0),
        num_heads=3,
    ),
    wrong("cache.stale", Built(ResetForgetsCache, 15, 3), "decode", causal=True, num_heads=3),
    wrong(
        "cache.stale",
        Built(PositionSurvivesReset, 7, 5),
        "decode",
        causal=True,
        num_heads=1,
        sizes={"d_in": 7, "d_out": 5},
    ),
    wrong(
        "cache.stale",
        Built(PreallocatedNotCleared, 15, 3, 64),
        "decode",
        causal=True,
        num_heads=3,
        sizes={"d_in": 15, "context_length": 64},
    ),
]
