"""Multi-head attention as a layer (Vaswani et al., 2017, https://arxiv.org/abs/1706.03762)."""

from collections.abc import Sequence

from torch import Tensor, nn

from clearhead._common.checks import check_bool, check_dropout, check_sizes
from clearhead._common.hints import with_hints
from clearhead.errors import ArgumentError
from clearhead.layers.attention_layer import AttentionLayer
from clearhead.layers.caches.bundle import CacheBundle
from clearhead.layers.caches.cache import Cache
from clearhead.layers.inputs import LayerCall, Projected, split_heads
from clearhead.layers.parts import Part, check_parts
from clearhead.layers.token_steps import next_token
from clearhead.masks.base import Mask
from clearhead.masks.dense import as_mask
from clearhead.sharding.sharding import Sharding


@with_hints
class MultiHeadAttention(AttentionLayer):
    """Several heads of attention over projections of the input, projected back together.

    `layer(x)` is self-attention, `layer(x, context)` is cross-attention. Fewer key than query heads
    are grouped-query attention (Ainslie et al., 2023, https://arxiv.org/abs/2305.13245).

    Args:
        embed_dim: width of the input.
        num_heads: number of query heads.
        num_kv_heads: number of key and value heads, a divisor of num_heads; None is num_heads.
        head_dim: width of a query and a key; None is embed_dim / num_heads.
        value_head_dim: width of a value; None is head_dim.
        context_dim: width of the context that keys and values are made of; None is embed_dim.
        output_dim: width of the output; None is embed_dim.
        bias: whether the projections of query, key and value have one.
        output_bias: whether the projection of the output has one.
        mask: which keys a query may see, at every call. It is a description: it is not saved with
            the weights and fits any number of tokens.
        dropout: probability of dropping a weight while training, in [0, 1); None is none.
        parts: rotary positions, norms, a gate, and other variants; see `clearhead.layers.Part`.

    Raises:
        ArgumentError: codes `argument.size`, `layer.heads`, `layer.kv-heads`, `dropout.value`, for
            sizes that do not fit; ArgumentTypeError for an argument of another type, and, code
            `layer.words`, for one that PyTorch or another library has.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(32, num_heads=4, num_kv_heads=2, mask=ch.causal())
        >>> layer(torch.randn(3, 5, 32)).shape
        torch.Size([3, 5, 32])
        >>> cross = ch.MultiHeadAttention(32, num_heads=4, context_dim=16)
        >>> cross(torch.randn(3, 5, 32), torch.randn(3, 7, 16)).shape
        torch.Size([3, 5, 32])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        context_dim: int | None = None,
        output_dim: int | None = None,
        bias: bool = False,
        output_bias: bool = True,
        mask: Mask | Tensor | None = None,
        dropout: float | None = None,
        parts: Sequence[Part] = (),
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        context_dim = embed_dim if context_dim is None else context_dim
        output_dim = embed_dim if output_dim is None else output_dim
        check_sizes(
            embed_dim=embed_dim,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            context_dim=context_dim,
            output_dim=output_dim,
        )
        if head_dim is None:
            if embed_dim % num_heads:
                raise ArgumentError(
                    "layer.heads",
                    f"embed_dim must be a multiple of num_heads, or head_dim be given; got "
                    f"embed_dim={embed_dim}, num_heads={num_heads}.",
                )
            head_dim = embed_dim // num_heads
        value_head_dim = head_dim if value_head_dim is None else value_head_dim
        check_sizes(head_dim=head_dim, value_head_dim=value_head_dim)
        if num_heads % num_kv_heads:
            raise ArgumentError(
                "layer.kv-heads",
                f"num_heads must be a multiple of num_kv_heads; got num_heads={num_heads}, "
                f"num_kv_heads={num_kv_heads}.",
            )
        check_dropout(dropout)
        check_bool("bias", bias)
        check_bool("output_bias", output_bias)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.value_head_dim = value_head_dim
        self.context_dim = context_dim
        self.output_dim = output_dim
        self.dropout = dropout
        self.mask = as_mask(mask)
        self.query_projection = nn.Linear(embed_dim, num_heads * head_dim, bias=bias)
        self.key_projection = nn.Linear(context_dim, num_kv_heads * head_dim, bias=bias)
        self.value_projection = nn.Linear(context_dim, num_kv_heads * value_head_dim, bias=bias)
        self.output_projection = nn.Linear(num_heads * value_head_dim, output_dim, bias=output_bias)
        self.parts = check_parts(parts)

    @with_hints
    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        valid: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Cache | CacheBundle | None = None,
        kernel: str = "auto",
        across: Sharding | tuple[Sharding, Sharding] | None = None,
    ) -> Tensor:
        """Attend from x to itself, or to a context.

        With a KV cache, x are the tokens that come next: they are appended to it, and attend to all
        that it holds. A whole text at once, in chunks and token by token give the same; a mask by
        which they would not, as where a prefix comes in two calls, is refused. With a context, the
        cache is filled at the first call and keeps the keys and values of the context for the calls
        that follow. A call that fails leaves the cache as it was.

        Args:
            x: (batch, tokens, embed_dim), or (tokens, embed_dim).
            context: (batch, context_tokens, context_dim), with as many dimensions as x.
            mask: for this call, next to the layer's own: a key must be visible in both.
            valid: bool, (batch, tokens), True at real tokens, False at padding, on whichever side;
                of the context, if there is one. The real tokens of a row are counted from 0.
            positions: whole numbers, (tokens,) or (batch, tokens): the positions of the tokens of x, by
                which the parts go, for tokens whose position is not their index, such as a tree of
                drafts. Masks go by the index all the same. None counts the tokens.
            cache: keys and values of the tokens before, of this layer only; see
                `clearhead.layers.Cache`. Or a `CacheBundle`; the layer uses its own cache in it.
            kernel: "auto", or the name of one, as of `attend`: "eager" has derivatives of any
                order, and "flex" compiles.
            across: the ranks that share the tokens, of `clearhead.across`; or a pair, of x and of the
                context. x has the tokens of this rank, and masks are those of all tokens.

        Returns:
            (batch, tokens, output_dim), or (tokens, output_dim).

        Raises:
            ShapeError, DtypeError, DeviceError, MaskError, ArgumentTypeError: for input that does
                not fit, before anything is computed.
            ArgumentError: codes `layer.cache-causal`, `layer.cache-ahead` and `layer.cache-fixed`, for
                a cache where a token would see later ones; `layer.cache-context`, for a cache that
                was filled with another context; `layer.cache-kind`, for a `SlidingCache` or a `FixedCache`
                of a context; `layer.cache-shared`, for the cache of another layer; `layer.cache-dropout`, for a cache
                while weights are dropped; `layer.causal-context`, for a context of a layer with `causal()`.
            TooLargeError: code `cache.full`, for a cache of fixed size that has no room left.
            UnsupportedError: codes `cache.mask` and `cache.bias`, for one that is made for columns
                where those of the cache are not tokens in order; `layer.positions-bias`, for positions
                next to a bias and a cache; `kernel.refused`, if the requested
                kernel cannot run this; `layer.across`, for across= next to a cache or `valid`.
            RankError: on every rank, if one of them is refused, or they differ.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal()).eval()
            >>> x, cache = torch.randn(1, 5, 8), ch.layers.GrowingCache()
            >>> with torch.no_grad():
            ...     steps = [layer(token, cache=cache) for token in x.split(1, dim=1)]
            ...     torch.allclose(torch.cat(steps, dim=1), layer(x), atol=1e-6)
            True
        """
        if cache is not None and context is mask is valid is positions is across is None:
            output = (
                next_token(self, x, cache, kernel) if type(self) is MultiHeadAttention else None
            )
            if output is not None:
                return output
        call = self._check_call(
            x,
            context,
            mask=mask,
            valid=valid,
            positions=positions,
            cache=cache,
            across=across,
        )
        return self._attend(call, kernel)

    def join(self, context: Tensor, x: Tensor) -> Tensor:
        """Concatenate the contexts of the heads and project them to the output.

        Args:
            context: (batch, num_heads, tokens, value_head_dim).
            x: the input of the layer, (batch, tokens, embed_dim) or (tokens, embed_dim).

        Returns:
            (batch, tokens, output_dim).
        """
        return self._merge_heads(context, x if x.ndim == 3 else x[None])

    def extra_repr(self) -> str:
        """Return embed_dim, the heads, head_dim, and value_head_dim, mask and dropout if they are set, for `repr`."""
        text = f"{self.embed_dim}, num_heads={self.num_heads}"
        if self.num_kv_heads != self.num_heads:
            text += f", num_kv_heads={self.num_kv_heads}"
        return f"{text}, head_dim={self.head_dim}{self._describe_options()}"

    def _project(self, call: LayerCall) -> Projected:
        """Return query, key and value, each (batch, heads, tokens, dim), and None; parts have transformed the value.

        Raises ShapeError, code `layer.projected`, if a replaced projection has another width.
        """
        heads = self.num_kv_heads
        query = self.query_projection(call.x)
        key, value = self.key_projection(call.source), self.value_projection(call.source)
        dim, value_dim = self.head_dim, self.value_head_dim
        query = split_heads(query, self.num_heads, dim, "query_projection", may_share=True)
        key = split_heads(key, heads, dim, "key_projection", may_share=True)
        value = split_heads(value, heads, value_dim, "value_projection", may_share=True)
        for part in self.parts:
            value = part.transform_value(value)
        return query, key, value, None

    def _join(self, context: Tensor, call: LayerCall) -> Tensor:
        """Return the output, (batch, tokens, output_dim), for the context of each head."""
        return self.join(context, call.x)
