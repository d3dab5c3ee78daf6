"""Several heads in one go: the attention of a transformer.

New here: one wide projection whose columns are split among the heads, so that all heads are one
matrix product; and a last projection, which mixes the contexts of the heads (Vaswani et al., 2017,
section 3.2.2, https://arxiv.org/abs/1706.03762). `clearhead.MultiHeadAttention` is this rung on the
fused kernels, with the same names: the weights of one load into the other.
"""

from typing import Any

from torch import Tensor, nn

from clearhead._common.checks import check_bool
from clearhead._shapes import Float
from clearhead.errors import ArgumentError
from clearhead.ladder.batched_attention import Batch, ContextBatch
from clearhead.ladder.dropout_attention import DropoutProjections
from clearhead.ladder.rung import Init
from clearhead.masks import Mask
from clearhead.masks.dense import as_mask
from clearhead.stages import Stages, compute


def split_heads(
    projected: Float[Tensor, "*batch len width"], num_heads: int
) -> Float[Tensor, "*batch num_heads len head_dim"]:
    """Return the columns of a wide projection, a group of neighbours for each head; merge_heads is the inverse.

    Example:
        >>> import torch
        >>> split_heads(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), 2)  # one token, two heads
        tensor([[[1., 2.]],
        <BLANKLINE>
                [[3., 4.]]])
    """
    return projected.unflatten(-1, (num_heads, -1)).transpose(-3, -2)


def merge_heads(
    context: Float[Tensor, "*batch num_heads query_len value_head_dim"],
) -> Float[Tensor, "*batch query_len width"]:
    """Return the contexts of all heads concatenated: width = num_heads · value_head_dim.

    Example:
        >>> import torch
        >>> merge_heads(torch.tensor([[[1, 2]], [[3, 4]]]).float())  # two heads, one token
        tensor([[1., 2., 3., 4.]])
    """
    return context.transpose(-3, -2).flatten(-2)


class SplitHeads(DropoutProjections):
    """Multi-head attention by splitting the weights, with a projection of the output.

    Args:
        embed_dim: width of a token of x.
        num_heads: number of heads.
        head_dim: width of a query and of a key in a head; None is embed_dim / num_heads.
        value_head_dim: width of a value in a head; None is head_dim.
        context_dim: width of a token of the context; None is embed_dim.
        output_dim: width of the output; None is embed_dim.
        bias: add one in the projections of query, key and value.
        output_bias: add one in the projection of the output.
        init: of query, key and value, as in `linear_layers`.
        mask: as in `masking`.
        dropout: probability of dropping a weight while training, in [0, 1); None is none.

    Raises:
        ArgumentError, ArgumentTypeError: codes `rung.heads`, `bias.type`, `output_bias.type`,
            `dropout.value`, `dropout.type`, `init.value`.

    Example:
        >>> import torch, clearhead as ch
        >>> rung = SplitHeads(6, num_heads=2, mask=ch.causal())
        >>> layer = ch.MultiHeadAttention(6, num_heads=2, mask=ch.causal())
        >>> layer.load_state_dict(rung.state_dict())
        <All keys matched successfully>
        >>> x = torch.randn(5, 7, 6)
        >>> torch.allclose(rung(x), layer(x), atol=1e-6)
        True
    """

    def __init__(
        self,
        embed_dim: int,
        *,
        num_heads: int,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        context_dim: int | None = None,
        output_dim: int | None = None,
        bias: bool = False,
        output_bias: bool = True,
        init: Init = "linear",
        mask: Mask | Tensor | None = None,
        dropout: float | None = None,
    ) -> None:
        check_bool("output_bias", output_bias)
        if head_dim is None and embed_dim % num_heads:
            raise ArgumentError(
                "rung.heads",
                "embed_dim must be a multiple of num_heads, or head_dim be given; got "
                f"embed_dim={embed_dim}, num_heads={num_heads}.",
            )
        head_dim = embed_dim // num_heads if head_dim is None else head_dim
        value_width = num_heads * (head_dim if value_head_dim is None else value_head_dim)
        super().__init__(
            embed_dim,
            head_dim=num_heads * head_dim,
            value_head_dim=value_width,
            context_dim=context_dim,
            bias=bias,
            init=init,
            mask=mask,
            dropout=dropout,
        )
        output_dim = embed_dim if output_dim is None else output_dim
        self.output_projection = nn.Linear(value_width, output_dim, bias=output_bias)
        self.num_heads = num_heads

    def stages(
        self, x: Batch, context: ContextBatch | None = None, *, mask: Mask | Tensor | None = None
    ) -> Stages:
        """Return every stage of every head, (batch, num_heads, tokens, …).

        Arguments and errors as of `BatchedAttention`.
        """
        wide = self.project(x, context)  # (batch, tokens, num_heads · head_dim), …
        query, key, value = (split_heads(each, self.num_heads) for each in wide)
        visible = self.visible(query, key, as_mask(mask), self.num_heads)
        scale = query.shape[-1] ** -0.5
        return compute(query, key, value, scale=scale, visible=visible, dropout=self.rate)

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Return the output for each token of x, (batch, tokens, output_dim)."""
        return self.output_projection(merge_heads(super().forward(*inputs, **options)))
