"""Attention from one sequence to another.

New here: keys and values are made of a second sequence, the context, which may have another length
and another width. This is how a translation looks at the sentence it translates (Bahdanau et al.,
2015, https://arxiv.org/abs/1409.0473; Vaswani et al., 2017, https://arxiv.org/abs/1706.03762).
"""

from torch import Tensor, nn

from clearhead._common.checks import check_sizes
from clearhead.ladder.checking import check_pair
from clearhead.ladder.linear_layers import SelfAttentionWithLayers
from clearhead.stages import Stages, compute


class CrossAttention(SelfAttentionWithLayers):
    """Attention of x to a context; without one, to itself.

    Args:
        embed_dim: width of a token of x.
        head_dim: width of a query and of a key.
        value_head_dim: width of a value; None is head_dim.
        context_dim: width of a token of the context; None is embed_dim.
        bias: whether the layers add one.

    Raises:
        ArgumentError, ArgumentTypeError: codes `argument.size`, `bias.type`.

    Example:
        >>> import torch
        >>> attention = CrossAttention(3, head_dim=2, context_dim=5)
        >>> attention.stages(torch.randn(6, 3), torch.randn(8, 5)).weights.shape
        torch.Size([6, 8])
    """

    def __init__(
        self,
        embed_dim: int,
        *,
        head_dim: int,
        value_head_dim: int | None = None,
        context_dim: int | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__(embed_dim, head_dim=head_dim, value_head_dim=value_head_dim, bias=bias)
        if context_dim is not None and context_dim != embed_dim:
            check_sizes(context_dim=context_dim)
            value_width = self.value_projection.out_features
            self.key_projection = nn.Linear(context_dim, head_dim, bias=bias)
            self.value_projection = nn.Linear(context_dim, value_width, bias=bias)

    def project(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Query of each token of x, key and value of each token of the context."""
        source = x if context is None else context
        return self.query_projection(x), self.key_projection(source), self.value_projection(source)

    def check(self, x: Tensor, context: Tensor | None, *, batches: bool = False) -> None:
        """Refuse an input that this rung was not made for."""
        layer = self.query_projection
        context_dim = self.key_projection.in_features
        sizes = {"embed_dim": layer.in_features, "context_dim": context_dim}
        check_pair(x, context, layer.weight, batches=batches, **sizes)

    def stages(self, x: Tensor, context: Tensor | None = None) -> Stages:
        """Every stage between the tokens and their contexts.

        Args:
            x: (tokens, embed_dim).
            context: (context_tokens, context_dim); None is x.

        Raises:
            ShapeError, DtypeError, DeviceError, ArgumentTypeError: codes `rung.input`,
                `rung.context-missing`, `rung.dtype`, `rung.device`, `x.type`, `context.type`.
        """
        self.check(x, context)
        query, key, value = self.project(x, context)
        return compute(query, key, value, scale=query.shape[-1] ** -0.5)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """The context vector of each token of x: (tokens, value_head_dim)."""
        return self.stages(x, context).context
