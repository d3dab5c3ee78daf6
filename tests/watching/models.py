"""Models that are watched in several files of tests."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IDS = torch.tensor([[1, 2, 3, 1, 2, 3, 1], [5, 5, 1, 4, 5, 4, 1]])


def inputs(*lead: int, query_len: int = 5, kv_len: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    query = torch.randn(*lead, query_len, 4, dtype=torch.float64)
    key = torch.randn(*lead, kv_len, 4, dtype=torch.float64)
    # With the unit vectors as values, the context is the weights.
    return query, key, torch.eye(kv_len, dtype=torch.float64).expand(*lead, kv_len, kv_len)


class Direct(nn.Module):
    """Calls PyTorch's function with what it is given."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return F.scaled_dot_product_attention(*args, **kwargs)


class Itself(nn.Module):
    """Attends from its input to the same."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


class OwnSoftmax(nn.Module):
    """Attention with a softmax of its own, which no hook sees."""

    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.mT).softmax(-1) @ x


class Stack(nn.Module):
    """Two layers, by hand, of one head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Direct()
        self.second = Direct()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x, x, x), x, x, is_causal=True)


class Language(nn.Module):
    """A small language model with a cache, which says where its embeddings are."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(11, 6)
        self.attention = Direct()
        self.past: Tensor | None = None

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def forward(self, ids: Tensor, valid: Tensor | None = None) -> Tensor:
        x = self.embeddings(ids)[:, None]
        past = x if self.past is None else torch.cat([self.past, x], dim=2)
        self.past = past
        visible = torch.ones(x.shape[2], past.shape[2], dtype=torch.bool)
        visible = visible.tril(past.shape[2] - x.shape[2])
        if valid is not None:
            visible = visible & valid[:, None, None]
        return self.attention(x, past, past, attn_mask=visible)
