"""Hints where PyTorch's or another library's words are handed to a layer of ours."""

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import ParamSpec, TypeVar

from clearhead._common.foreign_names import role, size_of
from clearhead.errors import ArgumentTypeError

Args = ParamSpec("Args")
Result = TypeVar("Result")

SIZES = {
    "d_in": "embed_dim",
    "d_out": "output_dim",
    "d_context": "context_dim",
    "num_heads": "num_heads",
    "num_kv_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "value_head_dim": "value_head_dim",
}
CAUSAL = "mask=clearhead.causal(), of the layer or of a call"
WEIGHTS = "layer.weights(x) has the weights, and forward returns the output alone"
CACHE = "cache=clearhead.layers.GrowingCache(), one for each layer"
POSITIONS = "positions=, a number for each token, by which parts such as clearhead.layers.Rotary go"
CONTEXT = "x and context are what is projected; keys and values are made of one context"
ADDED = "only clearhead.layers.MultiheadAttention has it"

WORDS: Mapping[str, str] = {
    "attn_mask": "mask=clearhead.dense(~attn_mask): here True is visible",
    "key_padding_mask": "valid=~key_padding_mask: here True is a real token",
    "attention_mask": "valid=attention_mask.bool(), True at real tokens",
    "is_causal": CAUSAL,
    "causal": CAUSAL,
    "need_weights": WEIGHTS,
    "average_attn_weights": WEIGHTS,
    "output_attentions": WEIGHTS,
    "past_key_values": CACHE,
    "past_key_value": CACHE,
    "layer_past": CACHE,
    "use_cache": CACHE,
    "position_ids": POSITIONS,
    "cache_position": POSITIONS,
    "position_embeddings": POSITIONS,
    "query": CONTEXT,
    "key": CONTEXT,
    "value": CONTEXT,
    "hidden_states": CONTEXT,
    "key_value_states": CONTEXT,
    "encoder_hidden_states": CONTEXT,
    "batch_first": "leave it out: the batch is always first",
    "add_bias_kv": ADDED,
    "add_zero_attn": ADDED,
    "device": "layer.to(device)",
    "dtype": "layer.to(dtype)",
    "qkv_bias": "bias",
    "attn_dropout": "dropout",
    "attention_dropout": "dropout",
    "dropout_p": "dropout",
}
"""Other people's arguments, and what they are here."""


def with_hints(method: Callable[Args, Result]) -> Callable[Args, Result]:
    """Explain a TypeError of a method's call by the words of other libraries that were used in it.

    Raises:
        ArgumentTypeError: code `layer.words`.
    """

    @functools.wraps(method)
    def explained(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        try:
            return method(*args, **kwargs)
        except TypeError as error:
            hint = hint_at(inspect.signature(method), args, kwargs)
            if hint is None:
                raise
            raise ArgumentTypeError(
                "layer.words",
                f"{type(args[0]).__name__} {hint}. For code that calls torch.nn.MultiheadAttention there "
                "is clearhead.layers.MultiheadAttention; a module with weights becomes a layer by "
                "MultiHeadAttention.from_torch or clearhead.convert.",
            ) from error

    return explained


def hint_at(
    signature: inspect.Signature, args: Iterable[object], kwargs: Mapping[str, object]
) -> str | None:
    """The hint at arguments that a method does not take; None if it takes them, or none is known.

    Example:
        >>> hint_at(inspect.signature(lambda x: x), [1], {"is_causal": True})
        'takes no is_causal (mask=clearhead.causal(), of the layer or of a call)'
    """
    try:
        signature.bind(*args, **kwargs)
        return None
    except TypeError:
        own = signature.parameters
    places = [each.name for each in own.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
    foreign = {name: _ours(name, own) for name in kwargs if name not in own}
    hints = [f"takes no {name} ({ours})" for name, ours in foreign.items() if ours]
    if len(list(args)) > len(places):
        first = next((each.name for each in own.values() if each.kind is each.KEYWORD_ONLY), None)
        taken = ", ".join(name for name in places if name != "self")
        hints.insert(0, f"takes {taken} by place, and the rest by name, from {first}= on")
    return "; ".join(hints) or None


def _ours(name: str, own: Mapping[str, object]) -> str | None:
    """Return our word for another library's argument, where a method has it."""
    size = SIZES.get(size_of(name) or "")
    return WORDS.get(name) or (size if size in own else None)


def hint_at_weights(names: Iterable[str], own: Collection[str]) -> str | None:
    """The hint at weights of another library in a state dict; None for those of modules of our own."""
    modules = {name: name.partition(".")[0] for name in names}
    found = [name for name, each in modules.items() if each not in own and _is_projection(each)]
    if not found:
        return None
    return (
        f"{', '.join(found[:3])}: the names of another library. Load them into its module, and make a "
        "layer of that by MultiHeadAttention.from_torch or clearhead.convert."
    )


def _is_projection(name: str) -> bool:
    return name == "in_proj_weight" or role(name) is not None
