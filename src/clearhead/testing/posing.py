"""The features that a case asks for, and its inputs: tensors, options, and the result by the definition."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead import stages


@dataclass(frozen=True)
class Feature:
    """A feature that an attention may support.

    Attributes:
        needs: tuples of features; of each tuple at least one must be declared as well.
        apart: features that are never in a case together with this one.
        with_others: False for a feature that is tested by itself only.
        lengths: (query_len, kv_len) of the cases for it alone.
        variants: names of what else these cases are asked with.
    """

    needs: tuple[tuple[str, ...], ...] = ()
    apart: frozenset[str] = frozenset()
    with_others: bool = True
    lengths: tuple[tuple[int, int], ...] = field(default=((7, 11), (61, 131)))
    variants: tuple[str, ...] = ()


MASKS = ("mask", "head_mask", "padding")
_AT_EDGES = ((7, 11), (13, 13), (1, 17), (61, 131), (64, 128), (127, 257))

FEATURES: dict[str, Feature] = {
    "mask": Feature(
        apart=frozenset({"head_mask", "padding"}),
        lengths=((7, 11), (13, 5), (61, 131), (129, 65)),
    ),
    "head_mask": Feature(apart=frozenset({"mask", "padding"})),
    "padding": Feature(
        apart=frozenset({"mask", "head_mask", "window"}),
        lengths=((7, 11), (13, 13), (61, 131)),
        variants=("at-the-beginning",),
    ),
    "causal": Feature(lengths=_AT_EDGES),
    "window": Feature(
        apart=frozenset({"padding"}), lengths=((7, 11), (13, 13), (61, 131), (128, 128))
    ),
    "grouped": Feature(variants=("one-key-head",)),
    "value_width": Feature(),
    "scale": Feature(),
    "softcap": Feature(),
    "bias": Feature(),
    "sinks": Feature(apart=frozenset({"logsumexp"})),
    "empty_rows": Feature(needs=((*MASKS, "causal"),)),
    "nan_behind_mask": Feature(needs=((*MASKS, "causal", "window"),)),
    "logsumexp": Feature(),
    "chunks": Feature(needs=(("causal",),), lengths=((13, 13), (67, 67))),
    "empty_axes": Feature(
        with_others=False, lengths=((0, 7), (5, 0), (5, 7)), variants=("no-batch",)
    ),
    # Not in a case together with tensors of four dimensions.
    "fewer_dims": Feature(
        apart=frozenset({*MASKS, "bias", "sinks", "empty_rows", "nan_behind_mask"}),
        variants=("two-dims",),
    ),
    "gradients": Feature(with_others=False),
    "bias_gradients": Feature(needs=(("bias",), ("gradients",)), with_others=False),
    "sinks_gradients": Feature(needs=(("sinks",), ("gradients",)), with_others=False),
}


def apart(one: str, other: str) -> bool:
    """Return True if two features exclude each other in a case."""
    return other in FEATURES[one].apart or one in FEATURES[other].apart


SCALE, SOFTCAP = 0.37, 1.7
LEFT, RIGHT = 5, 3
# Scores of about ±150, whose exponentials are beyond float32 both ways.
LARGE = 7.0


class Sizes(NamedTuple):
    """The sizes of a case."""

    batch: int
    num_heads: int
    num_kv_heads: int
    query_len: int
    kv_len: int
    head_dim: int
    value_head_dim: int


@dataclass(frozen=True)
class Posed:
    """A call in full, with tensors on the CPU.

    Attributes:
        tensors: query, key, value, and bias and sinks if the features include them.
        options: the other keyword arguments of the call.
        visible: bool, broadcastable to (…, query_len, kv_len), True for visible pairs; None if nothing is hidden.
        grad: the gradient of the context, for the backward pass.
    """

    tensors: Mapping[str, Tensor]
    options: Mapping[str, Any]
    visible: Tensor | None
    grad: Tensor


def pose(
    features: frozenset[str], variant: str, sizes: Sizes, dtype: torch.dtype, seed: int
) -> Posed:
    """Return the call that a case makes, on the CPU; the same arguments give the same tensors.

    The global generator is not used.
    """
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        """Return a tensor of normal numbers from the generator of the case, in its dtype."""
        return torch.randn(shape, generator=generator).to(dtype)

    batch, heads, kv_heads, query_len, kv_len, dim, value_dim = sizes
    first = () if "fewer_dims" in features else (batch,)
    leading, kv_leading = (*first, heads), (*first, kv_heads)
    if variant == "two-dims":
        leading = kv_leading = ()
    tensors = {
        "query": drawn(*leading, query_len, dim),
        "key": drawn(*kv_leading, kv_len, dim),
        "value": drawn(*kv_leading, kv_len, value_dim),
    }
    if variant == "large-scores":
        tensors["query"], tensors["key"] = tensors["query"] * LARGE, tensors["key"] * LARGE
    if variant == "strided":
        tensors = {name: _strided(tensor) for name, tensor in tensors.items()}
    if "bias" in features:
        tensors["bias"] = drawn(batch, heads, query_len, kv_len) * 2
    if "sinks" in features:
        tensors["sinks"] = drawn(heads)
    causal = "causal" in features
    given = {
        "causal": True,
        "window": (LEFT, 0 if causal else RIGHT),
        "scale": SCALE,
        "softcap": SOFTCAP,
    }
    options: dict[str, Any] = {name: each for name, each in given.items() if name in features}
    if features & set(MASKS):
        options["mask"] = _mask(features, variant, sizes, generator)
    visible = _visible(options, query_len, kv_len)
    if "logsumexp" in features:
        options["return_logsumexp"] = True
    if "nan_behind_mask" in features:
        _poison(tensors, features, visible)
    return Posed(tensors, options, visible, drawn(*leading, query_len, value_dim))


def defined(posed: Posed, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the context by the definition, and the logsumexp if the options request it, by name.

    The tensors may be of another dtype than those of `posed`, whose options and visible pairs are used.
    """
    query, key, value = (tensors[name] for name in ("query", "key", "value"))
    if query.ndim > 2:
        key, value = (stages.repeat_kv_heads(each, query.shape[-3]) for each in (key, value))
    found = stages.compute(
        query,
        key,
        value,
        scale=posed.options.get("scale", query.shape[-1] ** -0.5),
        softcap=posed.options.get("softcap"),
        bias=tensors.get("bias"),
        visible=posed.visible,
        sinks=tensors.get("sinks"),
    )
    if not posed.options.get("return_logsumexp"):
        return {"context": found.context}
    return {"context": found.context, "logsumexp": stages.logsumexp(found.masked_scores)}


