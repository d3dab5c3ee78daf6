"""Hiding tokens, as it is done: −∞ before the softmax.

New here: the mask is applied to the scores, not to the weights. exp(−∞) = 0, so that the softmax
itself gives nothing to hidden tokens and shares everything among the others: no second division, and
a NaN in a hidden token stays there (Vaswani et al., 2017, section 3.2.3,
https://arxiv.org/abs/1706.03762).
"""

from clearhead.ladder.masking import MaskedProjections
from clearhead.ladder.rung import Context, Tokens
from clearhead.stages import Stages, compute


class MaskedAttention(MaskedProjections):
    """Attention with a mask that is applied to the scores; arguments as in `masking`.

    A query that may attend to nothing gets zeros.

    Example:
        >>> import torch, clearhead as ch
        >>> attention = MaskedAttention(3, head_dim=2, mask=ch.causal())
        >>> steps = attention.stages(torch.randn(2, 3))
        >>> steps.masked_scores[0, 1].item(), steps.weights[0, 1].item()
        (-inf, 0.0)
    """

    def stages(self, x: Tokens, context: Context | None = None) -> Stages:
        """Return every stage between x, (tokens, embed_dim), and its contexts; keys are of `context`, by default x.

        Raises MaskError if the mask does not fit.
        """
        query, key, value = self.project(x, context)
        scale = query.shape[-1] ** -0.5
        return compute(query, key, value, scale=scale, visible=self.visible(query, key))
