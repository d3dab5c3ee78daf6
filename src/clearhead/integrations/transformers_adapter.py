"""A converted layer with the call signature of an attention of transformers: positions, masks, caches."""

import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.foreign_names import CACHES, cache_of
from clearhead.attention.planning import run
from clearhead.attention.problem import under_autocast
from clearhead.errors import UnsupportedError
from clearhead.integrations.transformers_internals import collects_attentions
from clearhead.layers.attention_layer import AttentionLayer
from clearhead.layers.converting.adapters import Adapter
from clearhead.layers.converting.configuration import window_of
from clearhead.layers.converting.reader import ModuleReader
from clearhead.layers.inputs import LayerCall
from clearhead.layers.parts import Part, ScoreBias, options_of
from clearhead.layers.rotary import Rotary
from clearhead.layers.score_parts import RelativeBias, Temperature
from clearhead.matrix.matrix import matrix_of
from clearhead.watching.hooks.transformers_call import convention_of, read_call

CONTEXTS = ("key_value_states", "encoder_hidden_states")
MASKS = ("attention_mask", "mask")
OF_CONTEXT = "encoder_attention_mask"
# Of a part that does not go by them; those that do get cosines and sines.
NO_POSITIONS: Any = (None, None)
TEXT, PIECES = 7, (5, 2)

ALONE = (
    "hidden_states", "position_embeddings", "position_ids", "cache_position", "use_cache",
    "output_attentions", *CONTEXTS, *MASKS, *CACHES, OF_CONTEXT,
)  # fmt: skip
"""The arguments of the forward of an attention that a run of it alone can leave out, or make."""


