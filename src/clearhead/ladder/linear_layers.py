"""The same three projections as linear layers.

New here: `nn.Linear` in place of a bare matrix. It can add a bias, it keeps its weight the other way
round, (head_dim, embed_dim), and it draws it between ±1/√embed_dim, so that the projections do not
grow with the width (the idea: LeCun et al., 1998, https://doi.org/10.1007/3-540-49430-8_2).
"""

from typing import TypeVar

from torch import Tensor, nn

from clearhead._common.checks import check_bool, check_sizes
from clearhead.ladder.checking import check_tokens
from clearhead.ladder.given import fill
from clearhead.ladder.simple_attention import SimpleAttention
from clearhead.stages import Stages, compute

Rung = TypeVar("Rung", bound="SelfAttentionWithLayers")


class SelfAttentionWithLayers(SimpleAttention):
    """Self-attention with a linear layer each for query, key and value.

    Args:
        embed_dim: width of a token.
        head_dim: width of a query and of a key.
        value_head_dim: width of a value; None is head_dim.
        bias: whether the layers add one. It is off unless asked for.

    Raises:
        ArgumentError, ArgumentTypeError: codes `argument.size`, `bias.type`.

    Example:
        >>> import torch
        >>> from clearhead.ladder import EXAMPLE_EMBEDDINGS
        >>> _ = torch.manual_seed(123)
        >>> SelfAttentionWithLayers(3, head_dim=2, bias=True)(EXAMPLE_EMBEDDINGS)[1]
        tensor([0.1144, 0.9353], grad_fn=<SelectBackward0>)
    """

    def __init__(
        self,
        embed_dim: int,
        *,
        head_dim: int,
        value_head_dim: int | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        value_head_dim = head_dim if value_head_dim is None else value_head_dim
        check_sizes(embed_dim=embed_dim, head_dim=head_dim, value_head_dim=value_head_dim)
        check_bool("bias", bias)
        self.query_projection = nn.Linear(embed_dim, head_dim, bias=bias)
        self.key_projection = nn.Linear(embed_dim, head_dim, bias=bias)
        self.value_projection = nn.Linear(embed_dim, value_head_dim, bias=bias)

    def with_weights(
        self: Rung,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_bias: Tensor | None = None,
        key_bias: Tensor | None = None,
        value_bias: Tensor | None = None,
    ) -> Rung:
        """This rung with copies of the given matrices in place of its own.

        Args:
            query: (embed_dim, head_dim), to be used as `x @ query`; a weight of nn.Linear, turned.
            key: (embed_dim, head_dim).
            value: (embed_dim, value_head_dim).
            query_bias: (head_dim,); this and the next two for a rung with bias=True, and only then.
            key_bias: (head_dim,).
            value_bias: (value_head_dim,).

        Raises:
            ShapeError, DtypeError, DeviceError, ArgumentTypeError, ArgumentError: codes
                `rung.weight`, `rung.dtype`, `rung.device`, `rung.weight-missing`,
                `rung.weight-unexpected`, and `query.type` with the name of the argument.
        """
        fill(
            {
                "query": self.query_projection,
                "key": self.key_projection,
                "value": self.value_projection,
            },
            {
                "query": query,
                "key": key,
                "value": value,
                "query_bias": query_bias,
                "key_bias": key_bias,
                "value_bias": value_bias,
            },
        )
        return self

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of each token: (tokens, head_dim), twice, (tokens, value_head_dim)."""
        return self.query_projection(x), self.key_projection(x), self.value_projection(x)

    def stages(self, x: Tensor) -> Stages:
        """Every stage between the tokens, (tokens, embed_dim), and their contexts."""
        layer = self.query_projection
        check_tokens("x", x, layer.weight, embed_dim=layer.in_features)
        query, key, value = self.project(x)
        return compute(query, key, value, scale=query.shape[-1] ** -0.5)
