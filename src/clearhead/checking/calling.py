"""How a subject is called: by `takes`, by the kind of PyTorch's own modules, by its parameters."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

# What people call the output where it has a name, and the three inputs.
OUTPUTS = ("last_hidden_state", "output", "out", "attn_output", "hidden_states", "context", "x")
SIDES = {
    **dict.fromkeys(("q", "query", "queries"), "query"),
    **dict.fromkeys(("k", "key", "keys"), "key"),
    **dict.fromkeys(("v", "value", "values"), "value"),
}


def call(run: Any, takes: str, tensors: Sequence[Tensor], causal: bool) -> tuple[Tensor, Any]:
    """The output of a call, and what came with it.

    PyTorch's own modules, and those that take an `attention_mask`, are no attention with a mask of
    their own; where causal is declared, the mask is handed to them.
    """
    if takes.startswith("qkv") or takes == "decode":
        return _output(run(*tensors))
    if isinstance(run, nn.MultiheadAttention):
        return _multi_head(run, takes, tensors, causal)
    if isinstance(run, nn.TransformerEncoderLayer | nn.TransformerEncoder):
        layer = run if isinstance(run, nn.TransformerEncoderLayer) else run.layers[0]
        batch_first = layer.self_attn.batch_first  # type: ignore[union-attr]
        x = tensors[0] if batch_first else tensors[0].transpose(0, 1)
        padding = None if takes != "x,mask" else ~tensors[1]
        output = run(x, _hidden(x.shape, tensors[0], causal), src_key_padding_mask=padding)
        return (output if batch_first else output.transpose(0, 1)), None
    if isinstance(run, nn.Module):
        named = _by_parameters(run, takes, tensors, causal)
        if named is not None:
            return _output(_called(run, tensors[0], named))
        named = _by_sides(run, takes, tensors, causal)
        if named is not None:
            return _output(run(**named))
    return _output(run(*tensors))


def by_heads(run: Any, axes: int, tensors: Sequence[Tensor]) -> Tensor:
    """The output of a function of (batch, len, dim), or (len, dim), called head by head."""
    query, key, value, *mask = tensors
    groups = query.shape[1] // key.shape[1]
    heads = []
    for head in range(query.shape[1]):
        other = head // groups
        parts = [query[:, head], key[:, other], value[:, other], *(each[:, 0] for each in mask)]
        samples = zip(*parts, strict=True)
        heads.append(
            _output(run(*parts))[0]
            if axes == 3
            else torch.stack([_output(run(*each))[0] for each in samples])
        )
    return torch.stack(heads, 1)


def _output(found: Any) -> tuple[Tensor, Any]:
    if isinstance(found, Tensor):
        return found, None
    if hasattr(found, "last_hidden_state"):
        return found.last_hidden_state, None
    if is_dataclass(found):
        found = {each.name: getattr(found, each.name) for each in fields(found)}
    if isinstance(found, Mapping):
        names = [name for name in OUTPUTS if isinstance(found.get(name), Tensor)]
        found = [found[names[0]]] if names else list(found.values())
    if isinstance(found, Sequence) and found and isinstance(found[0], Tensor):
        return found[0], found[1] if len(found) > 1 else None
    raise TypeError(f"a tensor was expected, or a tuple that begins with one; got {type(found)}")


def _hidden(shape: Sequence[int], x: Tensor, causal: bool) -> Tensor | None:
    """PyTorch's modules are told what to hide."""
    if not causal:
        return None
    tokens = x.shape[-2]
    return torch.triu(torch.ones(tokens, tokens, dtype=torch.bool), diagonal=1)


def _multi_head(
    run: nn.MultiheadAttention, takes: str, tensors: Sequence[Tensor], causal: bool
) -> tuple[Tensor, Any]:
    hidden = _hidden(tensors[0].shape, tensors[0], causal)
    padding = ~tensors[1] if takes == "x,mask" else None
    batched = tensors[0].ndim == 3
    x = tensors[0]
    context = tensors[1] if takes == "x,context" else x
    if batched and not run.batch_first:
        x, context = x.transpose(0, 1), context.transpose(0, 1)
    output, weights = run(
        x, context, context, key_padding_mask=padding, attn_mask=hidden, average_attn_weights=False
    )
    return (output.transpose(0, 1) if batched and not run.batch_first else output), weights


