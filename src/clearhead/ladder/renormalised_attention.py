"""Hiding tokens, first attempt: set weights to zero.

New here: the weights of hidden tokens are set to 0, and those that remain are divided by their sum
again. It costs a pass more than the next rung, and a NaN in a hidden token spreads, since the
softmax saw it; otherwise the two are equal.
"""

from torch import Tensor

from clearhead import stages
from clearhead._shapes import Bool, Float
from clearhead.ladder.masking import MaskedProjections
from clearhead.ladder.rung import Context, Tokens
from clearhead.ladder.softmax import weights_by_sum
from clearhead.stages import Stages, compute


def hide(
    weights: Float[Tensor, "*batch query_len kv_len"], visible: Bool[Tensor, "..."]
) -> Float[Tensor, "*batch query_len kv_len"]:
    """Return the weights with 0 where `visible` is False; rows with hidden keys add up to less than 1.

    Example:
        >>> import torch, clearhead as ch
        >>> hide(torch.full((2, 2), 0.5), ch.causal().to_dense(2, 2))
        tensor([[0.5000, 0.0000],
                [0.5000, 0.5000]])
    """
    return weights * visible


def renormalise(
    weights: Float[Tensor, "*batch query_len kv_len"],
) -> Float[Tensor, "*batch query_len kv_len"]:
    """Return the weights of each query divided by their sum; a row of zeros stays 0.

    Example:
        >>> import torch
        >>> renormalise(torch.tensor([[0.2, 0.0], [0.2, 0.6], [0.0, 0.0]]))
        tensor([[1.0000, 0.0000],
                [0.2500, 0.7500],
                [0.0000, 0.0000]])
    """
    empty = (weights == 0).all(dim=-1, keepdim=True)
    return weights_by_sum(weights.masked_fill(empty, 1.0)).masked_fill(empty, 0.0)


class RenormalisedAttention(MaskedProjections):
    """Attention with a mask that is applied to the weights; arguments as in `masking`.

    Example:
        >>> import torch, clearhead as ch
        >>> attention = RenormalisedAttention(3, head_dim=2, mask=ch.causal())
        >>> attention.stages(torch.randn(2, 3)).weights[0]
        tensor([1., 0.], grad_fn=<SelectBackward0>)
    """

    def stages(self, x: Tokens, context: Context | None = None) -> Stages:
        """Return every stage; the mask is applied to the weights alone, and hidden pairs keep their scores.

        Keys are of `context`, by default x. Raises MaskError if the mask does not fit.
        """
        query, key, value = self.project(x, context)
        steps = compute(query, key, value, scale=query.shape[-1] ** -0.5)
        visible = self.visible(query, key)
        if visible is None:
            return steps
        weights = renormalise(hide(steps.weights, visible))
        mixed = stages.context(weights, value, visible)
        return steps._replace(weights=weights, dropped_weights=weights, context=mixed)
