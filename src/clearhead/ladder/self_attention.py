"""Attention that can learn: three matrices.

New here: what a token asks for (query), what it is found by (key) and what it hands over (value)
are three projections of it, and training changes them. And the scores are divided by √head_dim, so
that they do not grow with the width: scaled dot-product attention (Vaswani et al., 2017,
https://arxiv.org/abs/1706.03762).
"""

from torch import Tensor, nn

from clearhead._common.checks import check_sizes
from clearhead.ladder.rung import AnyRung, Init, Rung, Tokens, drawn, widths
from clearhead.stages import Stages, compute


class SelfAttention(Rung):
    """Self-attention with a matrix each for query, key and value.

    Args:
        embed_dim: width of a token.
        head_dim: width of a query and of a key, which meet in a dot product.
        value_head_dim: width of a value, and so of the context; None is head_dim.
        init: "normal" draws the matrices with torch.randn, "uniform" with torch.rand, "linear" as
            nn.Linear does, in the order query, key, value.

    Raises:
        ArgumentError, ArgumentTypeError: codes `argument.size`, `argument.type`, `init.value`.

    Example:
        >>> import torch
        >>> from clearhead.ladder import EXAMPLE_EMBEDDINGS
        >>> _ = torch.manual_seed(123)
        >>> SelfAttention(3, head_dim=2)(EXAMPLE_EMBEDDINGS)[1]
        tensor([0.2854, 0.4081], grad_fn=<SelectBackward0>)
    """

    def __init__(
        self,
        embed_dim: int,
        *,
        head_dim: int,
        value_head_dim: int | None = None,
        init: Init = "normal",
    ) -> None:
        super().__init__()
        value_head_dim = head_dim if value_head_dim is None else value_head_dim
        check_sizes(embed_dim=embed_dim, head_dim=head_dim, value_head_dim=value_head_dim)
        self.query_weight = nn.Parameter(drawn(init, embed_dim, head_dim))
        self.key_weight = nn.Parameter(drawn(init, embed_dim, head_dim))
        self.value_weight = nn.Parameter(drawn(init, embed_dim, value_head_dim))

    def sizes(self) -> dict[str, int]:
        """Return the widths by the names of the constructor's arguments, without those equal to their default."""
        shapes = [each.shape for each in (self.query_weight, self.key_weight, self.value_weight)]
        query, key, value = ((rows, columns) for rows, columns in shapes)
        return widths(query, key, value)

    def with_weights(self: AnyRung, query: Tensor, key: Tensor, value: Tensor) -> AnyRung:
        """Return this rung, with copies of these matrices, to be used as `x @ query`, as its parameters, in place."""
        return self.load(query_weight=query, key_weight=key, value_weight=value)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value of each token: (tokens, head_dim) twice, (tokens, value_head_dim)."""
        return x @ self.query_weight, x @ self.key_weight, x @ self.value_weight

    def stages(self, x: Tokens) -> Stages:
        """Return every stage between x, (tokens, embed_dim), and its contexts, (tokens, value_head_dim)."""
        query, key, value = self.project(x)
        return compute(query, key, value, scale=query.shape[-1] ** -0.5)
