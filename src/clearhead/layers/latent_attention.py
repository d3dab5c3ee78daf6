"""Multi-head latent attention (DeepSeek-AI, 2024, https://arxiv.org/abs/2405.04434)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clearhead._common.checks import check_bool, check_dropout, check_sizes
from clearhead._common.hints import with_hints
from clearhead.layers.attention_layer import AttentionLayer, Heads
from clearhead.layers.caches.bundle import CacheBundle
from clearhead.layers.caches.cache import Cache
from clearhead.layers.inputs import LayerCall, Projected, is_plain_linear, split_heads
from clearhead.layers.parts import Part, check_parts
from clearhead.masks.base import Mask
from clearhead.masks.dense import as_mask
from clearhead.sharding.sharding import Sharding


@with_hints
class LatentAttention(AttentionLayer):
    """Multi-head latent attention: keys and values are projections of one short latent per token.

    Only the latent, and a key of `rotary_dim` that all heads share, are cached. A token's latent,
    normed, is projected up to a key and a value for each head; the shared key alone is rotated by
    its position. While decoding, nothing is projected up: the projections are absorbed into the
    query and the context, so that all heads attend to the latents themselves.

    Args:
        embed_dim: width of the input.
        num_heads: number of heads.
        head_dim: width of the part of a query and a key that is not rotated.
        rotary_dim: width of the part that is.
        latent_dim: width of the latent of keys and values.
        query_latent_dim: width of a latent for queries; None projects them directly.
        value_head_dim: width of a value; None is head_dim.
        output_dim: width of the output; None is embed_dim.
        bias: whether the projections from and to the model's width have a bias.
        eps: added to the mean square of the norms.
        mask: which keys a query may see, at every call.
        dropout: probability of dropping a weight while training, in [0, 1); None is none.
        parts: variants, as in `MultiHeadAttention`; `Rotary(rotary_dim)` for one. Their
            `transform_query_key` gets the rotated parts alone, and `transform_value` is not called.

    Raises:
        ArgumentError: codes `argument.size`, `dropout.value`; ArgumentTypeError for an argument of
            another type.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.layers.LatentAttention(
        ...     32, num_heads=4, head_dim=8, rotary_dim=4, latent_dim=12,
        ...     mask=ch.causal(), parts=[ch.layers.Rotary(4, layout="interleaved")])
        >>> layer(torch.randn(3, 5, 32)).shape
        torch.Size([3, 5, 32])
        >>> cache = ch.layers.GrowingCache()
        >>> with torch.no_grad():
        ...     _ = layer(torch.randn(1, 5, 32), cache=cache)
        >>> cache.nbytes // 2 // 4 // 5  # numbers a token, with room for twice as many
        16
    """

    INPUT_PROJECTION = "latent_projection"
    TAKES_CONTEXT = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        head_dim: int,
        rotary_dim: int,
        latent_dim: int,
        query_latent_dim: int | None = None,
        value_head_dim: int | None = None,
        output_dim: int | None = None,
        bias: bool = False,
        eps: float = 1e-6,
        mask: Mask | Tensor | None = None,
        dropout: float | None = None,
        parts: Sequence[Part] = (),
    ) -> None:
        super().__init__()
        value_head_dim = head_dim if value_head_dim is None else value_head_dim
        output_dim = embed_dim if output_dim is None else output_dim
        check_sizes(
            embed_dim=embed_dim,
            num_heads=num_heads,
            head_dim=head_dim,
            rotary_dim=rotary_dim,
            latent_dim=latent_dim,
            query_latent_dim=1 if query_latent_dim is None else query_latent_dim,
            value_head_dim=value_head_dim,
            output_dim=output_dim,
        )
        check_dropout(dropout)
        check_bool("bias", bias)
        self.embed_dim = self.context_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.rotary_dim = rotary_dim
        self.latent_dim = latent_dim
        self.query_latent_dim = query_latent_dim
        self.value_head_dim = value_head_dim
        self.output_dim = output_dim
        self.eps = eps
        self.dropout = dropout
        self.mask = as_mask(mask)
        query_width = num_heads * (head_dim + rotary_dim)
        if query_latent_dim is None:
            self.query_projection = nn.Linear(embed_dim, query_width, bias=False)
        else:
            self.query_latent_projection = nn.Linear(embed_dim, query_latent_dim, bias=bias)
            self.query_norm = nn.RMSNorm(query_latent_dim, eps=eps)
            self.query_projection = nn.Linear(query_latent_dim, query_width, bias=False)
        self.latent_projection = nn.Linear(embed_dim, latent_dim + rotary_dim, bias=bias)
        self.latent_norm = nn.RMSNorm(latent_dim, eps=eps)
        self.key_projection = nn.Linear(latent_dim, num_heads * head_dim, bias=False)
        self.value_projection = nn.Linear(latent_dim, num_heads * value_head_dim, bias=False)
        self.output_projection = nn.Linear(num_heads * value_head_dim, output_dim, bias=bias)
        self.parts = check_parts(parts)

    @with_hints
    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        valid: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Cache | CacheBundle | None = None,
        kernel: str = "auto",
        across: Sharding | tuple[Sharding, Sharding] | None = None,
    ) -> Tensor:
        """Attend from x to itself and to the tokens in a cache.

        Arguments and errors are those of `MultiHeadAttention.forward`.

        Returns:
            (batch, tokens, output_dim), or (tokens, output_dim).
        """
        call = self._check_call(
            x,
            mask=mask,
            valid=valid,
            positions=positions,
            cache=cache,
            across=across,
        )
        return self._attend(call, kernel)

    def extra_repr(self) -> str:
        """Return embed_dim, the sizes of heads and latent, and mask and dropout if they are set, for `repr`."""
        return (
            f"{self.embed_dim}, num_heads={self.num_heads}, head_dim={self.head_dim}, "
            f"rotary_dim={self.rotary_dim}, latent_dim={self.latent_dim}{self._describe_options()}"
        )

    def _project(self, call: LayerCall) -> Projected:
        """Return the part of the query to rotate, the shared key (unrotated), the latent, and the rest of the query.

        As (batch, heads, tokens, dim): heads are num_heads, 1, 1, num_heads, and dims rotary_dim, rotary_dim,
        latent_dim, head_dim. ShapeError, `layer.projected`, if a replaced query projection has another width.
        """
        x = call.x
        if self.query_latent_dim is not None:
            x = self.query_norm(self.query_latent_projection(x))
        width = self.head_dim + self.rotary_dim
        query = split_heads(self.query_projection(x), self.num_heads, width, "query_projection")
        unrotated, rotated = query.split([self.head_dim, self.rotary_dim], dim=-1)
        latent, shared = self.latent_projection(call.x)[:, None].split(
            [self.latent_dim, self.rotary_dim], dim=-1
        )
        return rotated, shared, self.latent_norm(latent), unrotated

    def _expand(
        self, query: Tensor, key: Tensor, value: Tensor, unrotated: Tensor | None, call: LayerCall
    ) -> Heads:
        """Return the heads of a query over latents: compared as latents if absorbed, else expanded to heads.

        `unrotated` must be a tensor. ShapeError, `layer.projected`, if a replaced projection has another width.
        """
        assert unrotated is not None
        shared, latent = key, value
        if call.absorbs:
            # Latents are compared in their own width, and the scale is that of the heads.
            absorbed = torch.einsum("bhqd,hdl->bhql", unrotated, self._up(self.key_projection))
            query = torch.cat([absorbed, query], dim=-1)
            key = torch.cat([latent, shared], dim=-1)
            return Heads(query, key, latent, scale=(self.head_dim + self.rotary_dim) ** -0.5)
        query = torch.cat([unrotated, query], dim=-1)
        key = self.key_projection(latent[:, 0])
        key = split_heads(key, self.num_heads, self.head_dim, "key_projection")
        key = torch.cat([key, shared.expand(-1, key.shape[1], -1, -1)], dim=-1)
        value = self.value_projection(latent[:, 0])
        value = split_heads(value, self.num_heads, self.value_head_dim, "value_projection")
        # Projected up, the numbers are no longer those that the cache has looked at.
        return Heads(query, key, value, is_cached=False)

    def _join(self, context: Tensor, call: LayerCall) -> Tensor:
        """Return the output, (batch, tokens, output_dim), for the contexts, which are of latents if absorbed."""
        if call.absorbs:
            context = torch.einsum("bhql,hdl->bhqd", context, self._up(self.value_projection))
        return self._merge_heads(context, call.x)

    def _absorbs(self, cache: Cache) -> bool:
        """Return True if the cache has had tokens, and key and value projection are matrices: no bias, no hook."""
        # Keys and values must be a matrix times the latent, with no hook on it.
        return cache._layout is not None and all(
            is_plain_linear(each)
            and type(each.weight) in (Tensor, nn.Parameter)  # quantised ones are no such matrix
            and each.bias is None
            and not each._forward_pre_hooks
            and not each._forward_hooks
            for each in (self.key_projection, self.value_projection)
        )

    def _up(self, projection: nn.Linear) -> Tensor:
        """Return the weight of a projection from the latent to each head, (num_heads, dim, latent_dim)."""
        return projection.weight.unflatten(0, (self.num_heads, -1))
