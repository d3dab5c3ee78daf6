"""Attention with nothing to train.

New here: score, share, mix, one after the other and for all tokens at once. Every token is query,
key and value at the same time: self-attention (Cheng et al., 2016,
https://arxiv.org/abs/1601.06733), without the parts that learn.
"""

from torch import Tensor, nn

from clearhead.ladder.checking import check_tokens
from clearhead.stages import Stages, compute


class SimpleAttention(nn.Module):
    """Attention of a sequence to itself, by the plain dot products of its tokens.

    Every later rung has the methods of this one: `project` makes query, key and value, `stages`
    gives every step with its numbers, and calling the rung gives the last of them.

    Example:
        >>> from clearhead.ladder import EXAMPLE_EMBEDDINGS
        >>> SimpleAttention()(EXAMPLE_EMBEDDINGS)[1]
        tensor([0.4419, 0.6515, 0.5683])
    """

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value: here the tokens themselves."""
        return x, x, x

    def stages(self, x: Tensor) -> Stages:
        """Every stage between the tokens and their contexts.

        Args:
            x: (tokens, embed_dim).

        Raises:
            ShapeError, DtypeError, ArgumentTypeError: codes `rung.input`, `rung.dtype`, `x.type`.
        """
        check_tokens("x", x)
        query, key, value = self.project(x)  # (tokens, embed_dim) each
        return compute(query, key, value, scale=1.0)

    def forward(self, x: Tensor) -> Tensor:
        """The context of each token, (tokens, embed_dim)."""
        return self.stages(x).context
