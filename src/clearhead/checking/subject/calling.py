"""Call a subject: by `takes`, by the kind of PyTorch's own modules, by its parameters."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.foreign_names import OUTPUTS
from clearhead._common.torch_internals import is_concrete
from clearhead._text import format_bytes
from clearhead.checking.subject.signatures import (
    Parameters,
    SideNames,
    context_of,
    filled,
    mask_of_tokens,
    needed,
    of_call,
    sides_of,
)

ENCODERS = (nn.TransformerEncoderLayer, nn.TransformerEncoder)


def call(run: Any, takes: str, tensors: Sequence[Tensor], causal: bool) -> tuple[Tensor, Any]:
    """Return the output of a call, and the second value that it returned (None without one).

    PyTorch's own modules, and those that take an `attention_mask`, have no mask of their own: if `causal`, they are
    passed one. Inputs are transposed for a module with the tokens first. Raises what the code raises, and TypeError if
    it returns no tensor.
    """
    if isinstance(run, nn.MultiheadAttention) and not takes.startswith("qkv"):
        return _multi_head(run, takes, tensors, causal)
    if isinstance(run, ENCODERS):
        layer = run if isinstance(run, nn.TransformerEncoderLayer) else run.layers[0]
        batch_first = layer.self_attn.batch_first  # type: ignore[union-attr]
        x = tensors[0] if batch_first else tensors[0].transpose(0, 1)
        padding = None if takes != "x,mask" else ~tensors[1]
        output = run(x, _future(tensors[0], causal), src_key_padding_mask=padding)
        return (output if batch_first else output.transpose(0, 1)), None
    named = _arguments(run, takes, tensors, causal)
    return output_of(run(*tensors) if named is None else run(**named))


def by_heads(run: Any, axes: int, tensors: Sequence[Tensor]) -> Tensor:
    """Call a function of (batch, len, dim), or (len, dim) if `axes` is not 3, per head.

    Return (batch, heads, len, dim). A key head serves a group of query heads; a mask (batch, 1, …) all of them. Raises
    TypeError as `output_of`.
    """
    query, key, value, *mask = tensors
    groups = query.shape[1] // key.shape[1]
    heads = []
    for head in range(query.shape[1]):
        other = head // groups
        parts = [query[:, head], key[:, other], value[:, other], *(each[:, 0] for each in mask)]
        samples = zip(*parts, strict=True)
        heads.append(
            output_of(run(*parts))[0]
            if axes == 3
            else torch.stack([output_of(run(*each))[0] for each in samples])
        )
    return torch.stack(heads, 1)


DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

LARGEST_VIEW = 1 << 28
"""Largest size in bytes of an output, counted as if an expanded tensor were copied."""


def output_of(found: Any) -> tuple[Tensor, Any]:
    """Return the output in the result of a call, and the second value of a sequence (None without one).

    A mapping or dataclass gives its usual entry, else its first two values.

    Raises:
        TypeError: if it is no dense floating-point tensor with values, or an expanded one that is very large.
    """
    if is_dataclass(found) and not isinstance(found, type | Mapping):
        found = {each.name: getattr(found, each.name) for each in fields(found)}
    if isinstance(found, Mapping):
        names = [name for name in OUTPUTS if isinstance(found.get(name), Tensor)]
        found = [found[names[0]]] if names else list(found.values())
    rest = None
    if isinstance(found, Sequence) and found:
        found, rest = found[0], found[1] if len(found) > 1 else None
    if not isinstance(found, Tensor):
        kind = type(found).__name__
        raise TypeError(f"a tensor was expected, or a tuple that begins with one; got {kind}")
    if found.is_nested or found.layout != torch.strided or found.dtype not in DTYPES:
        kind = "a nested tensor" if found.is_nested else f"{found.dtype}, {found.layout}"
        raise TypeError(f"a dense tensor of floating-point numbers was expected; got {kind}")
    if not is_concrete(found):
        raise TypeError("a tensor that holds numbers was expected; got one that has a shape alone")
    size = found.numel() * found.element_size()
    if size > LARGEST_VIEW and size > found.untyped_storage().nbytes():
        raise TypeError(
            "a tensor that fits into memory was expected; got an expanded one of "
            f"{list(found.shape)}, which would take {format_bytes(size)}"
        )
    return found, rest


def _future(x: Tensor, causal: bool) -> Tensor | None:
    """Return the mask of PyTorch's modules, bool (tokens, tokens), True at later keys; None if not causal."""
    return torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).triu(1) if causal else None


def _multi_head(
    run: nn.MultiheadAttention, takes: str, tensors: Sequence[Tensor], causal: bool
) -> tuple[Tensor, Any]:
    """Return the output of nn.MultiheadAttention, with tokens on axis -2, and its weights for each head.

    The inputs are transposed unless it is batch_first; the causal and the padding mask are passed in its form.
    """
    padding = ~tensors[1] if takes == "x,mask" else None
    x, context = tensors[0], tensors[1] if takes == "x,context" else tensors[0]
    turned = x.ndim == 3 and not run.batch_first
    if turned:
        x, context = x.transpose(0, 1), context.transpose(0, 1)
    output, weights = run(
        x,
        context,
        context,
        key_padding_mask=padding,
        attn_mask=_future(tensors[0], causal),
        average_attn_weights=False,
    )
    return (output.transpose(0, 1) if turned else output), weights


