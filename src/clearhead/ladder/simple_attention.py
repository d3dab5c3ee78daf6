"""Attention with nothing to train.

New here: score, share and sum, one after the other and for all tokens at once. Every token is query,
key and value at the same time: self-attention (Cheng et al., 2016,
https://arxiv.org/abs/1601.06733), without the parts that learn.
"""

from torch import Tensor

from clearhead.ladder.rung import Rung, Tokens
from clearhead.stages import Stages, compute


class SimpleAttention(Rung):
    """Attention of a sequence to itself, by the plain dot products of its tokens.

    Example:
        >>> from clearhead.ladder import EXAMPLE_EMBEDDINGS
        >>> SimpleAttention()(EXAMPLE_EMBEDDINGS)[1]
        tensor([0.4419, 0.6515, 0.5683])
    """

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tokens, (tokens, embed_dim), three times, as query, key and value."""
        return x, x, x

    def stages(self, x: Tokens) -> Stages:
        """Return every stage between x, (tokens, embed_dim), and its contexts, of the same shape.

        Scores are not scaled.
        """
        query, key, value = self.project(x)
        return compute(query, key, value, scale=1.0)