class TransformersAdapter(Adapter):
    """The call of an attention of transformers 5: hidden states, rotary positions, mask and cache are the model's.

    Projections, norms and everything that is compared are the layer's.

    The mask of the model says everything, so that the layer's own is not asked, nor its ALiBi; it is read
    in the conventions of the model's `attn_implementation` (`read_call`), and our kernels run whichever it
    is.
    """

    def __init__(self, reader: ModuleReader, layer: AttentionLayer) -> None:
        super().__init__(reader, layer)
        self.window = window_of(reader)
        self.is_repeated: bool | None = None
        # Its mask is True at what is hidden, and it asks for the weights at every call.
        self.is_mpt = reader.model_type == "mpt"
        names = self.signature.parameters
        # T5 hands its relative bias from block to block; MPT gives each the same ALiBi.
        self.returns_bias = "position_bias" in names and not names.keys().isdisjoint(CONTEXTS)
        left_out: list[type[Part]] = [RelativeBias]
        if any(isinstance(part, ScoreBias) for part in reader.parts):
            left_out.append(ScoreBias)
        self.of_model = tuple(left_out)
        self.counts = self.returns_bias or any(
            isinstance(part, Temperature) for part in reader.parts
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer with the arguments of the module that it replaces, and return what that module returned.

        That is (output, weights), or (output, position bias, weights) for T5; weights are None unless the model is
        eager, and an MPT or they were requested. Keys and values go to the model's cache, if it gives one.

        Raises:
            UnsupportedError: codes `convert.option`, for an option of a part that has no place in the model,
                `convert.positions` without rotary positions, and those of `read_call`.
        """
        given = self.arguments(args, kwargs)
        x, residual = given.pop("hidden_states"), given.pop("residual", None)
        context = _first(given, CONTEXTS)
        mask = _first(given, MASKS)
        cache: Any = _first(given, CACHES)
        of_context = given.pop(OF_CONTEXT, None)
        turns, bias = given.pop("position_embeddings", None), given.pop("position_bias", None)
        if OF_CONTEXT in self.signature.parameters and context is not None:
            mask = of_context
        is_cross, past = context is not None, None
        if cache is not None and hasattr(cache, "is_updated"):
            kept = cache.cross_attention_cache if is_cross else cache.self_attention_cache
            if is_cross and cache.is_updated.get(self.layer_idx):
                past = kept.layers[self.layer_idx]
        else:
            kept = cache
        seen = 0 if kept is None or not self.counts else kept.get_seq_length(self.layer_idx)
        # Of a static cache it is the very number that the update will change.
        seen = seen.clone() if isinstance(seen, Tensor) else seen
        source = x if context is None else context
        call = LayerCall(x, source if past is None else source[:, :0], is_cross=is_cross)
        query, key, value, unrotated = self.layer._project(call)
        assert value is not None
        query, key = self._transformed(query, key, turns, seen)
        query, key, value = under_autocast(query, key, value)
        if past is not None:
            key, value = past.keys, past.values
        elif kept is not None:
            key, value = kept.update(key, value, self.layer_idx)
            if is_cross and cache is not None and kept is not cache:
                cache.is_updated[self.layer_idx] = True
        query, key, value, scale, _ = self.layer._expand(query, key, value, unrotated, call)
        options = options_of(
            [part for part in self.layer.parts if not isinstance(part, self.of_model)],
            *NO_POSITIONS,
        )
        implementation = getattr(getattr(self, "config", None), "_attn_implementation", None)
        if self.returns_bias:
            bias = self._bias(query, key, seen) if bias is None else bias
            given["position_bias"] = bias
        else:
            given["position_bias"] = self._alibi(given, bias, query, key, implementation)
        if self.is_mpt and mask is not None:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(
                mask, torch.finfo(query.dtype).min
            )
        given |= {
            "scaling": options.pop("scale", scale),
            "softcap": options.pop("softcap", None),
            "s_aux": options.pop("sinks", None),
            "sliding_window": self.window,
            "dropout": (self.layer.dropout or 0.0) if self.training else 0.0,
        }
        if options:
            raise UnsupportedError(
                "convert.option",
                f"{', '.join(options)} of a part of the layer has no place in a model of transformers.",
            )
        problem = read_call(implementation, self, query, key, value, mask, **given)
        output = self.dropped(self.layer._join(run(problem), call))
        output = output if residual is None else residual + output
        is_eager = convention_of(implementation) == "eager"
        wanted = is_eager and (
            self.is_mpt
            or given.get("output_attentions")
            or getattr(getattr(self, "config", None), "output_attentions", False)
            or collects_attentions()
        )
        weights = matrix_of(problem).dense() if wanted else None
        return (output, bias, weights) if self.returns_bias else (output, weights)

    def _transformed(
        self, query: Tensor, key: Tensor, turns: Any, seen: int | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return query and key after the parts of the layer, at the positions of the model.

        `seen` is the number of earlier tokens. UnsupportedError, code `convert.positions`, if a part rotates and
        `turns` is None.
        """
        for part in self.layer.parts:
            if isinstance(part, Rotary):
                query, key = self._turned(part, query, key, turns)
                continue
            places = NO_POSITIONS
            if isinstance(part, Temperature):
                places = (torch.arange(query.shape[2], device=query.device) + seen,) * 2
            query, key = part.transform_query_key(query, key, *places)
        return query, key

    def _alibi(
        self,
        given: dict[str, Any],
        bias: Tensor | None,
        query: Tensor,
        key: Tensor,
        implementation: str | None,
    ) -> Tensor | None:
        """Return the ALiBi of the model, (batch, num_heads, 1, kv_len): the end of `bias` for MPT, with a batch of 1.

        Else it is taken out of `given`; None if the mask contains it or there is none.
        """
        if bias is not None:  # of MPT, as long as its longest text
            return bias[None, ..., bias.shape[-1] - key.shape[2] :]
        alibi = given.pop("alibi", None)
        module: Any = self
        in_mask = convention_of(implementation) == "sdpa" and not given.get("output_attentions")
        if alibi is None or in_mask:
            return None
        # Falcon scales the sum of scores and bias; BLOOM adds it as it is.
        return alibi.view(query.shape[0], query.shape[1], 1, -1) * module.beta

    def _turned(
        self, part: Rotary, query: Tensor, key: Tensor, turns: Tensor | tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """Return query and key, rotated by the cosines and sines that the model passes, which may be complex numbers.

        Raises UnsupportedError, code `convert.positions`, for None. At the first call it stores how pairs are laid out.
        """
        if turns is None:
            raise UnsupportedError(
                "convert.positions",
                f"{self.kinds[1].__name__} takes the rotary positions of its model as "
                "position_embeddings; got None.",
            )
        pairs = part.rotated_dim // 2
        # Complex numbers of Llama 4 and DeepSeek V2.
        cos, sin = (turns.real, turns.imag) if isinstance(turns, Tensor) else turns
        if cos.shape[-1] != pairs:
            if self.is_repeated is None:
                # Seen once, in the trial: number 2i and 2i + 1 are the same, or i and i + pairs.
                self.is_repeated = torch.equal(cos[..., ::2], cos[..., 1::2]) and torch.equal(
                    sin[..., ::2], sin[..., 1::2]
                )
            step = slice(None, None, 2) if self.is_repeated else slice(pairs)
            cos, sin = cos[..., step], sin[..., step]
        cos, sin = (each[:, None].to(query.dtype) for each in (cos, sin))
        return part._rotate(query, cos, sin), part._rotate(key, cos, sin)

    def _bias(self, query: Tensor, key: Tensor, seen: int | Tensor) -> Tensor:
        """Return the relative bias of the layer, (1, num_heads, query_len, kv_len); zeros without one."""
        lengths = query.shape[2], key.shape[2]
        part = next((each for each in self.layer.parts if isinstance(each, RelativeBias)), None)
        if part is None:
            return query.new_zeros(1, self.layer.num_heads, *lengths)
        rows, columns = (torch.arange(length, device=query.device) for length in lengths)
        reach = part.max_distance
        distance = (columns - (rows[:, None] + seen)).clamp(-reach, reach)
        return part.table[part.buckets()[distance + reach]].permute(2, 0, 1)[None]


def _first(given: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Remove the arguments of these names from `given`; return the first that is not None, or None."""
    found = [given.pop(name) for name in names if name in given]
    return next((each for each in found if each is not None), None)


def run_alone(module: nn.Module, x: Tensor) -> Tensor:
    """Run an attention of transformers outside of its model, without a mask; return its output, the first of a tuple.

    Args:
        module: the attention, on the CPU; its configuration is changed, so that it runs as written out.
        x: (batch, tokens, embed_dim).

    Raises:
        TypeError: for one whose model hands it more than positions, a mask and a cache, or positions of another kind.
    """
    config: Any = getattr(module, "config", None)
    if config is not None:
        config._attn_implementation = "eager"
    parameters = list(inspect.signature(type(module).forward).parameters.items())[1:]
    words = {name: each for name, each in parameters if each.kind is not each.VAR_KEYWORD}
    own = ("position_bias",) if hasattr(module, "has_relative_attention_bias") else ()
    if handed := [name for name in words if name not in (*ALONE, *own)]:
        raise TypeError(f"its model hands it {', '.join(handed)}")
    given: dict[str, Any] = {
        name: None for name, each in words.items() if each.default is each.empty
    }
    given["hidden_states"] = x
    if getattr(module, "is_cross_attention", False):  # of GPT-2, which then has no keys for x
        given["encoder_hidden_states"] = x
    if "position_embeddings" in words:
        given["position_embeddings"] = _positions_of(module, x)
    output = module(**given)
    return output[0] if isinstance(output, tuple) else output


def _positions_of(module: nn.Module, x: Tensor) -> Any:
    """Return the cosines and sines that a model would pass to an attention, of its RotaryEmbedding.

    TypeError without one.
    """
    module_: Any = module
    for name, kind in vars(sys.modules[type(module).forward.__module__]).items():
        if isinstance(kind, type) and name.endswith("RotaryEmbedding"):
            words = inspect.signature(kind.forward).parameters
            if "position_ids" in words:
                places = torch.arange(x.shape[1]).expand(len(x), -1)
                if "layer_type" not in words:
                    return kind(config=module_.config)(x, places)
                layer_type = module_.config.layer_types[module_.layer_idx]
                return kind(config=module_.config)(x, places, layer_type=layer_type)
    raise TypeError("its model makes its positions in a way of its own")


def trials(model: nn.Module) -> list[tuple[Callable[..., Any], dict[str, Any]]]:
    """Return calls of a model of transformers, as (function, named arguments): of a few tokens, a picture or a sound.

    Nothing is run. Text and picture are two calls where the text would need a token for each patch, whose number its
    processor knows.

    Raises:
        AttributeError, KeyError, TypeError: for a model whose inputs are others.
    """
    config: Any = model.config
    names = inspect.signature(model.forward).parameters
    like = next(each for each in model.parameters() if each.is_floating_point())
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        """Return normal random numbers of this shape, with the device and dtype of the model."""
        return torch.randn(shape, generator=generator).to(like.device, like.dtype)

    given: dict[str, Any] = {}
    if "pixel_values" in names:
        vision = getattr(config, "vision_config", config)
        size = vision.image_size
        height, width = size if isinstance(size, list | tuple) else (size, size)
        given["pixel_values"] = drawn(2, vision.num_channels, height, width)
    if "input_features" in names:
        given["input_features"] = drawn(2, config.num_mel_bins, 2 * config.max_source_positions)
    text = config.get_text_config()
    is_read = {"pixel_values", "input_features"}.isdisjoint(given) or hasattr(config, "text_config")
    for name in ("input_ids", "decoder_input_ids"):
        if name in names and (is_read or name != "input_ids"):
            # The first ids are those of padding, of the beginning and of the end, mostly.
            lowest = min(3, text.vocab_size - 1)
            ids = torch.randint(lowest, text.vocab_size, (2, TEXT), generator=generator)
            given[name] = ids.to(like.device)
    if "use_cache" in names:
        given["use_cache"] = False
    if any(getattr(config, f"image_token_{name}", None) is not None for name in ("id", "index")):
        pixels = given.pop("pixel_values", None)
        return [(model, given), (_features, {"model": model, "pixel_values": pixels})]
    return [(model, given)]


def _features(model: Any, pixel_values: Tensor | None) -> Any:
    """Return what `get_image_features` of a model makes of pictures, as they are, else as one a row, (batch, 1, …).

    None without pixels, and if both attempts raise, whatever the error.
    """
    for pixels in () if pixel_values is None else (pixel_values, pixel_values[:, None]):
        with suppress(Exception):
            return model.get_image_features(pixel_values=pixels)
    return None


def run_in_steps(model: nn.Module, inputs: Mapping[str, Any]) -> list[Any]:
    """Return a list of the first output of a model for each of two pieces of a text, with its KV cache.

    [] if the model has no cache, or the inputs no text or no `use_cache`.
    """
    name = "decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"
    kept = cache_of(inspect.signature(type(model).forward).parameters) or CACHES[0]
    if inputs.get("use_cache") is None or name not in inputs:
        return []
    cache, outputs = None, []
    for piece in inputs[name].split(PIECES, dim=1):
        step = {**inputs, name: piece, "use_cache": True, kept: cache}
        output: Any = model(**step)
        outputs.append(output[0])
        cache = getattr(output, kept, None)
        if cache is None:
            return []
    return outputs
