"""Parts: the variants of attention that a layer is given, each usable alone."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from clearhead._common.checks import check_bool, check_sizes, is_number
from clearhead._common.hints import with_hints
from clearhead._text import shown
from clearhead.attention.biases import Bias
from clearhead.errors import ArgumentError, ArgumentTypeError, ShapeError


class Part(nn.Module):
    """A variant of attention, as four methods that a layer calls; each may be left as it is.

    A layer calls its parts in the order in which it was given them: `transform_query_key` and
    `transform_value` once query, key and value are split into heads, before keys and values go into
    a KV cache; `attend_options` for the options of `clearhead.attend`; `transform_context` once
    every head has its context.

    Example:
        >>> import torch, clearhead as ch
        >>> class Doubled(ch.layers.Part):
        ...     def transform_context(self, context, x):
        ...         return 2 * context
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, output_bias=False, parts=[Doubled()])
        >>> plain = ch.MultiHeadAttention(8, num_heads=2, output_bias=False)
        >>> plain.load_state_dict(layer.state_dict())
        <All keys matched successfully>
        >>> x = torch.randn(1, 3, 8)
        >>> torch.allclose(layer(x), 2 * plain(x))
        True
    """

    def transform_query_key(
        self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return query and key as they are to be compared; unchanged by default.

        Args:
            query: (batch, num_heads, query_len, head_dim).
            key: (batch, num_kv_heads, kv_len, head_dim).
            query_positions: int64, (query_len,) or (batch, query_len), in tokens.
            key_positions: the positions of the keys, in the same form.
        """
        return query, key

    def transform_value(self, value: Tensor) -> Tensor:
        """Return the value that the weights are multiplied with; unchanged by default.

        Args:
            value: (batch, num_kv_heads, kv_len, value_head_dim).
        """
        return value

    def attend_options(self, query_positions: Tensor, key_positions: Tensor) -> Mapping[str, Any]:
        """Return options for `clearhead.attend` by name: bias, scale, softcap, sinks; {} by default.

        Args:
            query_positions: int64, (query_len,) or (batch, query_len), in tokens.
            key_positions: the positions of all keys, including those in a cache.
        """
        return {}

    def transform_context(self, context: Tensor, x: Tensor) -> Tensor:
        """Return the context of each head for the output projection; unchanged by default.

        Args:
            context: (batch, num_heads, query_len, value_head_dim).
            x: the input that the queries are projected from, (batch, query_len, embed_dim).
        """
        return context


@with_hints
class Scale(Part):
    """A scale of the scores other than 1/√head_dim.

    Args:
        scale: the number.

    Raises:
        ArgumentTypeError: code `scale.type`, unless it is a number.

    Example:
        >>> Scale(0.5).attend_options(None, None)
        {'scale': 0.5}
    """

    def __init__(self, scale: float) -> None:
        super().__init__()
        if not is_number(scale):
            raise ArgumentTypeError(
                "scale.type", f"scale must be a number; got {type(scale).__name__}."
            )
        self.scale = float(scale)

    def attend_options(self, query_positions: Tensor, key_positions: Tensor) -> Mapping[str, Any]:
        """Return {"scale": the number}; the arguments are not used."""
        return {"scale": self.scale}

    def extra_repr(self) -> str:
        """Return the scale, for `repr`."""
        return f"{self.scale:g}"


@with_hints
class Softcap(Part):
    """A softcap, the bound on the scores: softcap · tanh(score / softcap).

    Source: Gemma 2 (2024, https://arxiv.org/abs/2408.00118), after Bello et al. (2016,
    https://arxiv.org/abs/1611.09940).

    Args:
        softcap: the bound, above 0.

    Raises:
        ArgumentError: code `softcap.value`.

    Example:
        >>> Softcap(50.0).attend_options(None, None)
        {'softcap': 50.0}
    """

    def __init__(self, softcap: float) -> None:
        super().__init__()
        if not is_number(softcap) or not 0 < softcap < float("inf"):
            raise ArgumentError(
                "softcap.value", f"softcap must be a finite number above 0; got {shown(softcap)}."
            )
        self.softcap = float(softcap)

    def attend_options(self, query_positions: Tensor, key_positions: Tensor) -> Mapping[str, Any]:
        """Return {"softcap": the bound}; the arguments are not used."""
        return {"softcap": self.softcap}

    def extra_repr(self) -> str:
        """Return the bound, for `repr`."""
        return f"{self.softcap:g}"


