"""The classes of five public tutorials, as they are written there, slips included.

The names are theirs. `docs/check_findings.md` says what is wrong with them.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Of tutorial 003: matrices, and a value of its own width."""

    def __init__(self, d_in: int, d_out_kq: int, d_out_v: int) -> None:
        super().__init__()
        self.d_out_kq = d_out_kq
        self.W_query = nn.Parameter(torch.rand(d_in, d_out_kq))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out_kq))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out_v))

    def forward(self, x: Tensor) -> Tensor:
        keys = x @ self.W_key
        queries = x @ self.W_query
        values = x @ self.W_value
        attn_scores = queries @ keys.T
        attn_weights = torch.softmax(attn_scores / self.d_out_kq**0.5, dim=-1)
        return attn_weights @ values


class SelfAttentionV2(nn.Module):
    """Of tutorial 004: linear layers."""

    def __init__(self, d_in: int, d_out: int, qkv_bias: bool = False) -> None:
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    def forward(self, x: Tensor) -> Tensor:
        queries = self.W_query(x)
        keys = self.W_key(x)
        values = self.W_value(x)
        attn_scores = queries @ keys.T
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        return attn_weights @ values


class CausalAttention(nn.Module):
    """Of tutorial 000; of tutorial 004 with `triangle=torch.tril` and `diagonal=0`."""

    mask: Tensor

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        qkv_bias: bool = False,
        triangle: Callable[..., Tensor] = torch.triu,
        diagonal: int = 1,
    ) -> None:
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)
        ones = torch.ones(context_length, context_length)
        self.register_buffer("mask", triangle(ones, diagonal=diagonal))

    def forward(self, x: Tensor) -> Tensor:
        _, num_tokens, _ = x.shape
        queries = self.W_query(x)
        keys = self.W_key(x)
        values = self.W_value(x)
        attn_scores = queries @ keys.transpose(1, 2)
        attn_scores.masked_fill_(self.mask.bool()[:num_tokens, :num_tokens], -torch.inf)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        return self.dropout(attn_weights) @ values


class MultiHeadAttentionWrapper(nn.Module):
    """Of tutorial 000."""

    def __init__(
        self, d_in: int, d_out: int, context_length: int, dropout: float, num_heads: int
    ) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            [CausalAttention(d_in, d_out, context_length, dropout) for _ in range(num_heads)]
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([head(x) for head in self.heads], dim=-1)


class MultiHeadAttention(nn.Module):
    """Of tutorial 002, whose order of arguments is not that of tutorial 000."""

    causal_mask: Tensor

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        dropout: float,
        context_length: int,
        num_heads: int,
        qkv_bias: bool = False,
    ) -> None:
        super().__init__()
        assert output_dim % num_heads == 0, "Output dimension must be divisible by number of heads"
        self.output_dim = output_dim
        self.num_heads = num_heads
        self.head_dim = output_dim // num_heads
        self.weight_query = nn.Linear(input_dim, output_dim, qkv_bias)
        self.weight_key = nn.Linear(input_dim, output_dim, qkv_bias)
        self.weight_value = nn.Linear(input_dim, output_dim, qkv_bias)
        self.dropout = nn.Dropout(dropout)
        ones = torch.ones(context_length, context_length)
        self.register_buffer("causal_mask", torch.triu(ones, diagonal=1))
        self.output_projection = nn.Linear(output_dim, output_dim)

    def forward(self, x: Tensor) -> Tensor:
        batch_size, num_tokens, _ = x.shape
        shape = (batch_size, num_tokens, self.num_heads, self.head_dim)
        queries = self.weight_query(x).view(shape).transpose(1, 2)
        keys = self.weight_key(x).view(shape).transpose(1, 2)
        values = self.weight_value(x).view(shape).transpose(1, 2)
        attention_scores = queries @ keys.transpose(2, 3)
        hidden = self.causal_mask.bool()[:num_tokens, :num_tokens]
        attention_scores.masked_fill_(hidden, -torch.inf)
        attention_weights = torch.softmax(attention_scores / keys.shape[-1] ** 0.5, dim=-1)
        attention_weights = self.dropout(attention_weights)
        context_vectors = (attention_weights @ values).transpose(1, 2).contiguous()
        return self.output_projection(context_vectors.view(batch_size, num_tokens, self.output_dim))


def renamed(model: MultiHeadAttention) -> dict[str, Tensor]:
    """The weights under the names that tutorial 000 gives them."""
    return {
        name.replace("weight_", "W_")
        .replace("output_projection", "out_proj")
        .replace("causal_mask", "mask"): tensor
        for name, tensor in model.state_dict().items()
    }
