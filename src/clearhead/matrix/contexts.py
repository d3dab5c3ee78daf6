"""The contexts of the heads of a call: the inputs of the output projection."""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead._common.elements import Drawn


@dataclass(frozen=True, eq=False, repr=False)
class Contexts(Drawn):
    """The contexts of a call, z = weights · values of each head, as the model used them.

    Made by `watch(model, keep="contexts")`.

    Attributes:
        context: (batch, num_heads, query_len, value_head_dim), in the model's dtype.
        kv_len: the number of keys.
        real: (batch, query_len), bool: the queries that are not padding; None for all.
        heads: the number of each head in its layer, where these are some only; None where all are here.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2)
        >>> with torch.no_grad(), ch.watch(layer, keep="contexts") as seen:
        ...     output = layer(torch.randn(1, 5, 8))
        >>> seen[0]
        Contexts [batch=1, num_heads=2, query_len=5, value_head_dim=4]
        >>> seen[0].mean.shape
        torch.Size([2, 4])
    """

    context: Tensor
    kv_len: int
    real: Tensor | None = None
    heads: tuple[int, ...] | None = None

    @property
    def shape(self) -> torch.Size:
        """The shape of the contexts, (batch, num_heads, query_len, value_head_dim)."""
        return self.context.shape

    @property
    def batch(self) -> int:
        """The number of samples."""
        return self.shape[0]

    @property
    def num_heads(self) -> int:
        """The number of heads that were recorded."""
        return self.shape[1]

    @property
    def query_len(self) -> int:
        """The number of queries."""
        return self.shape[2]

    @property
    def mean(self) -> Tensor:
        """The mean context over all real queries, (num_heads, value_head_dim); NaN without real queries.

        `ablate(mean=)` accepts it. For the mean over a data set use `watch(…, keep="total", contexts=True)`.
        """
        if self.real is None:
            return self.context.mean(dim=(0, 2))
        real = self.real.expand(self.batch, -1)[:, None, :, None]
        return torch.where(real, self.context, 0.0).sum(dim=(0, 2)) / real.sum()

    def __repr__(self) -> str:
        """Return one line with the sizes, and the heads if these are some only."""
        names = ("batch", "num_heads", "query_len", "value_head_dim")
        sizes = ", ".join(f"{name}={size}" for name, size in zip(names, self.shape, strict=True))
        some = "" if self.heads is None else f" with heads {list(self.heads)}"
        return f"Contexts [{sizes}]{some}"
