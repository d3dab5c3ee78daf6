"""Several heads, side by side.

New here: several attentions over the same tokens, each with projections of its own, so that one may
look at the word before and another at the subject (Vaswani et al., 2017, section 3.2.2,
https://arxiv.org/abs/1706.03762). Their contexts are laid next to each other. The heads run one
after the other; the next rung runs them at once.
"""

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.errors import ArgumentError, ArgumentTypeError, ShapeError
from clearhead.ladder.simple_attention import SimpleAttention
from clearhead.stages import Stages


def merge_heads(
    context: Float[Tensor, "*batch num_heads query_len value_head_dim"],
) -> Float[Tensor, "*batch query_len width"]:
    """The contexts of all heads next to each other: width = num_heads · value_head_dim.

    Args:
        context: (..., num_heads, query_len, value_head_dim).

    Example:
        >>> merge_heads(torch.tensor([[[1, 2]], [[3, 4]]]).float())  # two heads, one token
        tensor([[1., 2., 3., 4.]])
    """
    return context.transpose(-3, -2).flatten(-2)


class ConcatenatedHeads(nn.Module):
    """Several rungs over the same tokens, and what they say next to each other.

    Args:
        heads: one or more rungs, of any kind with weights, that take the same input and give
            contexts of one shape.

    Raises:
        ArgumentError, ArgumentTypeError: code `rung.heads`, without a head, and for one that is no
            rung or has no weights.

    Example:
        >>> from clearhead.ladder import SelfAttention
        >>> heads = [SelfAttention(3, head_dim=2, value_head_dim=1) for _ in range(4)]
        >>> ConcatenatedHeads(heads)(torch.randn(6, 3)).shape
        torch.Size([6, 4])
    """

    def __init__(self, heads: Iterable[SimpleAttention]) -> None:
        super().__init__()
        heads = list(heads)
        if not heads:
            raise ArgumentError("rung.heads", "heads must be one rung or more; got none.")
        for head in heads:
            if not isinstance(head, SimpleAttention) or not list(head.parameters()):
                raise ArgumentTypeError(
                    "rung.heads",
                    "heads must be rungs of the ladder with weights of their own; got "
                    f"{type(head).__name__}.",
                )
        self.heads = nn.ModuleList(heads)

    def stages(self, x: Tensor, *others: Any, **options: Any) -> Stages:
        """The stages of all heads, stacked: (..., num_heads, query_len, …).

        Arguments and errors are those of the heads, and:

        Raises:
            ShapeError: code `rung.heads`, if the contexts of the heads are of different shapes, or
                a head has heads of its own.
        """
        each = [
            cast(Callable[..., Stages], head.stages)(x, *others, **options) for head in self.heads
        ]
        shapes = [tuple(steps.context.shape) for steps in each]
        if len(set(shapes)) > 1 or len(shapes[0]) != x.ndim:
            raise ShapeError(
                "rung.heads",
                "heads must be rungs of one head, with contexts of one shape; got "
                f"{', '.join(map(str, shapes))} for x of shape {tuple(x.shape)}.",
            )
        return Stages(*(torch.stack(same, dim=-3) for same in zip(*each, strict=True)))

    def forward(self, x: Tensor, *others: Any, **options: Any) -> Tensor:
        """The contexts of all heads: (..., query_len, num_heads · value_head_dim)."""
        return merge_heads(self.stages(x, *others, **options).context)
