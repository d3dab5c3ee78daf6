"""The linear maps of a layer or a rung, with the numbers that they multiply."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from clearhead.attention.problem import Problem
from clearhead.ladder import ConcatenatedHeads, SelfAttention, SelfAttentionWithLayers, SplitHeads
from clearhead.ladder.rung import Rung
from clearhead.layers.inputs import split_heads
from clearhead.layers.multi_head_attention import MultiHeadAttention
from clearhead.layers.parts import Part
from clearhead.layers.query_key_norm import QueryKeyNorm
from clearhead.layers.rotary import Rotary

INPUTS = ("query", "key", "value")


@dataclass(frozen=True, eq=False)
class TracedProjection:
    """One linear map: the stage is `input @ weight + bias`, head by head.

    Attributes:
        input: (..., tokens, width): x, source, or, of the output, the contexts of all heads side by side.
        weight: (num_heads, width, head_dim), the transpose of nn.Linear's; (width, head_dim) where there
            are no heads, and (width, output_dim) of the output.
        bias: (num_heads, head_dim), or (head_dim,); None without one.
        parts: the parts of the layer that change query, key or value afterwards, such as rotary
            positions, or, of the output, the contexts before; empty where none does.
        changes: how each of these parts comes to its number, in order; None where that of one is not known.

    Example:
        >>> layer = ch.MultiHeadAttention(8, num_heads=2)
        >>> steps = ch.trace(layer, torch.randn(1, 3, 8))
        >>> made = steps.projections["query"]
        >>> torch.allclose(made.input[:, None] @ made.weight, steps["query"], atol=1e-6)
        True
    """

    input: Tensor
    weight: Tensor
    bias: Tensor | None = None
    parts: str = ""
    changes: tuple[dict[str, Any], ...] | None = None

    def split(self, num_heads: int) -> "TracedProjection":
        """The same map head by head, of one whose columns are those of all heads side by side."""
        weight = self.weight.unflatten(-1, (num_heads, -1)).movedim(-2, -3)
        bias = None if self.bias is None else self.bias.unflatten(-1, (num_heads, -1))
        return replace(self, weight=weight, bias=bias)


@torch.no_grad()
def of_layer(
    layer: MultiHeadAttention,
    problem: Problem,
    inputs: dict[str, Tensor],
    context: Tensor,
    output: Tensor,
    *,
    is_cached: bool,
) -> dict[str, TracedProjection]:
    """Return the linear maps of a layer by stage, without those that are not plain, such as an adapter's, and
    without those of keys and values if a cache has some of them.

    Args:
        layer: the layer.
        problem: its query, key and value, after parts and cache.
        inputs: x, and source if there is one.
        context: (batch, num_heads, tokens, value_head_dim).
        output: (batch, tokens, output_dim).
        is_cached: keys and values are those of a cache.
    """
    x = inputs["x"]
    source = inputs.get("source", x)
    parts = ", ".join(type(part).__name__ for part in layer.parts)
    found, names = {}, dict(zip(INPUTS, (x, source, source), strict=True))
    if type(layer)._project is not MultiHeadAttention._project:
        names = {}
    elif is_cached:
        names = {"query": x}
    for name, given in names.items():
        stage, linear = getattr(problem, name), getattr(layer, f"{name}_projection")
        heads, dim = stage.shape[-3], stage.shape[-1]
        if not _is_plain(linear) or linear.out_features != heads * dim:
            continue
        made = split_heads(linear(with_batch(given, 3)), heads, dim, name)
        same = _equal(made, stage)
        if same or parts:
            made_by = _of_linear(linear, given, "" if same else parts).split(heads)
            found[name] = replace(made_by, changes=None if same else _changes(layer.parts, name))
    plain = context.transpose(1, 2).flatten(2)
    for part in layer.parts:
        context = part.transform_context(context, with_batch(x, 3))
    joined = context.transpose(1, 2).flatten(2)
    linear = layer.output_projection
    if _is_plain(linear) and _equal(linear(joined), output):
        changed = "" if _equal(joined, plain) else parts
        found["output"] = _of_linear(linear, joined if x.ndim == 3 else joined[0], changed)
    return found


@torch.no_grad()
def of_rung(rung: Rung, inputs: dict[str, Tensor], joined: Tensor) -> dict[str, TracedProjection]:
    """The linear maps of a rung by stage; `joined` are the contexts of all heads side by side."""
    x = inputs["x"]
    source = inputs.get("source", x)
    if isinstance(rung, ConcatenatedHeads):
        heads = [of_rung(head, inputs, joined) for head in cast(Iterable[Rung], rung.heads)]
        return {
            name: TracedProjection(
                heads[0][name].input,
                torch.stack([head[name].weight for head in heads]),
                _maybe_stack([head[name].bias for head in heads]),
            )
            for name in INPUTS
            if all(name in head for head in heads)
        }
    found = {}
    for name, given in zip(INPUTS, (x, source, source), strict=True):
        if type(rung).project is SelfAttention.project:
            found[name] = TracedProjection(given, getattr(rung, f"{name}_weight").detach())
        elif type(rung).project is SelfAttentionWithLayers.project:
            found[name] = _of_linear(getattr(rung, f"{name}_projection"), given)
    if isinstance(rung, SplitHeads):
        found = {name: each.split(rung.num_heads) for name, each in found.items()}
        found["output"] = _of_linear(rung.output_projection, joined)
    return found


def with_batch(tensor: Tensor, axes: int) -> Tensor:
    """Return the tensor with `axes` axes; a batch axis is added in front if it has one fewer."""
    return tensor if tensor.ndim == axes else tensor[None]


def _changes(parts: Iterable[Any], name: str) -> tuple[dict[str, Any], ...] | None:
    """The change that each part makes to a query or a key: it turns pairs by an angle, which both ends of it
    show, or divides a row by the root of its mean square. None where one does something else."""
    found: list[dict[str, Any]] = []
    for part in parts:
        kind = type(part)
        if name == "value" or kind.transform_query_key is Part.transform_query_key:
            if name == "value" and kind.transform_value is not Part.transform_value:
                return None
        elif kind.transform_query_key is Rotary.transform_query_key:
            found.append({"part": kind.__name__, "layout": part.layout, "turned": part.rotated_dim})
        elif kind.transform_query_key is QueryKeyNorm.transform_query_key and not part.is_wide:
            norm = getattr(part, f"{name}_norm")
            eps = torch.finfo(norm.weight.dtype).eps if norm.eps is None else norm.eps
            found.append({"part": kind.__name__, "eps": eps, "weight": norm.weight.tolist()})
        else:
            return None
    return tuple(found)


def _of_linear(linear: nn.Linear, given: Tensor, parts: str = "") -> TracedProjection:
    """Return the projection that a linear layer made of `given`."""
    bias = None if linear.bias is None else linear.bias.detach()
    return TracedProjection(given.detach(), linear.weight.detach().T, bias, parts)


def _is_plain(linear: Any) -> bool:
    """Its output is input @ weight.T + bias, of numbers that no ranks share, as those of a DTensor."""
    if not isinstance(linear, nn.Linear) or type(linear).forward is not nn.Linear.forward:
        return False
    return not linear._forward_hooks and type(linear.weight) in (Tensor, nn.Parameter)


def _equal(one: Tensor, other: Tensor) -> bool:
    """Equal to the last bit; NaN equals NaN."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _maybe_stack(biases: list[Tensor | None]) -> Tensor | None:
    """Return the biases as one tensor, or None if one is missing."""
    given = [bias for bias in biases if bias is not None]
    return torch.stack(given) if given and len(given) == len(biases) else None
