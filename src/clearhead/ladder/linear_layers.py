"""The same three projections as linear layers.

New here: `nn.Linear` in place of a bare matrix. It can add a bias, it stores the transpose, (head_dim,
embed_dim), and it draws it between ±1/√embed_dim, so that the projections do not grow with the
width (the idea: LeCun et al., 1998, https://doi.org/10.1007/3-540-49430-8_2).
"""

from typing import Required, TypedDict

import torch
from torch import Tensor, nn

from clearhead._common.checks import check_bool
from clearhead.ladder.rung import AnyRung, Init, Rung, Tokens, drawn, widths
from clearhead.stages import Stages, compute


class LayerOptions(TypedDict, total=False):
    """The arguments that `Projections` takes by name, and all rungs that it is the base of."""

    head_dim: Required[int]
    value_head_dim: int | None
    context_dim: int | None
    bias: bool
    init: Init


class Projections(Rung):
    """A rung whose query, key and value come from linear layers: all those that follow.

    Args:
        embed_dim: width of a token.
        head_dim: width of a query and of a key.
        value_head_dim: width of a value; None is head_dim.
        context_dim: width of a token that key and value are made of; None is embed_dim.
        bias: add one in each layer; off unless asked for.
        init: "linear" draws the matrices as nn.Linear does; "normal" and "uniform" as in `self_attention`,
            the same numbers from the same seed.

    Raises:
        ArgumentTypeError: code `bias.type`, for a bias that is neither True nor False.
        ArgumentError: code `init.value`, for another word.
    """

    def __init__(
        self,
        embed_dim: int,
        *,
        head_dim: int,
        value_head_dim: int | None = None,
        context_dim: int | None = None,
        bias: bool = False,
        init: Init = "linear",
    ) -> None:
        super().__init__()
        check_bool("bias", bias)
        value_head_dim = head_dim if value_head_dim is None else value_head_dim
        context_dim = embed_dim if context_dim is None else context_dim
        # What the layers draw for themselves counts only where they are to draw.
        with torch.random.fork_rng(devices=[], enabled=init != "linear"):
            self.query_projection = nn.Linear(embed_dim, head_dim, bias=bias)
            self.key_projection = nn.Linear(context_dim, head_dim, bias=bias)
            self.value_projection = nn.Linear(context_dim, value_head_dim, bias=bias)
        layers = self.query_projection, self.key_projection, self.value_projection
        for layer in layers if init != "linear" else ():
            matrix = drawn(init, layer.in_features, layer.out_features)
            layer.weight = nn.Parameter(matrix.mT.contiguous())

    def sizes(self) -> dict[str, int]:
        """Return the widths by the names of the constructor's arguments, without those equal to their default."""
        layers = self.query_projection, self.key_projection, self.value_projection
        query, key, value = ((each.in_features, each.out_features) for each in layers)
        return widths(query, key, value, getattr(self, "num_heads", 1))

    def with_weights(
        self: AnyRung, query: Tensor, key: Tensor, value: Tensor, **others: Tensor | None
    ) -> AnyRung:
        """Return this rung, with copies of the given matrices as its parameters, in place.

        Args:
            query: (embed_dim, head_dim), to be used as `x @ query`: the transpose of nn.Linear's.
            key: (context_dim, head_dim).
            value: (context_dim, value_head_dim).
            others: `query_bias`, `key_bias` and `value_bias`, (width,), for a rung with bias=True; of `SplitHeads` also
                `output`, (num_heads · value_head_dim, output_dim), and `output_bias`. None leaves one out.

        Raises:
            RuntimeError: of PyTorch's load_state_dict, for one missing, too many, or of another shape.
        """
        saved: dict[str, Tensor] = {}
        for name, given in {"query": query, "key": key, "value": value, **others}.items():
            layer, _, bias = name.partition("_")
            if given is not None:
                saved[f"{layer}_projection.{bias or 'weight'}"] = given if bias else given.mT
        return self.load(**saved)

    def project(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the query of each token of x, and key and value of each token of the context, by default x.

        They are (..., tokens, head_dim) twice, and (..., tokens, value_head_dim).
        """
        source = x if context is None else context
        return self.query_projection(x), self.key_projection(source), self.value_projection(source)


class SelfAttentionWithLayers(Projections):
    """Self-attention with a linear layer each for query, key and value; arguments as in `Projections`.

    Example:
        >>> import torch
        >>> from clearhead.ladder import EXAMPLE_EMBEDDINGS
        >>> _ = torch.manual_seed(123)
        >>> SelfAttentionWithLayers(3, head_dim=2, bias=True)(EXAMPLE_EMBEDDINGS)[1]
        tensor([0.1144, 0.9353], grad_fn=<SelectBackward0>)
    """

    def stages(self, x: Tokens) -> Stages:
        """Return every stage between x, (tokens, embed_dim), and its contexts, (tokens, value_head_dim)."""
        query, key, value = self.project(x)
        return compute(query, key, value, scale=query.shape[-1] ** -0.5)
