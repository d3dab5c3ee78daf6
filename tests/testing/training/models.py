"""Small models of the bank: a decoder, an encoder, and an encoder with a decoder.

Each mistake of a model is a switch of these, so that wrong and right scripts differ by nothing else.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, VOCABULARY, LENGTH, PAD = 16, 2, 13, 24, 0


def initialise(model: nn.Module) -> None:
    for each in model.modules():
        if isinstance(each, nn.Linear | nn.Embedding):
            nn.init.normal_(each.weight, std=0.05 if isinstance(each, nn.Embedding) else 0.2)


class Attention(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.dropout = dropout

    def forward(
        self, x: Tensor, context: Tensor, visible: Tensor | None, cache: list[Any] | None = None
    ) -> Tensor:
        query, key, value = (
            each.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for each in (self.query(x), self.key(context), self.value(context))
        )
        if cache is not None:
            if cache:
                key, value = torch.cat([cache[0], key], 2), torch.cat([cache[1], value], 2)
            cache[:] = key, value
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if visible is not None:
            scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        weights = F.dropout(scores.softmax(-1), self.dropout, self.training)
        return self.out((weights @ value).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0, crosses: bool = False) -> None:
        super().__init__()
        self.attention = Attention(dropout)
        self.crossing = Attention(dropout) if crosses else None
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3 if crosses else 2))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(
        self,
        x: Tensor,
        visible: Tensor | None,
        context: Tensor | None = None,
        of_context: Tensor | None = None,
        cache: list[Any] | None = None,
    ) -> Tensor:
        normed = self.norms[0](x)
        x = x + self.attention(normed, normed, visible, cache)
        if self.crossing is not None:
            x = x + self.crossing(self.norms[2](x), context, of_context)
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def causal(queries: int, keys: int) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


class Decoder(nn.Module):
    """A causal model of ids; a mask is True at real tokens, documents are numbers."""

    peeks = False
    uncausal = False
    detached = False
    ordered = True
    restarts = False
    scale = 1.0
    recomputes: bool | None = None  # checkpointing, and whether it keeps the random numbers

    def __init__(self, dropout: float = 0.0, layers: int = 2, tied: bool = True) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.drop = nn.Dropout(dropout)
        initialise(self)
        if tied:
            self.head.weight = self.tokens.weight

    def positions(self, mask: Tensor | None, ids: Tensor, past: int) -> Tensor:
        if mask is not None:
            return (mask.long().cumsum(-1) - 1).clamp_min(0)[:, -ids.shape[1] :]
        start = 0 if self.restarts else past
        return torch.arange(start, start + ids.shape[1]).expand_as(ids)

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        documents: Tensor | None = None,
        caches: list[list[Any]] | None = None,
    ) -> Tensor:
        past = caches[0][0].shape[2] if caches and caches[0] else 0
        places = self.positions(mask, ids, past)
        x = self.tokens(ids) + self.places(places if self.ordered else places * 0)
        if self.peeks:
            x = x + self.tokens(ids.roll(-1, 1))
        x = self.drop(x)
        visible = causal(ids.shape[1], past + ids.shape[1])[None, None]
        if self.uncausal:
            visible = torch.ones_like(visible)
        if mask is not None:
            visible = visible & mask.bool()[:, None, None]
        if documents is not None:
            visible = visible & (documents[:, :, None] == documents[:, None])[:, None]
        for number, block in enumerate(self.blocks):
            cache = None if caches is None else caches[number]
            if self.recomputes is None:
                x = block(x, visible, cache=cache)
            else:
                x = checkpoint(
                    block, x, visible, use_reentrant=False, preserve_rng_state=self.recomputes
                )
        return self.scale * self.head(self.norm(x.detach() if self.detached else x))


class Encoder(nn.Module):
    """Of ids and a mask: a vector of classes, or logits at each token."""

    ordered = True
    hides = True
    recomputes: bool | None = None

    def __init__(self, classes: int | None = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.classes = classes
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes or VOCABULARY)
        self.drop = nn.Dropout(dropout)
        initialise(self)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1]).expand_as(ids)
        x = self.drop(self.tokens(ids) + self.places(places if self.ordered else places * 0))
        visible = mask.bool()[:, None, None] if self.hides else None
        for block in self.blocks:
            if self.recomputes is None:
                x = block(x, visible)
            else:
                x = checkpoint(
                    block, x, visible, use_reentrant=False, preserve_rng_state=self.recomputes
                )
        x = self.norm(x)
        if self.classes is not None:
            x = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.head(x)


class EncoderDecoder(nn.Module):
    """Of a source with a mask, and of the target so far."""

    uncausal = False
    hides = True
    source_ordered = True
    recomputes: bool | None = None

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.reader, self.writer = Block(dropout), Block(dropout, crosses=True)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.drop = nn.Dropout(dropout)
        initialise(self)

    def embedded(self, ids: Tensor, start: int = 0, ordered: bool = True) -> Tensor:
        places = torch.arange(start, start + ids.shape[1])
        return self.drop(self.tokens(ids) + self.places(places if ordered else places * 0))

    def forward(
        self,
        source: Tensor,
        mask: Tensor,
        target: Tensor,
        cache: list[Any] | None = None,
        past: int = 0,
    ) -> Tensor:
        visible = mask.bool()[:, None, None] if self.hides else None
        context = self.reader(self.embedded(source, ordered=self.source_ordered), visible)
        length = past + target.shape[1] if cache else target.shape[1]
        seen = causal(target.shape[1], length)
        x = self.embedded(target, past)
        arguments = (x, torch.ones_like(seen) if self.uncausal else seen, context, visible)
        if self.recomputes is None:
            x = self.writer(*arguments, cache)
        else:
            x = checkpoint(
                self.writer, *arguments, use_reentrant=False, preserve_rng_state=self.recomputes
            )
        return self.head(self.norm(x))