def in_chunks(
    run: Callable[..., Any], tensors: Mapping[str, Tensor], options: Mapping[str, Any]
) -> Any:
    """Return the result of a function run on causal queries in chunks, concatenated.

    The chunks have 1, 3, 1 and the remaining queries. Each chunk gets the keys, and the part of bias and mask, up to
    its last query. The result is the context, or (context, logsumexp) if the function returns a pair.
    """
    whole = tensors["query"].shape[-2]
    ends = [1, 4, 5, whole]
    found = []
    for start, end in zip([0, *ends], ends, strict=False):
        given: dict[str, Any] = {**tensors, **options}
        given["query"] = given["query"][..., start:end, :]
        given["key"], given["value"] = given["key"][..., :end, :], given["value"][..., :end, :]
        if "bias" in given:
            given["bias"] = given["bias"][..., start:end, :end]
        if "mask" in given:
            rows = slice(None) if given["mask"].shape[-2] == 1 else slice(start, end)
            given["mask"] = given["mask"][..., rows, :end]
        found.append(run(given.pop("query"), given.pop("key"), given.pop("value"), **given))
    if isinstance(found[0], Tensor):
        return torch.cat(found, dim=-2)
    contexts, totals = zip(*found, strict=True)
    return torch.cat(contexts, dim=-2), torch.cat(totals, dim=-1)


def _visible(options: Mapping[str, Any], query_len: int, kv_len: int) -> Tensor | None:
    """Return the visible pairs of mask, causal and window, bool (…, query_len, kv_len); None if no option hides any."""
    if not options.keys() & {"mask", "causal", "window"}:
        return None
    # The last query is on the last key.
    distance = torch.arange(kv_len) - torch.arange(query_len)[:, None] - (kv_len - query_len)
    left, right = options.get("window", (kv_len + query_len, kv_len + query_len))
    visible = (distance >= -left) & (distance <= (0 if "causal" in options else right))
    return visible & options["mask"] if "mask" in options else visible


def _strided(tensor: Tensor) -> Tensor:
    """Return the same numbers as a non-contiguous view of a larger tensor, with tokens before heads in memory."""
    wider = torch.cat([tensor, torch.full_like(tensor, torch.nan)], dim=-1)
    return wider.transpose(1, 2).contiguous().transpose(1, 2)[..., : tensor.shape[-1]]


def _mask(
    features: frozenset[str], variant: str, sizes: Sizes, generator: torch.Generator
) -> Tensor:
    """Return a bool mask in which each query sees a key, unless empty rows are tested.

    The shape is (batch, 1, 1, kv_len) for padding, else (batch, heads or 1, query_len, kv_len).
    """
    batch, heads, _, query_len, kv_len, _, _ = sizes
    if "padding" in features:
        lengths = torch.tensor([kv_len, *[(kv_len + 1) // 2] * (batch - 1)])
        if "empty_rows" in features:
            lengths[-1] = 0
        places = torch.arange(kv_len)
        places = places.flip(0) if variant == "at-the-beginning" else places
        return (places < lengths[:, None])[:, None, None, :]
    several = heads if "head_mask" in features else 1
    mask = torch.rand((batch, several, query_len, kv_len), generator=generator) < 0.6
    own = (torch.arange(query_len) + kv_len - query_len).clamp(min=0)
    if "nan_behind_mask" in features:
        mask[..., kv_len // 2] = False
        own[own == kv_len // 2] -= 1
    mask[..., torch.arange(query_len), own] = True
    if "empty_rows" in features:
        mask[:, :, [0, -1]] = False
        mask[0, :, query_len // 2] = False
    return mask


def _poison(
    tensors: Mapping[str, Tensor], features: frozenset[str], visible: Tensor | None
) -> None:
    """Write NaN to keys and values that are hidden from every query, in place.

    Such are the middle key of a mask, the padding, the first key of a window, or the last one if causal.
    """
    assert visible is not None
    kv_len = visible.shape[-1]
    if features & {"mask", "head_mask"}:
        places = torch.arange(kv_len) == kv_len // 2
    elif "padding" in features:
        places = ~visible.flatten(1, -2).any(1)[:, None]
    else:
        # Of causal attention the last query sees the last key; from a window the first is far.
        places = torch.arange(kv_len) == (0 if "window" in features else kv_len - 1)
    for name in ("key", "value"):
        tensors[name].masked_fill_(places[..., None], torch.nan)
