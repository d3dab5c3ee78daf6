"""What is kept of a matrix of attention weights when the matrix itself is not: a few numbers for
each query and each key."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from clearhead.roles import Roles


class TopK(NamedTuple):
    """The largest weights of each query, from the largest on.

    Attributes:
        weights: (batch, num_heads, query_len, k).
        keys: which keys have them, int64, likewise; −1 where the weight is 0.

    Example:
        >>> import torch, clearhead as ch
        >>> ch.AttentionMatrix(torch.eye(2), torch.eye(2)).top_k(1).keys
        tensor([[0],
                [1]])
    """

    weights: Tensor
    keys: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class Summary:
    """The matrix of attention weights in O(tokens) numbers.

    Tensors have the leading dimensions that the query had; without batch, heads or both, those
    axes are missing. Weights are those before dropout; what sinks take is not counted.

    Attributes:
        logsumexp: log Σ exp of the masked scores, (batch, num_heads, query_len), nats.
        entropy: −Σ weight · ln weight, (batch, num_heads, query_len), nats.
        max: the largest weight, (batch, num_heads, query_len).
        distance: Σ weight · |query position − key position|, (batch, num_heads, query_len), tokens.
        first: the weight on the first key, (batch, num_heads, query_len).
        previous: the weight on the token before, (batch, num_heads, query_len); 0 where none is.
        received: the weight that each key gets from all queries, summed over the query heads that
            share it, (batch, num_kv_heads, kv_len).
        context: weights times values, (batch, num_heads, query_len, value_head_dim), if asked for.
        top_k: the largest weights and their keys, if asked for.
        mass: the weight on sets of keys, (batch, num_heads, query_len[, segments]), if asked for.
        pooled: the matrix summed over rectangles, (batch, num_heads, rows, columns), if asked for.
        roles: what kind of heads they are, if asked for.

    Example:
        >>> import torch, clearhead as ch
        >>> query = key = torch.zeros(3, 2)
        >>> summary = ch.AttentionMatrix(query, key, mask=ch.causal()).summary()
        >>> summary
        Summary [query_len=3, kv_len=3]
        >>> summary.first
        tensor([1.0000, 0.5000, 0.3333])
    """

    logsumexp: Tensor
    entropy: Tensor
    max: Tensor
    distance: Tensor
    first: Tensor
    previous: Tensor
    received: Tensor
    context: Tensor | None = None
    top_k: TopK | None = None
    mass: Tensor | None = None
    pooled: Tensor | None = None
    roles: "Roles | None" = None

    @property
    def query_len(self) -> int:
        """How many queries there were."""
        return self.entropy.shape[-1]

    @property
    def kv_len(self) -> int:
        """How many keys there were."""
        return self.received.shape[-1]

    def __repr__(self) -> str:
        names = ("batch", "num_heads", "query_len")[3 - self.entropy.ndim :]
        sizes = [f"{name}={size}" for name, size in zip(names, self.entropy.shape, strict=True)] + [
            f"kv_len={self.kv_len}"
        ]
        extra = [
            name
            for name in ("context", "top_k", "mass", "pooled", "roles")
            if getattr(self, name) is not None
        ]
        more = f" with {', '.join(extra)}" if extra else ""
        return f"Summary [{', '.join(sizes)}]{more}"
