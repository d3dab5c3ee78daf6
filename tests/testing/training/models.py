"""Small models of the bank: a decoder, an encoder, and an encoder with a decoder.

Each mistake of a model is a switch of these, so that wrong and right scripts differ by nothing else.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, VOCABULARY, LENGTH, PAD = 16, 2, 13, 24, 0


class Attention(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.dropout = dropout

    def forward(self, x: Tensor, context: Tensor, visible: Tensor | None) -> Tensor:
        query, key, value = (
            each.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for each in (self.query(x), self.key(context), self.value(context))
        )
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
    ) -> Tensor:
        normed = self.norms[0](x)
        x = x + self.attention(normed, normed, visible)
        if self.crossing is not None:
            x = x + self.crossing(self.norms[2](x), context, of_context)
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    """Embeddings, blocks and a head, and the switches of its kinds."""

    peeks = uncausal = detached = recomputes = False
    hides = True

    def __init__(
        self, outputs: int, dropout: float, crosses: tuple[bool, ...], **head: Any
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout, each) for each in crosses)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, outputs, **head)
        self.drop = nn.Dropout(dropout)
        for each in self.modules():
            if isinstance(each, nn.Linear | nn.Embedding):
                nn.init.normal_(each.weight, std=0.05 if isinstance(each, nn.Embedding) else 0.2)

    def embedded(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]).expand_as(ids))
        return self.drop(x + self.tokens(ids.roll(-1, 1)) if self.peeks else x)

    def block(self, number: int, *inputs: Tensor | None) -> Any:
        if self.recomputes:
            return checkpoint(self.blocks[number], *inputs, use_reentrant=False)
        return self.blocks[number](*inputs)

    def causal(self, ids: Tensor) -> Tensor:
        seen = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool)
        return seen if self.uncausal else seen.tril()

    def padding(self, mask: Tensor) -> Tensor | None:
        return mask.bool()[:, None, None] if self.hides else None


class Decoder(Model):
    """A causal model of ids; documents are numbers."""

    def __init__(self, dropout: float = 0.0, tied: bool = True) -> None:
        super().__init__(VOCABULARY, dropout, (False, False), bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor, documents: Tensor | None = None) -> Tensor:
        x, visible = self.embedded(ids), self.causal(ids)
        if documents is not None:
            visible = visible & (documents[:, :, None] == documents[:, None])[:, None]
        for number in range(len(self.blocks)):
            x = self.block(number, x, visible)
        return self.head(self.norm(x.detach() if self.detached else x))


class Encoder(Model):
    """Of ids and a mask: a vector of classes, or logits at each token."""

    def __init__(self, classes: int | None = 4, dropout: float = 0.0) -> None:
        super().__init__(classes or VOCABULARY, dropout, (False, False))
        self.classes = classes

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embedded(ids)
        for number in range(len(self.blocks)):
            x = self.block(number, x, self.padding(mask))
        x = self.norm(x)
        if self.classes is not None:
            x = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.head(x)


class EncoderDecoder(Model):
    """Of a source with a mask, and of the target so far."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(VOCABULARY, dropout, (False, True))

    def forward(self, source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        visible = self.padding(mask)
        context = self.block(0, self.embedded(source), visible)
        x = self.block(1, self.embedded(target), self.causal(target), context, visible)
        return self.head(self.norm(x))
