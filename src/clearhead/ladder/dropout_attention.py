"""Dropout on the weights.

New here: while training, each weight is set to 0 with a probability, and the others are multiplied
by 1 / (1 − probability), so that a row still adds up to 1 on average (Srivastava et al., 2014,
https://jmlr.org/papers/v15/srivastava14a.html). A model that cannot rely on one link learns others.
"""

from torch import Tensor

from clearhead._common.checks import check_dropout
from clearhead.ladder.masked_attention import MaskedAttention
from clearhead.ladder.masking import visible_pairs
from clearhead.masks import Mask
from clearhead.stages import Stages, compute


class DropoutAttention(MaskedAttention):
    """Attention that drops weights while training, and none after `eval()`.

    Args:
        embed_dim: width of a token of x.
        head_dim: width of a query and of a key.
        value_head_dim: width of a value; None is head_dim.
        context_dim: width of a token of the context; None is embed_dim.
        bias: whether the layers add one.
        mask: who may see whom.
        dropout: probability of dropping a weight, in [0, 1); None is none.

    Raises:
        ArgumentError, ArgumentTypeError: codes `argument.size`, `bias.type`, `dropout.value`,
            `dropout.type`.

    Example:
        >>> import torch
        >>> attention = DropoutAttention(3, head_dim=2, dropout=0.5)
        >>> x = torch.zeros(4, 3)  # all scores are equal, and so are the weights
        >>> attention.stages(x).dropped_weights.unique()
        tensor([0.0000, 0.5000], grad_fn=<Unique2Backward0>)
        >>> attention.eval().stages(x).dropped_weights.unique()
        tensor([0.2500], grad_fn=<Unique2Backward0>)
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
        dropout: float | None = None,
    ) -> None:
        super().__init__(
            embed_dim,
            head_dim=head_dim,
            value_head_dim=value_head_dim,
            context_dim=context_dim,
            bias=bias,
            mask=mask,
        )
        check_dropout(dropout)
        self.dropout = dropout

    def stages(self, x: Tensor, context: Tensor | None = None) -> Stages:
        """Every stage between the tokens and their contexts."""
        self.check(x, context)
        query, key, value = self.project(x, context)
        return compute(
            query,
            key,
            value,
            scale=query.shape[-1] ** -0.5,
            visible=visible_pairs(self.mask, query, key),
            dropout=self.dropout if self.training else None,
        )

    def extra_repr(self) -> str:
        dropout = "" if self.dropout is None else f"dropout={self.dropout}"
        return ", ".join(part for part in (super().extra_repr(), dropout) if part)
