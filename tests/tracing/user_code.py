"""Attentions as people write them, right and wrong, to be traced."""

import torch
from torch import Tensor, nn


class Own(nn.Module):
    """Three matrices, and an attention of which each class below does something else."""

    def __init__(self, d_in: int = 3, d_out: int = 2, num_heads: int = 1) -> None:
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        self.num_heads = num_heads

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(self.W_query(x), self.W_key(x), self.W_value(x))

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.softmax(scaled(query, key), dim=-1) @ value


def scaled(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.mT / key.shape[-1] ** 0.5


def future(scores: Tensor) -> Tensor:
    return torch.ones(scores.shape[-2:]).triu(1).bool()


class Causal(Own):
    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = scaled(query, key)
        scores = scores.masked_fill(future(scores), -torch.inf)
        return torch.softmax(scores, dim=-1) @ value


class MaskThenScale(Own):
    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT
        scores = scores.masked_fill(future(scores), -torch.inf) / key.shape[-1] ** 0.5
        return torch.softmax(scores, dim=-1) @ value


class Renormalised(Own):
    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = torch.softmax(scaled(query, key), dim=-1)
        weights = weights * torch.ones_like(weights).tril()
        return weights / weights.sum(-1, keepdim=True) @ value


class Exponentials(Own):
    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = scaled(query, key)
        powers = torch.exp(scores - scores.amax(-1, keepdim=True))
        return powers / powers.sum(-1, keepdim=True) @ value


class Dropped(Own):
    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = torch.softmax(scaled(query, key), dim=-1)
        return torch.dropout(weights, 0.5, self.training) @ value


class Heads(Own):
    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (self.split(each) for each in (query, key, value))
        scores = scaled(query, key)
        weights = torch.softmax(scores.masked_fill(future(scores), -torch.inf), dim=-1)
        return self.merge(weights @ value)

    def split(self, each: Tensor) -> Tensor:
        return each.view(*each.shape[:2], self.num_heads, -1).transpose(1, 2)

    def merge(self, context: Tensor) -> Tensor:
        return context.transpose(1, 2).flatten(2)


class HeadByHead(Heads):
    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (self.split(each) for each in (query, key, value))
        rows = []
        for head in range(self.num_heads):
            scores = scaled(query[:, head], key[:, head])
            scores = scores.masked_fill(future(scores), -torch.inf)
            rows.append(torch.softmax(scores, dim=-1) @ value[:, head])
        return torch.cat(rows, dim=-1)


class Projected(Heads):
    def __init__(self, d_in: int = 3, d_out: int = 4, num_heads: int = 2) -> None:
        super().__init__(d_in, d_out, num_heads)
        self.out_proj = nn.Linear(d_out, d_out)

    def merge(self, context: Tensor) -> Tensor:
        return self.out_proj(super().merge(context))


class SmallNegative(Own):
    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = scaled(query, key)
        return torch.softmax(scores.masked_fill(future(scores), -1e-9), dim=-1) @ value


class HalfPower(Own):
    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.softmax(query @ key.mT / key.shape[-1] ** 1 / 2, dim=-1) @ value


class SoftmaxAgain(Own):
    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = torch.softmax(scaled(query, key), dim=-1)
        return torch.softmax(weights, dim=-1) @ value


class Columns(Own):
    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.softmax(scaled(query, key), dim=0) @ value


class TrilOnValues(Own):
    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = torch.softmax(scaled(query, key), dim=-1)
        return weights @ (torch.ones_like(weights).tril() @ value)


class MaskAfterSoftmax(Own):
    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = torch.softmax(scaled(query, key), dim=-1)
        return weights.masked_fill(future(weights), 0.0) @ value


class LostMask(Own):
    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = scaled(query, key)
        scores.masked_fill(future(scores), -torch.inf)
        return torch.softmax(scores, dim=-1) @ value


class MergedWithoutTranspose(Heads):
    def merge(self, context: Tensor) -> Tensor:
        return context.reshape(context.shape[0], context.shape[2], -1)


class SplitWithoutTranspose(Heads):
    def split(self, each: Tensor) -> Tensor:
        return each.view(len(each), self.num_heads, each.shape[1], -1)
