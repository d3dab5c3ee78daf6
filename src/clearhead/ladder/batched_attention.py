"""Several sequences at once.

New here: a leading axis, the batch, in which nothing meets anything. The matrix products carry it
along as long as the *last two* axes are turned, `key.mT`; `key.T` turns all of them, and mixes the
sequences up where that happens to fit. Sequences of a batch are filled up to one length, so a mask
may differ from row to row and come with the call.
"""

from torch import Tensor

from clearhead.ladder.dropout_attention import DropoutAttention
from clearhead.ladder.masking import visible_pairs
from clearhead.masks import Mask
from clearhead.masks.coerce import and_masks, as_mask
from clearhead.stages import Stages, compute


class BatchedAttention(DropoutAttention):
    """Attention for a batch of sequences, or for one; made like the rung before.

    Example:
        >>> import torch, clearhead as ch
        >>> attention = BatchedAttention(3, head_dim=2, mask=ch.causal())
        >>> attention(torch.randn(5, 6, 3), mask=ch.padding([6, 4, 1, 5, 2])).shape
        torch.Size([5, 6, 2])
    """

    def stages(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
    ) -> Stages:
        """Every stage between the tokens and their contexts.

        Args:
            x: (batch, tokens, embed_dim), or (tokens, embed_dim).
            context: (batch, context_tokens, context_dim), with as many axes as x; None is x.
            mask: for this call, beside the rung's own: a key must be visible in both.

        Raises:
            ShapeError, DtypeError, DeviceError, ArgumentTypeError: codes `rung.input`,
                `rung.context-batch`, `rung.context-missing`, `rung.dtype`, `rung.device`,
                `x.type`, `context.type`.
            MaskError: for a mask of other sizes.
        """
        self.check(x, context, batches=True)
        query, key, value = self.project(x, context)  # (batch, tokens, head_dim)
        return compute(
            query,
            key,
            value,
            scale=query.shape[-1] ** -0.5,
            visible=visible_pairs(and_masks(self.mask, as_mask(mask)), query, key),
            dropout=self.dropout if self.training else None,
        )

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
    ) -> Tensor:
        """The context vector of each token of x: (batch, tokens, value_head_dim)."""
        return self.stages(x, context, mask=mask).context
