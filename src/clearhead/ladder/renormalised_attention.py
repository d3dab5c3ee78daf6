"""Hiding tokens, first attempt: strike out weights.

New here: a mask, which says who may see whom. A language model must not look at the words it is to
predict, so that token i may see itself and what came before it (Vaswani et al., 2017, section
3.2.3, https://arxiv.org/abs/1706.03762). The weights of hidden tokens are set to 0, and those that
remain are divided by their sum again. It costs a pass more than the next rung, and a NaN in a
hidden token spreads, since the softmax saw it; otherwise the two are equal.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from clearhead import stages
from clearhead.ladder.cross_attention import CrossAttention
from clearhead.ladder.masking import visible_pairs
from clearhead.ladder.normalising import weights_by_sum
from clearhead.masks import Mask
from clearhead.masks.coerce import as_mask
from clearhead.stages import Stages, compute


def hide(
    weights: Float[Tensor, "*batch query_len kv_len"], visible: Bool[Tensor, "..."]
) -> Float[Tensor, "*batch query_len kv_len"]:
    """The weights with 0 where a query may not attend; the rows add up to less than 1.

    Args:
        weights: (..., query_len, kv_len).
        visible: bool, True = may attend, of a shape that broadcasts to that of the weights.

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
    """The weights of each query divided by their sum; all 0 where they all are.

    Args:
        weights: (..., query_len, kv_len), 0 or more each.

    Example:
        >>> import torch
        >>> renormalise(torch.tensor([[0.2, 0.0], [0.2, 0.6], [0.0, 0.0]]))
        tensor([[1.0000, 0.0000],
                [0.2500, 0.7500],
                [0.0000, 0.0000]])
    """
    empty = (weights == 0).all(dim=-1, keepdim=True)
    return weights_by_sum(weights.masked_fill(empty, 1.0)).masked_fill(empty, 0.0)


class RenormalisedAttention(CrossAttention):
    """Attention with a mask that is applied to the weights.

    Args:
        embed_dim: width of a token of x.
        head_dim: width of a query and of a key.
        value_head_dim: width of a value; None is head_dim.
        context_dim: width of a token of the context; None is embed_dim.
        bias: whether the layers add one.
        mask: who may see whom, such as `clearhead.causal()`, or a bool tensor, True = may attend.
            It is not saved with the weights, and a description fits any number of tokens.

    Raises:
        ArgumentError, ArgumentTypeError: codes `argument.size`, `bias.type`.
        MaskError: for a tensor that is no mask.

    Example:
        >>> import torch, clearhead as ch
        >>> attention = RenormalisedAttention(3, head_dim=2, mask=ch.causal())
        >>> attention.stages(torch.randn(2, 3)).weights[0]
        tensor([1., 0.], grad_fn=<SelectBackward0>)
    """

    def __init__(
        self,
        embed_dim: int,
        *,
        head_dim: int,
        value_head_dim: int | None = None,
        context_dim: int | None = None,
        bias: bool = False,
        mask: Mask | Tensor | None = None,
    ) -> None:
        super().__init__(
            embed_dim,
            head_dim=head_dim,
            value_head_dim=value_head_dim,
            context_dim=context_dim,
            bias=bias,
        )
        self.mask = as_mask(mask)

    def stages(self, x: Tensor, context: Tensor | None = None) -> Stages:
        """Every stage; here the scores still see everything, and only the weights do not."""
        self.check(x, context)
        query, key, value = self.project(x, context)
        steps = compute(query, key, value, scale=query.shape[-1] ** -0.5)
        visible = visible_pairs(self.mask, query, key)
        if visible is None:
            return steps
        weights = renormalise(hide(steps.weights, visible))
        mixed = stages.context(weights, value, visible)
        return steps._replace(weights=weights, dropped_weights=weights, context=mixed)

    def extra_repr(self) -> str:
        return "" if self.mask is None else f"mask={self.mask.describe()}"
