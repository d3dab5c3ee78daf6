"""The output projection of a module that attended, found by the names that libraries use."""

from torch import Tensor, nn

from clearhead._common import foreign_names
from clearhead._common.foreign_names import ProjectionNames, is_output
from clearhead._text import shown
from clearhead.errors import ArgumentTypeError, UnsupportedError
from clearhead.layers.attention_layer import AttentionLayer
from clearhead.layers.converting.weights import weights_of
from clearhead.layers.latent_attention import LatentAttention
from clearhead.layers.parts import Part
from clearhead.matrix.head_numbers import numbers_of_heads
from clearhead.matrix.head_results import Contexts
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.summary import Summary

OUTPUTS = frozenset(
    name
    for each in vars(foreign_names).values()
    if isinstance(each, ProjectionNames)
    for name in each.output
)
"""The names of output projections that other libraries have."""


def output_projection(
    model: object, path: str, kept: AttentionMatrix | Contexts | Summary, width: int
) -> tuple[Tensor, Tensor | None]:
    """Return the output projection of the kept heads as its weight and bias; the bias is None if there is none.

    The weight is (output_dim, num_heads · value_head_dim).

    Args:
        model: the model that was watched.
        path: of the module that attended.
        kept: what was kept of one of its calls.
        width: value_head_dim.

    Raises:
        ArgumentTypeError: code `norms.model`.
        UnsupportedError: code `norms.projection`, where there is none that is known.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = torch.nn.MultiheadAttention(6, num_heads=2)
        >>> with ch.watch(layer, values=True) as seen:
        ...     output = layer(*torch.randn(3, 5, 6))
        >>> output_projection(layer, "", seen[0], width=3)[0].shape
        torch.Size([6, 6])
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(
            "norms.model",
            f"model must be the torch.nn.Module that was watched; got {shown(model)}.",
        )
    try:
        module = model.get_submodule(path)
    except AttributeError as error:
        raise _unknown(path, f"{type(model).__name__} has no such module") from error
    holders = _holders(model, path)
    holder = next((each for each in holders if _projections(each)), holders[-1])
    _check_context(path, holder, kept)
    if not _projections(holder):
        held = ", ".join(name for name, _ in holder.named_children()) or "no module"
        kind = type(module).__name__
        raise _unknown(path, f"{kind} holds {held}, and none by a name of an output projection")
    name, projection = _projections(holder)[0]
    read = weights_of(projection)
    if isinstance(read, str):
        raise _unknown(path, f"{name} {read}")
    weight, bias = read
    heads = None if kept.heads is None else numbers_of_heads(kept)
    total, rest = divmod(weight.shape[1], max(width, 1))
    fits = total == kept.num_heads if heads is None else total > max(heads)
    if not width or rest or not fits:
        seen = f"{kept.num_heads} heads of values {width} wide were seen"
        raise _unknown(path, f"{name} reads {weight.shape[1]} numbers, and {seen}")
    if heads is None:
        return weight, bias
    return weight.unflatten(1, (total, width))[:, heads].flatten(1), bias


def projection_of(model: nn.Module, path: str) -> nn.Module | None:
    """Return the output projection of a module that attended, or of the attention around it; None if none is known.

    AttributeError for a path that the model does not have.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2)
        >>> projection_of(layer, "") is layer.output_projection
        True
    """
    found = [each for one in _holders(model, path) for each in _projections(one)]
    return found[0][1] if found else None


def attention_at(model: nn.Module, path: str) -> nn.Module:
    """Return the attention that a module is a part of, which holds its projections, or the module itself.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2)
        >>> attention_at(layer, "") is layer
        True
    """
    return _holders(model, path)[-1]


def _holders(model: nn.Module, path: str) -> list[nn.Module]:
    """Return a list of the module and, if its parent is named as an attention, as in BERT, of the parent."""
    module = model.get_submodule(path)
    parent = model.get_submodule(path.rpartition(".")[0]) if path else None
    is_attention = parent is not None and "Attention" in type(parent).__name__
    return [module, parent] if parent is not None and is_attention else [module]


def _projections(holder: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the output projections in a module with their names, the least deep first; [] if there is none."""
    found = [(name, each) for name, each in holder.named_modules() if _is_output(name, each)]
    return sorted(found, key=lambda pair: pair[0].count("."))


def _is_output(name: str, module: nn.Module) -> bool:
    """Return True if a module has a weight, and its name is that of an output projection."""
    ends = name.rpartition(".")[2], ".".join(name.split(".")[-2:])
    named = is_output(ends[0]) or not OUTPUTS.isdisjoint(ends)
    return bool(name) and named and hasattr(module, "weight")


def _check_context(
    path: str, holder: nn.Module, kept: AttentionMatrix | Contexts | Summary
) -> None:
    """Raise UnsupportedError if a layer of this package changes the context before its output projection.

    It does by a part, or by latents in a cache. Modules of other libraries are not checked.
    """
    for each in holder.modules():
        if not isinstance(each, AttentionLayer):
            continue
        if any(type(part).transform_context is not Part.transform_context for part in each.parts):
            raise _unknown(path, "a part of the layer changes the context before its projection")
        # Projected up, every head has keys of its own.
        fewer = not isinstance(kept, Contexts) and kept.num_kv_heads < kept.num_heads
        if isinstance(each, LatentAttention) and fewer:
            raise _unknown(path, "its values are the latents of a cache, and not projected up")


def _unknown(path: str, reason: str) -> UnsupportedError:
    """Return the UnsupportedError, code `norms.projection`, for a module whose output projection is unknown."""
    return UnsupportedError(
        "norms.projection",
        f"the output projection of {shown(path)} is not known: {reason}. norms() of the matrix takes its weight, "
        "or none for the norms of the values.",
    )