def _arguments(
    run: Any, takes: str, tensors: Sequence[Tensor], causal: bool
) -> dict[str, Any] | None:
    """Return arguments by name where a call by position would not do; None to pass the tensors by position.

    Optional masks and flags are left out; `causal` makes a mask for the `attention_mask` of a module that takes
    `hidden_states`, and nothing else.
    """
    x = tensors[0]
    names = of_call(run)
    if isinstance(run, nn.Module) and "hidden_states" in names:
        return _of_transformers(run, names, takes, tensors, causal)
    sides = sides_of(names)
    own = sides is not None and [name for name in names if name in sides] != list(sides)
    if sides is not None and (isinstance(run, nn.Module) or own):
        named = _by_sides(names, sides, takes, tensors)
        return None if named is None else {**named, **(filled(names, named, x, causal) or {})}
    second = {"x,mask": mask_of_tokens, "x,context": context_of}.get(takes)
    if second is not None and len(names) > 1 and second(list(names)[1:2]) is None:
        name = second(list(names)[1:])
        if name is not None:
            return {next(iter(names)): tensors[0], name: tensors[1]}
    named = dict(zip(names, tensors, strict=False))
    if len(named) < len(tensors) or set(needed(names)) <= set(named):
        return None
    more = filled(names, named, x, causal)
    return None if more is None else {**named, **more}


def _by_sides(
    names: Parameters, sides: SideNames, takes: str, tensors: Sequence[Tensor]
) -> dict[str, Any] | None:
    """Return query, key and value by their names: x for all of them, or the context for two, unless takes is "qkv".

    None if a mask is to be passed, and no parameter is one.
    """
    if takes.startswith("qkv"):
        given = tensors[:3]
    else:
        other = tensors[1] if takes == "x,context" else tensors[0]
        given = tensors[0], other, other
    named: dict[str, Any] = dict(zip(sides, given, strict=False))
    if takes.endswith("mask"):
        mask = "key_padding_mask" if "key_padding_mask" in names else mask_of_tokens(list(names))
        if mask is None:
            return None
        named[mask] = ~tensors[-1] if mask == "key_padding_mask" else tensors[-1]
    return named


def _of_transformers(
    run: nn.Module,
    names: Parameters,
    takes: str,
    tensors: Sequence[Tensor],
    causal: bool,
) -> dict[str, Any]:
    """Return the arguments of a module whose parameters are named as in transformers, by name.

    attention_mask is added to the scores for their modules, or if causal or required; "x,mask" of other code passes the
    mask as it is, "x,context" none. Positions and other required values are added as `filled` makes them.
    """
    x = tensors[0]
    named: dict[str, Any] = {"hidden_states": x}
    theirs = of_transformers(run)
    mask = names.get("attention_mask")
    if mask is not None and takes == "x,mask" and not theirs:
        # Code of another with their names: it takes what is said that it takes.
        named["attention_mask"] = tensors[1]
    elif mask is not None and (theirs or causal or mask.default is inspect.Parameter.empty):
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        visible = (seen.tril() if causal else seen).expand(x.shape[0], 1, -1, -1)
        if takes == "x,mask":
            visible = visible & tensors[1][:, None, None, :]
        bias = torch.zeros(visible.shape, dtype=x.dtype)
        named["attention_mask"] = bias.masked_fill(~visible, torch.finfo(x.dtype).min)
    if "position_ids" in names:
        named["position_ids"] = torch.arange(x.shape[1])[None].expand(x.shape[0], -1)
    if takes == "x,context":
        other = context_of(list(names))
        if other is not None:
            named[other] = tensors[1]
            named.pop("attention_mask", None)
    return {**named, **(filled(names, named, x, causal) or {})}


def may_hide_by_itself(run: Any) -> bool:
    """Return True for a module not of transformers with parameters `hidden_states` and `attention_mask=None`.

    Such a module may hide the future itself, which the caller tests. False for anything but a module.
    """
    if not isinstance(run, nn.Module) or of_transformers(run):
        return False
    names = of_call(run)
    mask = names.get("attention_mask")
    return "hidden_states" in names and mask is not None and mask.default is None


def of_transformers(run: nn.Module) -> bool:
    """Return True for a module whose class or a parent class is defined in transformers."""
    return any(each.__module__.startswith("transformers.") for each in type(run).__mro__)


def unfilled_mask(run: Any, takes: str) -> str | None:
    """Return the parameter that could take a causal mask, of a module that is called without one.

    None if there is none. None also for a function, PyTorch's own modules, another `takes` than "x" and "x2d", and a
    module whose attribute says that it is causal.
    """
    if takes not in ("x", "x2d") or not isinstance(run, nn.Module):
        return None
    if isinstance(run, (nn.MultiheadAttention, *ENCODERS)):
        return None
    if any(getattr(run, flag, None) is True for flag in ("causal", "is_causal")):
        return None
    names = of_call(run)
    handed = {"attention_mask"} if "hidden_states" in names else set()
    masks = [name for name in names if "mask" in name and name not in handed]
    other = ("pad", "head_mask", "valid")
    return next((name for name in masks if not any(word in name for word in other)), None)
