"""Several heads in one go: the attention of a transformer.

New here: one wide projection whose columns are split among the heads, so that all heads are one
matrix product; and a last projection, which mixes what the heads found (Vaswani et al., 2017,
section 3.2.2, https://arxiv.org/abs/1706.03762). `clearhead.MultiHeadAttention` is this rung on the
fused kernels, with the same names: the weights of one load into the other.
"""

from typing import TypeVar

from jaxtyping import Float
from torch import Tensor, nn

from clearhead._common.checks import check_bool, check_sizes
from clearhead.errors import ArgumentError
from clearhead.ladder.batched_attention import BatchedAttention
from clearhead.ladder.concatenated_heads import merge_heads
from clearhead.ladder.given import fill
from clearhead.ladder.masking import visible_pairs
from clearhead.masks import Mask
from clearhead.masks.coerce import and_masks, as_mask
from clearhead.stages import Stages, compute


def split_heads(
    projected: Float[Tensor, "*batch len width"], num_heads: int
) -> Float[Tensor, "*batch num_heads len head_dim"]:
    """The columns of a wide projection, a group for each head; merge_heads puts them back.

    Args:
        projected: (..., len, num_heads · head_dim).
        num_heads: a divisor of the width.

    Example:
        >>> import torch
        >>> split_heads(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), 2)  # one token, two heads
        tensor([[[1., 2.]],
        <BLANKLINE>
                [[3., 4.]]])
    """
    return projected.unflatten(-1, (num_heads, -1)).transpose(-3, -2)


Rung = TypeVar("Rung", bound="SplitHeads")


class SplitHeads(BatchedAttention):
    """Multi-head attention by splitting the weights, with a projection of the output.

    Args:
        embed_dim: width of a token of x.
        num_heads: number of heads.
        head_dim: width of a query and of a key in a head; None is embed_dim / num_heads.
        value_head_dim: width of a value in a head; None is head_dim.
        context_dim: width of a token of the context; None is embed_dim.
        output_dim: width of the output; None is embed_dim.
        bias: whether the projections of query, key and value add one.
        output_bias: whether the projection of the output adds one.
        mask: who may see whom.
        dropout: probability of dropping a weight while training, in [0, 1); None is none.

    Raises:
        ArgumentError, ArgumentTypeError: codes `argument.size`, `rung.heads`, `bias.type`,
            `output_bias.type`, `dropout.value`, `dropout.type`.

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
        mask: Mask | Tensor | None = None,
        dropout: float | None = None,
    ) -> None:
        check_sizes(embed_dim=embed_dim, num_heads=num_heads)
        if head_dim is None and embed_dim % num_heads:
            raise ArgumentError(
                "rung.heads",
                "embed_dim must be a multiple of num_heads, or head_dim be given; got "
                f"embed_dim={embed_dim}, num_heads={num_heads}.",
            )
        head_dim = embed_dim // num_heads if head_dim is None else head_dim
        value_head_dim = head_dim if value_head_dim is None else value_head_dim
        output_dim = embed_dim if output_dim is None else output_dim
        check_sizes(head_dim=head_dim, value_head_dim=value_head_dim, output_dim=output_dim)
        check_bool("output_bias", output_bias)
        super().__init__(
            embed_dim,
            head_dim=num_heads * head_dim,
            value_head_dim=num_heads * value_head_dim,
            context_dim=context_dim,
            bias=bias,
            mask=mask,
            dropout=dropout,
        )
        self.num_heads = num_heads
        self.output_projection = nn.Linear(num_heads * value_head_dim, output_dim, bias=output_bias)

    def with_weights(
        self: Rung,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_bias: Tensor | None = None,
        key_bias: Tensor | None = None,
        value_bias: Tensor | None = None,
        output: Tensor | None = None,
        output_bias: Tensor | None = None,
    ) -> Rung:
        """This rung with copies of the given matrices in place of its own; as in the rungs before.

        Args:
            query: (embed_dim, num_heads · head_dim); the first head has the first columns.
            key: (context_dim, num_heads · head_dim).
            value: (context_dim, num_heads · value_head_dim).
            query_bias: (num_heads · head_dim,).
            key_bias: (num_heads · head_dim,).
            value_bias: (num_heads · value_head_dim,).
            output: (num_heads · value_head_dim, output_dim); never to be left out.
            output_bias: (output_dim,); only to be left out with output_bias=False.
        """
        fill(
            {
                "query": self.query_projection,
                "key": self.key_projection,
                "value": self.value_projection,
                "output": self.output_projection,
            },
            {
                "query": query,
                "key": key,
                "value": value,
                "output": output,
                "query_bias": query_bias,
                "key_bias": key_bias,
                "value_bias": value_bias,
                "output_bias": output_bias,
            },
        )
        return self

    def stages(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
    ) -> Stages:
        """Every stage of every head: (batch, num_heads, tokens, …). Errors as in the rung before."""
        self.check(x, context, batches=True)
        projected = self.project(x, context)  # (batch, tokens, num_heads · head_dim)
        query, key, value = (split_heads(each, self.num_heads) for each in projected)
        mask = and_masks(self.mask, as_mask(mask))
        return compute(
            query,
            key,
            value,
            scale=query.shape[-1] ** -0.5,
            visible=visible_pairs(mask, query, key, heads=True),
            dropout=self.dropout if self.training else None,
        )

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
    ) -> Tensor:
        """The output for each token of x: (batch, tokens, output_dim)."""
        return self.output_projection(merge_heads(self.stages(x, context, mask=mask).context))

    def extra_repr(self) -> str:
        return ", ".join(
            part for part in (f"num_heads={self.num_heads}", super().extra_repr()) if part
        )
