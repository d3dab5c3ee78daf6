"""Parts that change scores or weights: a relative position bias, the temperature of long texts, a second head."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.checks import check_bool, check_sizes, is_number
from clearhead._common.hints import with_hints
from clearhead._text import shown
from clearhead.attention.distance_biases import relative
from clearhead.errors import ArgumentError, ShapeError
from clearhead.layers.parts import Part, check_eps, check_head_dim


@with_hints
class RelativeBias(Part):
    """A trained bias for each bucket of distances and each head, as a part of a layer.

    Near distances have a bucket each; farther ones share buckets that grow with the logarithm of
    the distance; from max_distance on there is one. Attention gets a number for each distance up to
    max_distance; tokens × tokens is never materialised.

    Source: Raffel et al., 2020, section 2.1, https://arxiv.org/abs/1910.10683.

    Args:
        num_heads: number of query heads.
        num_buckets: number of buckets, even; half of them for later keys if it is bidirectional.
        max_distance: the distance, in tokens, at which the last bucket begins.
        bidirectional: whether later keys have buckets of their own. If not, they have the bucket of
            the query itself, and a causal mask hides them.

    Attributes:
        table: (num_buckets, num_heads), trained.

    Raises:
        ArgumentError, ArgumentTypeError: codes `argument.size`, `argument.type`,
            `bidirectional.type`, `relative.buckets`.

    Example:
        >>> import torch, clearhead as ch
        >>> part = ch.layers.RelativeBias(2, num_buckets=8, max_distance=16)
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, parts=[part])
        >>> layer(torch.randn(1, 5, 8)).shape
        torch.Size([1, 5, 8])
        >>> part.buckets()[16:].tolist()  # of the query's own token, and of later ones
        [0, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
    ) -> None:
        super().__init__()
        check_sizes(num_heads=num_heads, num_buckets=num_buckets, max_distance=max_distance)
        check_bool("bidirectional", bidirectional)
        one_side = num_buckets // 2 if bidirectional else num_buckets
        if num_buckets % 2 or one_side < 2 or max_distance <= one_side // 2:
            raise ArgumentError(
                "relative.buckets",
                "num_buckets must be even, 2 or more on a side, and max_distance more than those "
                f"that have a bucket each; got num_buckets={num_buckets}, "
                f"max_distance={max_distance}.",
            )
        self.num_heads = num_heads
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.table = nn.Parameter(torch.randn(num_buckets, num_heads) / math.sqrt(num_heads))

    def buckets(self) -> Tensor:
        """Return the bucket of each distance from −max_distance to max_distance, int64, (2 · max_distance + 1,).

        The first is that of a key max_distance tokens before its query.
        """
        ahead = torch.arange(-self.max_distance, self.max_distance + 1, device=self.table.device)
        if self.bidirectional:
            count = self.num_buckets // 2
            first, distance = (ahead > 0) * count, ahead.abs()
        else:
            count = self.num_buckets
            first, distance = torch.zeros_like(ahead), (-ahead).clamp(min=0)
        exact = count // 2
        # In float32, as the models were trained: at a bucket's edge other precisions round otherwise.
        steps = (distance.clamp(min=1).float() / exact).log() / math.log(self.max_distance / exact)
        far = (exact + (steps * (count - exact)).long()).clamp(max=count - 1)
        return first + torch.where(distance < exact, distance, far)

    def attend_options(self, query_positions: Tensor, key_positions: Tensor) -> Mapping[str, Any]:
        """Return {"bias": a relative bias by distance, made of the trained table}; the arguments are not used."""
        return {"bias": relative(self.table[self.buckets()].T)}

    def extra_repr(self) -> str:
        """Return the arguments, for `repr`."""
        return (
            f"{self.num_heads}, num_buckets={self.num_buckets}, max_distance={self.max_distance}, "
            f"bidirectional={self.bidirectional}"
        )


@with_hints
class Temperature(Part):
    """Queries that grow with their position, by 1 + gain · ln(1 + ⌊(position + 1) / every⌋).

    The weights of a long text stay as sharp as those of a short one.

    Source: Llama 4 (2025), on its layers without rotary positions, after Nakanishi, 2025,
    https://arxiv.org/abs/2501.19399.

    Args:
        gain: how much a query grows, above 0.
        every: tokens, 1 or more; queries before stay as they are.

    Raises:
        ArgumentError: codes `temperature.gain`, `argument.size`; ArgumentTypeError, code
            `argument.type`.

    Example:
        >>> import torch, clearhead as ch
        >>> part, ones, places = ch.layers.Temperature(0.1, every=4), torch.ones(3, 1), torch.tensor([0, 3, 11])
        >>> part.transform_query_key(ones, ones, places, places)[0].flatten()
        tensor([1.0000, 1.0693, 1.1386])
    """

    def __init__(self, gain: float, *, every: int) -> None:
        super().__init__()
        if not is_number(gain) or not 0 < gain < math.inf:
            raise ArgumentError(
                "temperature.gain", f"gain must be a positive number; got {shown(gain)}."
            )
        check_sizes(every=every)
        self.gain = float(gain)
        self.every = every

    def transform_query_key(
        self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the query times its factor by position, a new tensor, and the key unchanged."""
        if query_positions.ndim == 2:
            query_positions = query_positions[:, None]
        steps = torch.div(query_positions + 1, self.every, rounding_mode="floor")
        growth = steps.to(torch.promote_types(query.dtype, torch.float32)).log1p()
        return query * (1 + self.gain * growth)[..., None].to(query.dtype), key

    def extra_repr(self) -> str:
        """Return the arguments, for `repr`."""
        return f"{self.gain:g}, every={self.every}"


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
