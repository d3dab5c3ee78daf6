"""Dropout on the weights.

New here: while training, each weight is set to 0 with a probability, and the others are multiplied
by 1 / (1 − probability), so that a row still adds up to 1 on average (Srivastava et al., 2014,
https://jmlr.org/papers/v15/srivastava14a.html). A model that cannot rely on one link learns others.
"""

from typing import Unpack

from clearhead._common.checks import check_dropout
from clearhead.ladder.masking import MaskedProjections, MaskOptions
from clearhead.ladder.rung import Context, Tokens
from clearhead.stages import Stages, compute


class DropoutProjections(MaskedProjections):
    """A rung with dropout next to its mask: all those that follow.

    Args:
        embed_dim: width of a token of x.
        dropout: probability of dropping a weight while training, in [0, 1); None is none.
        options: `mask`, and what `linear_layers` takes.

    Raises:
        ArgumentError, ArgumentTypeError: codes `dropout.value`, `dropout.type`.
    """

    def __init__(
        self, embed_dim: int, *, dropout: float | None = None, **options: Unpack[MaskOptions]
    ) -> None:
        check_dropout(dropout)
        super().__init__(embed_dim, **options)
        self.dropout = dropout

    @property
    def rate(self) -> float | None:
        """The dropout probability of a call, None without dropout; None in eval mode."""
        return self.dropout if self.training else None


class DropoutAttention(DropoutProjections):
    """Attention that drops weights while training, but not after `eval()`; arguments as in `DropoutProjections`.

    Example:
        >>> import torch
        >>> attention = DropoutAttention(3, head_dim=2, dropout=0.5)
        >>> x = torch.zeros(4, 3)  # all scores are equal, and so are the weights
        >>> attention.stages(x).dropped_weights.unique()
        tensor([0.0000, 0.5000], grad_fn=<Unique2Backward0>)
        >>> attention.eval().stages(x).dropped_weights.unique()
        tensor([0.2500], grad_fn=<Unique2Backward0>)
    """

    def stages(self, x: Tokens, context: Context | None = None) -> Stages:
        """Return every stage between x, (tokens, embed_dim), and its contexts; keys are of `context`, by default x.

        Weights are dropped in training mode only. Raises MaskError if the mask does not fit.
        """
        query, key, value = self.project(x, context)
        visible, scale = self.visible(query, key), query.shape[-1] ** -0.5
        return compute(query, key, value, scale=scale, visible=visible, dropout=self.rate)
