"""Several sequences at once.

New here: a leading axis, the batch, along which nothing is mixed. The matrix products carry it along
as long as the *last two* axes are transposed, `key.mT`; `key.T` reverses all of them, and mixes the
sequences where that happens to fit. Sequences of a batch are padded to one length, so that a mask
may differ from row to row and come with the call.
"""

from torch import Tensor

from clearhead._shapes import Float
from clearhead.ladder.dropout_attention import DropoutProjections
from clearhead.masks import Mask
from clearhead.masks.dense import as_mask
from clearhead.stages import Stages, compute

Batch = Float[Tensor, "*batch tokens embed_dim"]
ContextBatch = Float[Tensor, "*batch context_tokens context_dim"]


class BatchedAttention(DropoutProjections):
    """Attention for a batch of sequences, or for one; arguments as in `dropout_attention`.

    Example:
        >>> import torch, clearhead as ch
        >>> attention = BatchedAttention(3, head_dim=2, mask=ch.causal())
        >>> attention(torch.randn(5, 6, 3), mask=ch.padding([6, 4, 1, 5, 2])).shape
        torch.Size([5, 6, 2])
    """

    def stages(
        self, x: Batch, context: ContextBatch | None = None, *, mask: Mask | Tensor | None = None
    ) -> Stages:
        """Return every stage between the tokens and their contexts, each with the batch axis of x.

        Raises MaskError for a mask that does not fit, or the error of `dense` for a tensor that is not a mask.

        Args:
            x: (batch, tokens, embed_dim), or (tokens, embed_dim).
            context: (batch, context_tokens, context_dim), with as many axes as x; None is x.
            mask: for this call, next to the rung's own: a key must be visible in both.
        """
        query, key, value = self.project(x, context)
        visible, scale = self.visible(query, key, as_mask(mask)), query.shape[-1] ** -0.5
        return compute(query, key, value, scale=scale, visible=visible, dropout=self.rate)
