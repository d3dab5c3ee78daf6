"""Attention that can learn: three matrices.

New here: what a token asks for (query), what it is found by (key) and what it hands over (value)
are three projections of it, and training changes them. And the scores are divided by √head_dim, so
that they do not grow with the width: scaled dot-product attention (Vaswani et al., 2017,
https://arxiv.org/abs/1706.03762).
"""

from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from clearhead._common.checks import check_sizes
from clearhead.errors import ArgumentError
from clearhead.ladder.checking import check_tokens
from clearhead.ladder.given import check_given, trainable
from clearhead.ladder.simple_attention import SimpleAttention
from clearhead.stages import Stages, compute

DRAWS = {"normal": torch.randn, "uniform": torch.rand}


Rung = TypeVar("Rung", bound="SelfAttention")


class SelfAttention(SimpleAttention):
    """Self-attention with a matrix each for query, key and value.

    Args:
        embed_dim: width of a token.
        head_dim: width of a query and of a key, which meet in a dot product.
        value_head_dim: width of a value, and so of the context; None is head_dim.
        init: "normal" draws the matrices with torch.randn, "uniform" with torch.rand, in the order
            query, key, value.

    Raises:
        ArgumentError, ArgumentTypeError: codes `argument.size`, `init.name`.

    Example:
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
        init: Literal["normal", "uniform"] = "normal",
    ) -> None:
        super().__init__()
        value_head_dim = head_dim if value_head_dim is None else value_head_dim
        check_sizes(embed_dim=embed_dim, head_dim=head_dim, value_head_dim=value_head_dim)
        if init not in DRAWS:
            raise ArgumentError("init.name", f'init must be "normal" or "uniform"; got {init!r}.')
        self.query_weight = nn.Parameter(DRAWS[init](embed_dim, head_dim))
        self.key_weight = nn.Parameter(DRAWS[init](embed_dim, head_dim))
        self.value_weight = nn.Parameter(DRAWS[init](embed_dim, value_head_dim))

    def with_weights(self: Rung, query: Tensor, key: Tensor, value: Tensor) -> Rung:
        """This rung with copies of the given matrices in place of its own.

        Args:
            query: (embed_dim, head_dim), to be used as `x @ query`.
            key: (embed_dim, head_dim).
            value: (embed_dim, value_head_dim).

        Raises:
            ShapeError, DtypeError, DeviceError, ArgumentTypeError: codes `rung.weight`,
                `rung.dtype`, `rung.device`, and `query.type` with the name of the argument.
        """
        sizes = {"query": self.query_weight, "key": self.key_weight, "value": self.value_weight}
        given = check_given(
            {name: tuple(weight.shape) for name, weight in sizes.items()},
            {"query": query, "key": key, "value": value},
        )
        self.query_weight = trainable(given["query"])
        self.key_weight = trainable(given["key"])
        self.value_weight = trainable(given["value"])
        return self

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of each token: (tokens, head_dim), twice, (tokens, value_head_dim)."""
        return x @ self.query_weight, x @ self.key_weight, x @ self.value_weight

    def stages(self, x: Tensor) -> Stages:
        """Every stage between the tokens, (tokens, embed_dim), and their contexts."""
        check_tokens("x", x, self.query_weight, embed_dim=self.query_weight.shape[0])
        query, key, value = self.project(x)
        return compute(query, key, value, scale=query.shape[-1] ** -0.5)
