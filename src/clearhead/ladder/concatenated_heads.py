"""Several heads, side by side.

New here: several attentions over the same tokens, each with projections of its own, so that one may
look at the word before and another at the subject (Vaswani et al., 2017, section 3.2.2,
https://arxiv.org/abs/1706.03762). Their contexts are concatenated. The heads run one after the
other; the next rung runs them at once.
"""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from clearhead.ladder.rung import Rung
from clearhead.stages import Stages


class ConcatenatedHeads(Rung):
    """Several rungs over the same tokens, and their contexts next to each other.

    Args:
        heads: one or more rungs of one head each, of any kind, that take the same input.

    Example:
        >>> from clearhead.ladder import SelfAttention
        >>> heads = [SelfAttention(3, head_dim=2, value_head_dim=1) for _ in range(4)]
        >>> ConcatenatedHeads(heads)(torch.randn(6, 3)).shape
        torch.Size([6, 4])
    """

    def __init__(self, heads: Iterable[Rung]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)

    def project(self, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value of all heads, stacked: (..., num_heads, tokens, head_dim).

        The inputs are those of a head.
        """
        each = [head.project(*inputs) for head in cast(Iterable[Rung], self.heads)]
        query, key, value = (torch.stack(same, dim=-3) for same in zip(*each, strict=True))
        return query, key, value

    def stages(self, *inputs: Any, **options: Any) -> Stages:
        """Return the stages of all heads, stacked: (..., num_heads, query_len, …).

        The arguments are those of a head.
        """
        each = [head.stages(*inputs, **options) for head in cast(Iterable[Rung], self.heads)]
        return Stages(*(torch.stack(same, dim=-3) for same in zip(*each, strict=True)))

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Return the contexts of all heads, concatenated: (..., query_len, num_heads · value_head_dim)."""
        return torch.cat([head(*inputs, **options) for head in self.heads], dim=-1)