@with_hints
class Sinks(Part):
    """A learned score per head that takes a share of the weights and has no value.

    Source: gpt-oss (2025, https://arxiv.org/abs/2508.10925), after Xiao et al. (2023,
    https://arxiv.org/abs/2309.17453).

    Args:
        num_heads: number of query heads.

    Attributes:
        scores: (num_heads,), zeros at first.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, parts=[ch.layers.Sinks(2)])
        >>> layer.weights(torch.randn(1, 1, 8)).dense().flatten().detach() < 1
        tensor([True, True])
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        check_sizes(num_heads=num_heads)
        self.scores = nn.Parameter(torch.zeros(num_heads))

    def attend_options(self, query_positions: Tensor, key_positions: Tensor) -> Mapping[str, Any]:
        """Return {"sinks": the trained scores, (num_heads,)}; the arguments are not used."""
        return {"sinks": self.scores}

    def extra_repr(self) -> str:
        """Return the number of heads, for `repr`."""
        return str(len(self.scores))


@with_hints
class ScoreBias(Part):
    """A bias that is added to the scores, as a description such as `clearhead.alibi(num_heads)`.

    A trained bias needs a part of its own, since a description is not saved with the weights.

    Args:
        bias: the description.

    Raises:
        ArgumentTypeError: code `bias.type`, for anything else, or one with trained numbers in it.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, parts=[ch.layers.ScoreBias(ch.alibi(2))])
        >>> layer(torch.randn(1, 5, 8)).shape
        torch.Size([1, 5, 8])
    """

    def __init__(self, bias: Bias) -> None:
        super().__init__()
        if not isinstance(bias, Bias) or bias.requires_grad:
            raise ArgumentTypeError(
                "bias.type",
                "bias must be a description in which nothing is trained, such as clearhead.alibi; "
                f"got {bias.describe() if isinstance(bias, Bias) else type(bias).__name__}.",
            )
        self.bias = bias

    def attend_options(self, query_positions: Tensor, key_positions: Tensor) -> Mapping[str, Any]:
        """Return {"bias": the description}; the arguments are not used."""
        return {"bias": self.bias}

    def extra_repr(self) -> str:
        """Return the description of the bias, for `repr`."""
        return self.bias.describe()


@with_hints
class OutputGate(Part):
    """A gate: the context of each head times a sigmoid of a projection of the input.

    Source: Qiu et al., 2025, https://arxiv.org/abs/2505.06708.

    Args:
        embed_dim: width of the input.
        num_heads: number of query heads.
        value_head_dim: width of a value; None for a single gate per head.
        bias: whether the projection has a bias.

    Raises:
        ArgumentError, ArgumentTypeError: codes `argument.size`, `argument.type`, `bias.type`.
        ShapeError: code `gate.shape`, for contexts of other heads or widths.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, parts=[ch.layers.OutputGate(8, 2, 4)])
        >>> layer(torch.randn(1, 5, 8)).shape
        torch.Size([1, 5, 8])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        value_head_dim: int | None = None,
        *,
        bias: bool = False,
    ) -> None:
        super().__init__()
        width = 1 if value_head_dim is None else value_head_dim
        check_sizes(embed_dim=embed_dim, num_heads=num_heads, value_head_dim=width)
        check_bool("bias", bias)
        self.num_heads = num_heads
        self.width = width
        self.projection = nn.Linear(embed_dim, num_heads * width, bias=bias)

    def transform_context(self, context: Tensor, x: Tensor) -> Tensor:
        """Return a new context, each head times its gate of x.

        Raises ShapeError, code `gate.shape`, for other heads, widths, samples or tokens.
        """
        batch, heads, tokens, width = context.shape
        expected = (batch, tokens, self.projection.in_features)
        if heads != self.num_heads or x.shape != expected or self.width not in (1, width):
            raise ShapeError(
                "gate.shape",
                f"this gate is for {self.num_heads} heads of width {self.width} and an x of shape "
                f"{expected}; got {heads} of width {width}, and x of shape {tuple(x.shape)}.",
            )
        gate = torch.sigmoid(self.projection(x))
        return context * gate.unflatten(-1, (self.num_heads, self.width)).transpose(1, 2)


def check_head_dim(part: Part, heads: Tensor, head_dim: int) -> None:
    """Raise ShapeError, code `part.width`, unless the heads have the width that a part was made for."""
    if heads.shape[-1] != head_dim:
        raise ShapeError(
            "part.width",
            f"{type(part).__name__} was made for head_dim={head_dim}; the heads of this layer have "
            f"width {heads.shape[-1]}.",
        )


def check_eps(eps: float) -> None:
    """Raise ArgumentError, code `norm.eps`, unless eps is a number with 0 ≤ eps < 1."""
    if not is_number(eps) or not 0 <= eps < 1:
        raise ArgumentError(
            "norm.eps", f"eps must be a number from 0 to below 1; got {shown(eps)}."
        )


def check_parts(parts: Sequence[Part]) -> Iterable[Part]:
    """Return the parts as an nn.ModuleList; () if there are none, so that the layer has no such module.

    Raises:
        ArgumentTypeError: code `parts.type`, for anything but a sequence of parts.
    """
    if not isinstance(parts, Sequence) or not all(isinstance(each, Part) for each in parts):
        given = parts if isinstance(parts, Sequence) and not isinstance(parts, str) else [parts]
        kinds = ", ".join(type(each).__name__ for each in given)
        raise ArgumentTypeError(
            "parts.type", f"parts must be a sequence of clearhead.layers.Part; got {kinds}."
        )
    return cast(Iterable[Part], nn.ModuleList(parts)) if parts else ()


def options_of(
    parts: Iterable[Part], query_positions: Tensor, key_positions: Tensor
) -> dict[str, Any]:
    """Return the options of all parts for `attend`, by name; {} without parts.

    Raises:
        ArgumentError: code `parts.twice`, if two of them set the same option.
    """
    found: dict[str, tuple[Any, str]] = {}
    for part in parts:
        for name, value in part.attend_options(query_positions, key_positions).items():
            if name in found:
                raise ArgumentError(
                    "parts.twice",
                    f"one part may set the {name}; {found[name][1]} and {type(part).__name__} do.",
                )
            found[name] = value, type(part).__name__
    return {name: value for name, (value, _) in found.items()}
