"""Attention from one sequence to another.

New here: keys and values are made of a second sequence, the context, which may have another length
and another width. This is how a translation looks at the sentence it translates (Bahdanau et al.,
2015, https://arxiv.org/abs/1409.0473; Vaswani et al., 2017, https://arxiv.org/abs/1706.03762).
"""

from clearhead.ladder.linear_layers import Projections
from clearhead.ladder.rung import Context, Tokens
from clearhead.stages import Stages, compute


class CrossAttention(Projections):
    """Attention of x to a context; without one, to itself. Arguments as in `linear_layers`.

    Example:
        >>> import torch
        >>> attention = CrossAttention(3, head_dim=2, context_dim=5)
        >>> attention.stages(torch.randn(6, 3), torch.randn(8, 5)).weights.shape
        torch.Size([6, 8])
    """

    def stages(self, x: Tokens, context: Context | None = None) -> Stages:
        """Return every stage between x, (tokens, embed_dim), and its contexts; keys are of `context`, by default x."""
        query, key, value = self.project(x, context)
        return compute(query, key, value, scale=query.shape[-1] ** -0.5)
