"""Masks: which keys each query may attend to.

New here: True = may attend. A language model must not look at the words that it is to predict, so
that token i may attend to itself and to what came before it, `clearhead.causal()` (Vaswani et al.,
2017, section 3.2.3, https://arxiv.org/abs/1706.03762). A mask is a description that fits any number
of tokens; the scores need it as a tensor.
"""

import math
from typing import Unpack

from torch import Tensor

from clearhead.ladder.linear_layers import LayerOptions, Projections
from clearhead.masks import Mask
from clearhead.masks.dense import and_masks, as_mask
from clearhead.masks.spans import Extent


class MaskOptions(LayerOptions, total=False):
    """The arguments that `MaskedProjections` takes by name."""

    mask: Mask | Tensor | None


class MaskedProjections(Projections):
    """A rung with a mask next to its projections: all those that follow.

    Args:
        embed_dim: width of a token of x.
        mask: a description, such as `clearhead.causal()`, or a bool tensor, True = may attend; it
            is not saved with the weights.
        options: `head_dim`, `value_head_dim`, `context_dim`, `bias` and `init`, as in `linear_layers`.

    Raises:
        MaskError: for a tensor that is not a mask, or does not fit the tokens of a call.
    """

    def __init__(
        self, embed_dim: int, *, mask: Mask | Tensor | None = None, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(embed_dim, **options)
        self.mask = as_mask(mask)

    def visible(
        self, query: Tensor, key: Tensor, mask: Mask | None = None, num_heads: int | None = None
    ) -> Tensor | None:
        """Return which pairs the mask of the rung and that of the call allow, bool; None without either.

        It broadcasts to the scores: (query_len, kv_len), with leading axes of batch and heads if the mask differs
        between them. Raises MaskError if a mask does not fit the sizes.

        Args:
            query: (..., query_len, head_dim), with an axis of heads before query_len if `num_heads` is given.
            key: the same form, with kv_len.
            mask: that of the call, or None.
            num_heads: the number of heads; None if the tensors have no axis of heads.
        """
        mask = and_masks(self.mask, mask)
        if mask is None:
            return None
        query_len, kv_len = query.shape[-2], key.shape[-2]
        batch = query.shape[: -2 if num_heads is None else -3]
        mask.check(Extent(math.prod(batch), num_heads or 1, query_len, kv_len, query.device))
        visible = mask.to_dense(query_len, kv_len, device=query.device)
        if visible.ndim == 2:
            return visible
        visible = visible[:, 0] if num_heads is None else visible
        return visible[0] if len(visible) == 1 else visible.unflatten(0, batch)
