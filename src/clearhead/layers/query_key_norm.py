"""Norms of query and key, before they are compared."""

from torch import Tensor, nn

from clearhead._common.checks import check_sizes
from clearhead._common.hints import with_hints
from clearhead.layers.parts import Part, check_eps, check_head_dim


@with_hints
class QueryKeyNorm(Part):
    """RMS norm of query and key, with a trained scale each.

    Each head has a norm of its own; or all heads of a token together, with `num_heads`.

    Source: Henry et al., 2020, https://arxiv.org/abs/2010.04245; in this form that of Qwen3 and
    Gemma 3, and over all heads that of OLMo 2 (2025, https://arxiv.org/abs/2501.00656). It comes before
    rotary positions.

    Args:
        head_dim: width of a query and a key.
        eps: added to the mean square.
        num_heads: number of query heads that are normed together; None for each alone.
        num_kv_heads: the number of key heads; None is num_heads.

    Raises:
        ArgumentError, ArgumentTypeError: codes `argument.size`, `argument.type`, `norm.eps`.
        ShapeError: code `part.width`, for heads of another width.

    Example:
        >>> import torch
        >>> norm = QueryKeyNorm(4)
        >>> places = torch.arange(3)
        >>> query, key = norm.transform_query_key(torch.full((1, 2, 3, 4), 7.0), torch.ones(1, 1, 3, 4), places, places)
        >>> query[0, 0, 0].tolist()
        [1.0, 1.0, 1.0, 1.0]
    """

    def __init__(
        self,
        head_dim: int,
        *,
        eps: float = 1e-6,
        num_heads: int | None = None,
        num_kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        heads = 1 if num_heads is None else num_heads
        kv_heads = heads if num_kv_heads is None else num_kv_heads
        check_sizes(head_dim=head_dim, num_heads=heads, num_kv_heads=kv_heads)
        check_eps(eps)
        self.head_dim = head_dim
        self.is_wide = num_heads is not None
        self.query_norm = nn.RMSNorm(heads * head_dim, eps=eps)
        self.key_norm = nn.RMSNorm(kv_heads * head_dim, eps=eps)

    def transform_query_key(
        self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return normed query and key, new tensors; positions are not used.

        Raises ShapeError, code `part.width`, for a query of another head_dim; nothing else is checked.
        """
        check_head_dim(self, query, self.head_dim)
        if not self.is_wide:
            return self.query_norm(query), self.key_norm(key)
        return _over_heads(self.query_norm, query), _over_heads(self.key_norm, key)


def _over_heads(norm: nn.RMSNorm, heads: Tensor) -> Tensor:
    """Return (batch, heads, tokens, width) normalised over the heads and widths of each token together."""
    joined = heads.transpose(1, 2)
    return norm(joined.flatten(2)).view(joined.shape).transpose(1, 2)
