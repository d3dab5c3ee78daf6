"""Multi-head latent attention (DeepSeek-AI, 2024, https://arxiv.org/abs/2405.04434)."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clearhead._common.checks import check_bool, check_dropout, check_sizes, check_tensor
from clearhead.attention.planning import Plan, kernel_named, plan_for, run
from clearhead.attention.problem import Problem, make_problem, under_autocast
from clearhead.errors import ShapeError
from clearhead.layers.caches.base import Cache, check_valid
from clearhead.layers.inputs import check_beside, is_plain, split_heads
from clearhead.layers.parts import Part, check_parts, options_of
from clearhead.layers.positions import (
    Packed,
    arranged,
    check_cache,
    next_positions,
    packed,
    taken_back,
)
from clearhead.masks.base import Mask
from clearhead.masks.coerce import and_masks, as_mask
from clearhead.matrix.matrix import AttentionMatrix, matrix_of


class LatentAttention(nn.Module):
    """Heads whose keys and values are made of one short vector a token, which is all that is cached.

    A token's latent, normed, is projected up to a key and a value for each head. Beside it stands a
    key of `rotary_dim` that all heads share, and that alone is turned by its position. While
    decoding, nothing is projected up: the projection is taken over to the query and to the context,
    so that all heads attend to the latents themselves.

    Args:
        embed_dim: width of the input.
        num_heads: number of heads.
        head_dim: width of the part of a query and a key that has no position.
        rotary_dim: width of the part that has.
        latent_dim: width of the latent of keys and values.
        query_latent_dim: width of a latent for queries; None projects them at once.
        value_head_dim: width of a value; None is head_dim.
        output_dim: width of the output; None is embed_dim.
        bias: whether the projections from and to the model's width have one.
        eps: added to the mean square of the norms.
        mask: who may see whom, at every call.
        dropout: probability of dropping a weight while training, in [0, 1); None is none.
        parts: what makes a variant of it, as in `MultiHeadAttention`; `Rotary(rotary_dim)` for one.
            `transform_query_key` is given the parts with a position alone, and `transform_value` is not asked.

    Raises:
        ArgumentError: codes `argument.size`, `dropout.value`; ArgumentTypeError for a mask, a part
            or a size of another type.

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

    def __init__(
        self,
        embed_dim: int,
        *,
        num_heads: int,
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
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.rotary_dim = rotary_dim
        self.latent_dim = latent_dim
        self.query_latent_dim = query_latent_dim
        self.value_head_dim = value_head_dim
        self.output_dim = output_dim
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

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        valid: Tensor | None = None,
        cache: Cache | None = None,
        kernel: str = "auto",
    ) -> Tensor:
        """Attend from x to itself, and to what a cache holds.

        Arguments and errors are those of `MultiHeadAttention.forward`.

        Returns:
            (batch, tokens, output_dim), (tokens, output_dim), or nested as x is.
        """
        kernel_named(kernel)
        nested = packed(x, valid=valid, cache=cache)
        with taken_back(cache):
            problem, absorbed = self._pose(x, mask, valid, cache, nested)
            attended = run(problem, kernel)
        if nested is not None:
            return nested.like_it(self._join(attended, nested.tokens, absorbed))
        output = self._join(attended, x, absorbed)
        return output if x.ndim == 3 else output[0]

    def weights(
        self,
        x: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        valid: Tensor | None = None,
        cache: Cache | None = None,
    ) -> AttentionMatrix:
        """The attention weights of `forward`, to be looked into; a cache is read, and stays as it is.

        Returns:
            An `AttentionMatrix` of shape (batch, num_heads, tokens, keys).
        """
        nested = packed(x, valid=valid, cache=cache)
        problem, _ = self._pose(x, mask, valid, copy.deepcopy(cache), nested)
        return matrix_of(problem)

    def plan(
        self,
        x: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        valid: Tensor | None = None,
        cache: Cache | None = None,
        kernel: str = "auto",
    ) -> Plan:
        """The kernel that `forward` would use for these arguments, and why not the others."""
        nested = packed(x, valid=valid, cache=cache)
        return plan_for(self._pose(x, mask, valid, copy.deepcopy(cache), nested)[0], kernel)

    def extra_repr(self) -> str:
        text = (
            f"{self.embed_dim}, num_heads={self.num_heads}, head_dim={self.head_dim}, "
            f"rotary_dim={self.rotary_dim}, latent_dim={self.latent_dim}"
        )
        if self.value_head_dim != self.head_dim:
            text += f", value_head_dim={self.value_head_dim}"
        if self.mask is not None:
            text += f", mask={self.mask.describe()}"
        return text if self.dropout is None else f"{text}, dropout={self.dropout}"

    def _pose(
        self,
        x: Tensor,
        mask: Mask | Tensor | None,
        valid: Tensor | None,
        cache: Cache | None,
        nested: Packed | None,
    ) -> tuple[Problem, bool]:
        """What a kernel is given, and whether the heads attend to the latents themselves."""
        mask = and_masks(self.mask, as_mask(mask))
        if nested is not None:
            x, mask = nested.tokens, nested.within(mask)
        self._check(x, mask, valid, cache)
        query, turning = self._query(x).split([self.head_dim, self.rotary_dim], dim=-1)
        latent, shared = (
            self.latent_projection(x).reshape(query.shape[0], 1, query.shape[2], -1)
        ).split([self.latent_dim, self.rotary_dim], dim=-1)
        latent = self.latent_norm(latent)
        if nested is not None:
            positions = nested.positions[0]
        else:
            positions = next_positions(query.shape[2], valid, cache, x.device)
        for part in self.parts:
            turning, shared = part.transform_query_key(turning, shared, positions, positions)
        absorbed, key_positions = False, positions
        if cache is not None:
            absorbed = len(cache) > 0 and self._can_absorb()
            shared, latent = cache.append(*under_autocast(shared, latent), valid=valid)
            key_positions = cache.positions
        options = options_of(self.parts, positions, key_positions)
        mask, options = arranged(mask, options, valid, cache, positions, key_positions)
        # Latents are compared in their own width, and the scale is that of the heads.
        options.setdefault("scale", (self.head_dim + self.rotary_dim) ** -0.5)
        if absorbed:
            query = torch.einsum("bhqd,hdl->bhql", query, self._up(self.key_projection))
            key, value = torch.cat([latent, shared], dim=-1), latent
        else:
            key = split_heads(self.key_projection(latent[:, 0]), self.num_heads)
            key = torch.cat([key, shared.expand(-1, self.num_heads, -1, -1)], dim=-1)
            value = split_heads(self.value_projection(latent[:, 0]), self.num_heads)
        query = torch.cat([query, turning], dim=-1)
        dropout = self.dropout if self.training else None
        problem = make_problem(query, key, value, mask=mask, dropout=dropout, **options)
        # Latents as they are held are what is attended to; projected up, they are other numbers.
        known = cache is not None and absorbed and cache.finite
        return problem.replace(keys_finite=known), absorbed

    def _query(self, x: Tensor) -> Tensor:
        if self.query_latent_dim is not None:
            x = self.query_norm(self.query_latent_projection(x))
        return split_heads(self.query_projection(x), self.num_heads)

    def _can_absorb(self) -> bool:
        """Whether keys and values are a matrix times the latent, and nobody has put in more."""
        return all(
            is_plain(each)
            and each.bias is None
            and not each._forward_pre_hooks
            and not each._forward_hooks
            for each in (self.key_projection, self.value_projection)
        )

    def _up(self, projection: nn.Linear) -> Tensor:
        """The weights from a latent to each head, (num_heads, dim, latent_dim)."""
        return projection.weight.unflatten(0, (self.num_heads, -1))

    def _join(self, context: Tensor, x: Tensor, absorbed: bool) -> Tensor:
        if absorbed:
            context = torch.einsum("bhql,hdl->bhqd", context, self._up(self.value_projection))
        for part in self.parts:
            context = part.transform_context(context, x if x.ndim == 3 else x[None])
        return self.output_projection(context.transpose(1, 2).flatten(2))

    def _check(
        self, x: Tensor, mask: Mask | None, valid: Tensor | None, cache: Cache | None
    ) -> None:
        check_tensor("x", x)
        if x.ndim not in (2, 3) or x.shape[-1] != self.embed_dim:
            raise ShapeError(
                "layer.input",
                f"x must have shape (batch, tokens, embed_dim={self.embed_dim}) or "
                f"(tokens, embed_dim={self.embed_dim}); got {tuple(x.shape)}.",
            )
        check_beside("x", x, self.output_projection)
        if valid is not None:
            check_tensor("valid", valid)
            check_valid(valid, x.shape[0] if x.ndim == 3 else 1, x.shape[-2], x.device)
        if cache is not None:
            check_cache(cache, mask, None)
