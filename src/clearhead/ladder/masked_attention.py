"""Hiding tokens, as it is done: −∞ before the softmax.

New here: the mask meets the scores, not the weights. exp(−∞) = 0, so that the softmax itself gives
nothing to hidden tokens and shares everything among the others: no second division, and whatever
stands in a hidden token stays there (Vaswani et al., 2017, section 3.2.3,
https://arxiv.org/abs/1706.03762).
"""

from torch import Tensor

from clearhead.ladder.masking import visible_pairs
from clearhead.ladder.renormalised_attention import RenormalisedAttention
from clearhead.stages import Stages, compute


class MaskedAttention(RenormalisedAttention):
    """Attention with a mask that is applied to the scores; arguments as in the rung before.

    A query that may attend to nothing gets zeros.

    Example:
        >>> import torch, clearhead as ch
        >>> attention = MaskedAttention(3, head_dim=2, mask=ch.causal())
        >>> steps = attention.stages(torch.randn(2, 3))
        >>> steps.masked_scores[0, 1].item(), steps.weights[0, 1].item()
        (-inf, 0.0)
    """

    def stages(self, x: Tensor, context: Tensor | None = None) -> Stages:
        """Every stage between the tokens and their contexts."""
        self.check(x, context)
        query, key, value = self.project(x, context)
        visible = visible_pairs(self.mask, query, key)
        return compute(query, key, value, scale=query.shape[-1] ** -0.5, visible=visible)