def _by_parameters(
    run: nn.Module, takes: str, tensors: Sequence[Tensor], causal: bool
) -> dict[str, Any] | None:
    """The call of a module whose parameters are those of transformers; None for any other."""
    parameters = _parameters(run)
    if "hidden_states" not in parameters:
        return None
    x = tensors[0]
    named: dict[str, Any] = {}
    theirs = _of_transformers(run)
    if "attention_mask" in parameters and takes == "x,mask" and not theirs:
        # Somebody's own code with their names: it takes what is said that it takes.
        named["attention_mask"] = tensors[1]
    elif "attention_mask" in parameters and (
        theirs or causal or parameters["attention_mask"].default is inspect.Parameter.empty
    ):
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        if causal:
            seen = seen.tril()
        visible = seen.expand(x.shape[0], 1, -1, -1)
        if takes == "x,mask":
            visible = visible & tensors[1][:, None, None, :]
        bias = torch.zeros(visible.shape, dtype=x.dtype)
        named["attention_mask"] = bias.masked_fill(~visible, torch.finfo(x.dtype).min)
    if "position_ids" in parameters:
        named["position_ids"] = torch.arange(x.shape[1])[None].expand(x.shape[0], -1)
    if takes == "x,context":
        for name in ("encoder_hidden_states", "key_value_states", "context"):
            if name in parameters:
                named[name] = tensors[1]
                named.pop("attention_mask", None)
                break
    return named


def _by_sides(
    run: nn.Module, takes: str, tensors: Sequence[Tensor], causal: bool
) -> dict[str, Any] | None:
    """The call of a module that wants query, key and value by these names; None for any other.

    A mask that is wanted beside them is none, unless one is declared: what it should look like is
    not known then.
    """
    parameters = _parameters(run)
    sides = {SIDES[name]: name for name in parameters if name in SIDES}
    if len(sides) < 3:
        return None
    named: dict[str, Any] = dict.fromkeys(sides.values(), tensors[0])
    if takes == "x,context":
        named |= {sides["key"]: tensors[1], sides["value"]: tensors[1]}
    if takes == "x,mask":
        if "key_padding_mask" not in parameters:
            return None
        named["key_padding_mask"] = ~tensors[1]
    for name, parameter in parameters.items():
        wanted = name not in named and parameter.default is inspect.Parameter.empty
        if wanted and "mask" in name and not causal:
            named[name] = None
    return named


def optional_mask(run: Any) -> bool:
    """Whether somebody's own module with the parameters of transformers takes a mask, or none."""
    if not isinstance(run, nn.Module) or _of_transformers(run):
        return False
    parameters = _parameters(run)
    mask = parameters.get("attention_mask")
    return "hidden_states" in parameters and mask is not None and mask.default is None


def _of_transformers(run: nn.Module) -> bool:
    return any(each.__module__.startswith("transformers.") for each in type(run).__mro__)


def _parameters(run: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Of its forward; none where it does not show them, as what torch.jit makes."""
    try:
        return inspect.signature(run.forward).parameters
    except (TypeError, ValueError):
        return {}


def unfilled_mask(run: Any, takes: str) -> str | None:
    """The parameter by which a causal mask could come, of a module that is called without one; not
    of one that says of itself that it is causal."""
    if takes not in ("x", "x2d") or not isinstance(run, nn.Module):
        return None
    if isinstance(run, nn.MultiheadAttention | nn.TransformerEncoderLayer | nn.TransformerEncoder):
        return None
    if any(getattr(run, flag, None) is True for flag in ("causal", "is_causal")):
        return None
    names = _parameters(run)
    handed = {"attention_mask"} if "hidden_states" in names else set()
    masks = [name for name in names if "mask" in name and name not in handed]
    other = ("pad", "head_mask", "valid")
    return next((name for name in masks if not any(word in name for word in other)), None)


def _called(run: nn.Module, x: Tensor, named: dict[str, Any]) -> Any:
    """The call, with cos and sin if it wants them: of the whole width, or of each pair once."""
    if "position_embeddings" not in _parameters(run):
        return run(x, **named)
    try:
        return run(x, **named, position_embeddings=_rotary(run, x, twice=True))
    except RuntimeError:
        return run(x, **named, position_embeddings=_rotary(run, x, twice=False))


def _rotary(run: nn.Module, x: Tensor, *, twice: bool) -> tuple[Tensor, Tensor]:
    """cos and sin as a model would hand them in, with base 10000."""
    widths = [
        getattr(part, name)
        for name in ("rotary_ndims", "head_dim", "head_size")
        for part in run.modules()
        if isinstance(getattr(part, name, None), int)
    ]
    if not widths:
        raise TypeError("position_embeddings are wanted, and it has no head_dim to make them of")
    width = widths[0]
    rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * rates
    if twice:
        angles = torch.cat([angles, angles], -1)
    angles = angles[None].expand(x.shape[0], -1, -1)
    return angles.cos().to(x.dtype), angles.sin().to(x.dtype)
