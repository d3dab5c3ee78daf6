"""Differential attention: the weights of one head minus those of another, as a part of a layer."""

import math

import torch
from torch import Tensor, nn

from clearhead._common.checks import check_sizes
from clearhead._common.hints import with_hints
from clearhead._text import shown
from clearhead.errors import ArgumentError, ShapeError
from clearhead.layers.parts import Part, check_eps, check_head_dim


@with_hints
class Differential(Part):
    """Differential attention: the weights of one head minus λ times those of another.

    Head h and head h + num_heads / 2 are a pair that shares values: those of their key heads,
    two side by side. A pair's context is the first one's minus λ times the second one's, normed and
    multiplied by 1 − λ₀, where λ = exp(a · b) − exp(c · d) + λ₀ is trained and λ₀ = 0.8 − 0.6 ·
    exp(−0.3 · depth).

    Source: Ye et al., 2024, https://arxiv.org/abs/2410.05258.

    Args:
        head_dim: width of a query, a key and a value.
        depth: number of layers before this one.
        eps: added to the mean square of the norm.

    Raises:
        ArgumentError, ArgumentTypeError: codes `argument.size`, `argument.type`,
            `differential.depth`, `norm.eps`.
        ShapeError: code `differential.heads`, for an odd number of heads.

    Example:
        >>> import torch, clearhead as ch
        >>> parts = [ch.layers.Differential(4, depth=2)]
        >>> layer = ch.MultiHeadAttention(16, num_heads=4, num_kv_heads=2, parts=parts)
        >>> layer(torch.randn(1, 5, 16)).shape
        torch.Size([1, 5, 16])
    """

    def __init__(self, head_dim: int, *, depth: int = 0, eps: float = 1e-5) -> None:
        super().__init__()
        check_sizes(head_dim=head_dim)
        if not isinstance(depth, int) or isinstance(depth, bool) or depth < 0:
            raise ArgumentError(
                "differential.depth",
                f"depth must be a whole number, 0 or more; got {shown(depth)}.",
            )
        check_eps(eps)
        self.initial = 0.8 - 0.6 * math.exp(-0.3 * depth)
        self.pairs = nn.Parameter(0.1 * torch.randn(4, head_dim))
        self.norm = nn.RMSNorm(2 * head_dim, eps=eps, elementwise_affine=False)

    def factor(self) -> Tensor:
        """Return λ, a tensor () in the dtype of the parameters: exp(q₁·k₁) − exp(q₂·k₂) + its initial value."""
        first, second = self.pairs.double().view(2, 2, -1).prod(dim=1).sum(dim=-1).exp()
        return (first - second + self.initial).to(self.pairs.dtype)

    def transform_value(self, value: Tensor) -> Tensor:
        """Return the values of both key heads of a pair side by side, repeated: (batch, heads, kv_len, 2 · head_dim).

        Raises ShapeError for an odd number of heads (`differential.heads`) or another width (`part.width`).
        """
        check_head_dim(self, value, self.pairs.shape[1])
        if value.shape[1] % 2:
            raise ShapeError(
                "differential.heads",
                f"differential attention needs an even num_kv_heads; got {value.shape[1]}.",
            )
        return torch.cat(value.chunk(2, dim=1), dim=-1).repeat(1, 2, 1, 1)

    def transform_context(self, context: Tensor, x: Tensor) -> Tensor:
        """Return the normed difference of the contexts of each pair, (batch, heads / 2, query_len, 2 · head_dim)."""
        first, second = context.chunk(2, dim=1)
        return (1 - self.initial) * self.norm(first - self.factor() * second)
