"""The reference for a cache: every row as a text of its own, with all of its tokens at hand."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

import clearhead as ch
from clearhead.layers.caches import (
    Cache,
    FixedCache,
    GrowingCache,
    SlidingCache,
    StaticCache,
)
from tests.tolerances import assert_no_worse

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, VALUE_HEAD_DIM = 6, 2, 5, 7
WINDOW, SPARE = 4, 3

KINDS: dict[str, Callable[[], Cache]] = {
    "growing": GrowingCache,
    "static": lambda: StaticCache(211),
    "sliding": lambda: SlidingCache(WINDOW),
    "sliding with spare": lambda: SlidingCache(WINDOW, spare=SPARE),
    "fixed": lambda: FixedCache(211),
}


def tokens(batch: int, new: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of new tokens."""
    return (
        torch.randn(batch, NUM_HEADS, new, HEAD_DIM),
        torch.randn(batch, NUM_KV_HEADS, new, HEAD_DIM),
        torch.randn(batch, NUM_KV_HEADS, new, VALUE_HEAD_DIM),
    )


def plainly(query: Tensor, key: Tensor, value: Tensor, window: float) -> Tensor:
    """The context of the last tokens of a text, each of which sees the last `window` ones."""
    heads = NUM_HEADS // NUM_KV_HEADS
    scores = query @ key.repeat_interleave(heads, dim=0).mT / math.sqrt(HEAD_DIM)
    places = torch.arange(key.shape[1])
    back = places[-query.shape[1] :, None] - places
    weights = scores.masked_fill((back < 0) | (back >= window), -torch.inf).softmax(dim=-1)
    return weights @ value.repeat_interleave(heads, dim=0)


class Texts:
    """The rows of a batch, each with its keys and values so far, kept the plain way."""

    def __init__(self, cache: Cache, batch: int) -> None:
        self.cache = cache
        # Keys and values (heads, tokens, width), and which columns were real.
        self.keys = [torch.zeros(NUM_KV_HEADS, 0, HEAD_DIM) for _ in range(batch)]
        self.values = [torch.zeros(NUM_KV_HEADS, 0, VALUE_HEAD_DIM) for _ in range(batch)]
        self.real = [torch.zeros(0, dtype=torch.bool) for _ in range(batch)]

    @property
    def batch(self) -> int:
        return len(self.keys)

    def append(self, new: int, valid: Tensor | None = None) -> None:
        """Append new tokens to both, and hold the cache to what the texts say."""
        query, key, value = tokens(self.batch, new)
        mine = torch.ones(self.batch, new, dtype=torch.bool) if valid is None else valid
        first = [row.shape[1] for row in self.keys]
        next_positions = self.cache.next_positions(new, valid).expand(self.batch, -1)
        kept_key, kept_value = self.cache.append(key, value, valid=valid)
        context = ch.attend(query, kept_key, kept_value, mask=ch.causal() & self.cache.mask())
        for row in range(self.batch):
            some = mine[row]
            self.keys[row] = torch.cat([self.keys[row], key[row][:, some]], dim=1)
            self.values[row] = torch.cat([self.values[row], value[row][:, some]], dim=1)
            self.real[row] = torch.cat([self.real[row], some])
            count = self.keys[row].shape[1]
            assert next_positions[row][some].tolist() == list(range(first[row], count))
            if some.any():
                self._check_context(row, query[row][:, some], context[row][:, some])
        if new:
            self._check_keys(mine, kept_key, kept_value)
        assert len(self.cache) == self.real[0].shape[0]
        assert not kept_key.requires_grad
        assert not kept_value.requires_grad

    def truncate(self, length: int) -> None:
        self.cache.truncate(length)
        for row in range(self.batch):
            self.real[row] = self.real[row][:length]
            count = int(self.real[row].sum())
            self.keys[row] = self.keys[row][:, :count]
            self.values[row] = self.values[row][:, :count]

    def truncate_rows(self, lengths: list[int]) -> None:
        self.cache.truncate(lengths)
        for row, length in enumerate(lengths):
            real = self.real[row][: max(lengths)].clone()
            real[length:] = False
            self.real[row] = real
            count = int(real.sum())
            self.keys[row] = self.keys[row][:, :count]
            self.values[row] = self.values[row][:, :count]
        assert len(self.cache) == max(lengths)

    def fork(self) -> "Texts":
        other = Texts(self.cache.fork(), 0)
        other.keys, other.values, other.real = [*self.keys], [*self.values], [*self.real]
        return other

    def reorder(self, rows: list[int]) -> None:
        self.cache.reorder(torch.tensor(rows, dtype=torch.int32))
        self.keys = [self.keys[row] for row in rows]
        self.values = [self.values[row] for row in rows]
        self.real = [self.real[row] for row in rows]

    def _check_context(self, row: int, query: Tensor, context: Tensor) -> None:
        """The last queries of one row, against the row alone."""
        key, value = self.keys[row], self.values[row]
        window = self.cache.window if isinstance(self.cache, SlidingCache) else math.inf
        exact = plainly(query.double(), key.double(), value.double(), window)
        assert_no_worse(context, exact, plainly(query, key, value, window))

    def _check_keys(self, mine: Tensor, key: Tensor, value: Tensor) -> None:
        """Every key that a last query sees is the token whose position it is said to have."""
        kv_len = key.shape[2]
        visible = (ch.causal() & self.cache.mask()).to_dense(1, kv_len)
        visible = visible.expand(self.batch, 1, 1, kv_len)[:, 0, 0]
        positions = self.cache.positions.expand(self.batch, -1)
        assert positions.shape == (self.batch, kv_len)
        for row in range(self.batch):
            if not mine[row, -1]:
                continue
            seen = positions[row][visible[row]]
            count = self.keys[row].shape[1]
            start = max(0, count - WINDOW) if isinstance(self.cache, SlidingCache) else 0
            assert sorted(seen.tolist()) == list(range(start, count))
            # Then columns are as far apart as their tokens, and the last query is on the last key.
            columns = visible[row].nonzero()[:, 0]
            assert not self.cache.in_order or (columns - seen == kv_len - count).all()
            kept = key[row][:, visible[row]], value[row][:, visible[row]]
            for given, held in zip((self.keys[row], self.values[row]), kept, strict=True):
                assert torch.equal(held, given[:, seen])
