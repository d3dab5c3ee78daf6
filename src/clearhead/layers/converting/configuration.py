"""Rotary positions and windows, from the configuration of a model of transformers."""

import inspect
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from clearhead._text import shown
from clearhead.errors import ArgumentError
from clearhead.layers.converting.reader import ModuleReader
from clearhead.layers.rotary import Layout, Rotary
from clearhead.layers.scalings import Dynamic, Linear, Llama3, LongRope, Scaling, Yarn
from clearhead.masks import causal, sliding_window

# Those whose module does not know that its model hides what is ahead.
CAUSAL = ("bloom", "clip_text_model", "mpt")
ORIGINAL = "original_max_position_embeddings"


def add_rotary(reader: ModuleReader, layout: Layout | None) -> None:
    """Add the rotary positions of the module's configuration to the reader, in this layout.

    No-op if the layout is None. Adds a reason instead if the configuration has no rotary positions that are known.
    """
    if layout is None:
        return
    config = reader.config
    parameters = _parameters(config, _layer_type(reader))
    head_dim = reader.sizes.get("rotary_dim", reader.sizes["head_dim"])
    try:
        kind = parameters.get("rope_type") or parameters.get("type") or "default"
        # Some hold a share in their configuration and rotate whole heads all the same.
        share = (parameters.get("partial_rotary_factor") or 1.0) if reader.guess.partly else 1.0
        part = Rotary(
            head_dim,
            base=parameters["rope_theta"],
            layout=layout,
            rotated_dim=int(head_dim * share),
            scaling=SCALINGS[kind](parameters, config),
        )
    except (ArgumentError, AttributeError, KeyError, TypeError) as error:
        reason = error.message.rstrip(".") if isinstance(error, ArgumentError) else f"no {error}"
        reader.reasons.append(
            f"config.rope_parameters={shown(parameters)} are no rotary positions that are known: {reason}"
        )
        return
    reader.add_part(part, "config.rope_parameters")


def hide_by_configuration(reader: ModuleReader) -> None:
    """Add the causal mask, with the window if any, that the module or its configuration declares to the reader.

    No-op for a class of the user's, whose copy is run. If no causal mask is declared, it adds a reason for a window
    with is_causal=False, or sets `unsaid` where the module does not say whether the future is hidden. Chunks add a
    reason against the layer alone.
    """
    if reader.is_own:
        return
    is_causal, window = getattr(reader.module, "is_causal", None), window_of(reader)
    is_causal = True if reader.model_type in CAUSAL else is_causal
    if not is_causal:
        if is_causal is False and window is not None:
            reader.reasons.append(f"sliding_window={window} of a layer that is not causal")
        elif not _is_open(reader):
            reader.unsaid = (
                f"is_causal={is_causal}: whether it sees what is ahead is its model's to say; give "
                "mask=clearhead.causal() or mask=clearhead.full(), or convert the model"
            )
        return
    if _layer_type(reader) == "chunked_attention":
        reader.alone.append(
            f"attention_chunk_size={getattr(reader.config, 'attention_chunk_size', None)}: the mask of "
            "chunks is its model's"
        )
    if window is None:
        reader.hide(causal(), "is_causal")
    else:
        reader.hide(causal() & sliding_window(left=window - 1), f"sliding_window={window}")


def _is_open(reader: ModuleReader) -> bool:
    """Return True if nothing hides the future: neither the module nor the model that it is a part of.

    True for a module that its model passes is_causal=False, for is_decoder=False, and for one that reads no text or
    whose file makes no causal masks.
    """
    kind = type(reader.module)
    is_decoder, is_causal = (
        getattr(reader.module, name, None) for name in ("is_decoder", "is_causal")
    )
    # A model says it to each of its attentions, or has one class for the texts that it hides and for pictures.
    is_told = is_causal is False and "is_causal" in inspect.signature(kind.__init__).parameters
    reads_text = hasattr(reader.config, "vocab_size") or reader.config is None
    models = vars(sys.modules[kind.forward.__module__])
    hides = any("causal_mask" in name for name in models)
    return is_told or is_decoder is False or not (reads_text and hides)


def window_of(reader: ModuleReader) -> int | None:
    """Return the number of tokens that a query of the module sees, itself included; None if there is no window.

    The module's own attribute, which may be None, goes before its configuration's; a layer whose type is not sliding
    has none.
    """
    module: Any = reader.module
    if not getattr(module, "is_sliding", True):
        return None
    if hasattr(module, "sliding_window"):
        return module.sliding_window
    if _layer_type(reader) not in (None, "sliding_attention"):
        return None
    return getattr(reader.config, "sliding_window", None)


def _layer_type(reader: ModuleReader) -> str | None:
    """Return the configured type of the module's layer, such as "sliding_attention".

    None without types or layer_idx.
    """
    types = getattr(reader.config, "layer_types", None)
    index = getattr(reader.module, "layer_idx", None)
    return types[index] if types and isinstance(index, int) else None


def _parameters(config: Any, layer_type: str | None) -> Mapping[str, Any]:
    """Return the rotary parameters for a layer type, or, if it has none, of all layers; {} without any."""
    parameters = getattr(config, "rope_parameters", None) or {}
    return parameters.get(layer_type, parameters)


def _original(rope: Mapping[str, Any], config: Any) -> int:
    """Return the context length, in tokens, of the training before rotary scaling; else the configured maximum."""
    return rope.get(ORIGINAL) or config.max_position_embeddings


def _factor(rope: Mapping[str, Any], config: Any) -> float:
    """Return the factor by which rotary scaling extends the context: as given, or maximum over original length.

    Raises KeyError if neither is given.
    """
    return rope.get("factor") or config.max_position_embeddings / rope[ORIGINAL]


def _yarn_gain(rope: Mapping[str, Any], config: Any) -> float | None:
    """Return YaRN's attention factor as given, else as DeepSeek's mscale and mscale_all_dim make it.

    None if the factor is not given and one of these two is missing or 0. Raises as `_factor`.
    """
    factors = [rope.get(name) for name in ("mscale", "mscale_all_dim")]
    if rope.get("attention_factor") is not None or not all(factors):
        return rope.get("attention_factor")
    first, second = (1 + 0.1 * each * math.log(_factor(rope, config)) for each in factors if each)
    return first / second


SCALINGS: dict[str, Callable[[Mapping[str, Any], Any], Scaling | None]] = {
    "default": lambda rope, config: None,
    "linear": lambda rope, config: Linear(rope["factor"]),
    "dynamic": lambda rope, config: Dynamic(
        rope["factor"], original_len=config.max_position_embeddings
    ),
    "yarn": lambda rope, config: Yarn(
        _factor(rope, config),
        original_len=_original(rope, config),
        fast=rope.get("beta_fast") or 32.0,
        slow=rope.get("beta_slow") or 1.0,
        attention_gain=_yarn_gain(rope, config),
        truncate=rope.get("truncate", True),
    ),
    "llama3": lambda rope, config: Llama3(
        rope["factor"],
        original_len=_original(rope, config),
        low=rope["low_freq_factor"],
        high=rope["high_freq_factor"],
    ),
    "longrope": lambda rope, config: LongRope(
        rope["short_factor"],
        rope["long_factor"],
        original_len=_original(rope, config),
        factor=_factor(rope, config),
        attention_gain=rope.get("attention_factor"),
    ),
}
