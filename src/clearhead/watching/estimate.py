"""The memory that watching a model will take, read from its layers before it runs."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from clearhead._common.checks import as_int
from clearhead._common.elements import Drawn
from clearhead._common.layouts import key_heads
from clearhead._text import format_bytes
from clearhead.errors import WatchError
from clearhead.layers.multi_head_attention import MultiHeadAttention
from clearhead.watching.hooks.running import names_cross
from clearhead.watching.missing import OTHERWISE
from clearhead.watching.recording import POOL, TOP_K, head_numbers
from clearhead.watching.token_ids import reads_source

ATTENDING_KINDS = re.compile("^(?!linear).*attention|^hybrid", re.IGNORECASE)
"""The kinds of layers, as a config names them, that attend; a hybrid one does next to something else."""

STATISTICS = 7
"""Of each query: logsumexp, entropy, max, max_score, distance, first, previous."""

ROLES = 2
"""Of each head without tokens, with the number of queries in each; with them there are two more, and
in cross-attention one fewer."""


class AttentionSizes(NamedTuple):
    """The sizes of one module that attends.

    Attributes:
        path: where it stands in the model, or None if that is not known.
        num_heads: query heads.
        num_kv_heads: key heads.
        head_dim: width of a query and a key.
        more_keys: how many keys the module adds of its own.
        dtype: that of query and key.
        text: "given" attends from the one length to the other. In a model of an encoder and a decoder,
            "source" attends within the source, "own" within what the decoder reads, "cross" between.
        value_head_dim: width of a value, where it is not that of a key.
    """

    path: str | None
    num_heads: int
    num_kv_heads: int
    head_dim: int
    more_keys: int
    dtype: torch.dtype
    text: Literal["given", "source", "own", "cross"] = "given"
    value_head_dim: int | None = None

    def lengths(self, query_len: int, kv_len: int) -> tuple[int, int]:
        """The queries and keys of a call, its own keys included."""
        lengths = {"source": (kv_len, kv_len), "own": (query_len, query_len)}
        queries, keys = lengths.get(self.text, (query_len, kv_len))
        return queries, keys + self.more_keys


@dataclass(frozen=True, repr=False)
class Estimate(Drawn):
    """The memory that watching one run of a model will keep, in bytes.

    Masks are not counted: a description takes next to nothing, and layers share a tensor.

    Attributes:
        keep: "matrix", "contexts", "summary" or "total", as for `watch`.
        layers: how many modules attend.
        heads: how many heads are kept, of all layers together.
        batch: samples.
        query_len: tokens that attend; of a decoder next to an encoder, those that it reads.
        kv_len: tokens that are attended to; of an encoder, those that it reads.
        nbytes: of what is kept.
        matrix_nbytes: of the matrices of weights, which are never materialised.

    Example:
        >>> import clearhead as ch
        >>> model = torch.nn.TransformerEncoderLayer(768, nhead=12, batch_first=True)
        >>> print(ch.watch(model, keep="summary").estimate(batch=1, query_len=4096))
        1 layer × 12 heads, 4096 tokens: 6.5 MB with keep='summary' (the matrices would take 805.3 MB)
    """

    keep: str
    layers: int
    heads: int
    batch: int
    query_len: int
    kv_len: int
    nbytes: int
    matrix_nbytes: int

    def __str__(self) -> str:
        each, rest = divmod(self.heads, self.layers)
        layers = _many(self.layers, "layer")
        heads = (
            f"{layers}, {self.heads} heads in all" if rest else f"{layers} × {_many(each, 'head')}"
        )
        tokens = _many(self.query_len, "token")
        if self.query_len != self.kv_len:
            tokens = f"{_many(self.query_len, 'query', 'queries')} × {_many(self.kv_len, 'key')}"
        batch = "" if self.batch == 1 else f"a batch of {self.batch}, "
        return (
            f"{heads}, {batch}{tokens}: {format_bytes(self.nbytes)} with keep={self.keep!r} "
            f"(the matrices would take {format_bytes(self.matrix_nbytes)})"
        )


def sizes_of(
    model: nn.Module, chosen: Callable[[str, int, int], bool] | None = None
) -> list[AttentionSizes]:
    """Return the sizes of the modules of a model that attend.

    They are read from layers of this package, from nn.MultiheadAttention, and else from the
    `config` of a model, as those of transformers have one.

    Args:
        model: any model.
        chosen: a function of path, index and number of modules that is True for a module that counts; None for all.

    Raises:
        WatchError: code `watch.sizes`, if sizes cannot be read.

    Example:
        >>> layer = torch.nn.MultiheadAttention(12, num_heads=3)
        >>> sizes_of(layer)[0][:4]
        ('', 3, 3, 4)
    """
    known = [size for path, module in model.named_modules() if (size := _of_module(path, module))]
    known = known or _of_config(model, places=chosen is not None)
    if chosen is not None:
        known = [
            size
            for place, size in enumerate(known)
            if size.path is not None and chosen(size.path, place, len(known))
        ]
    if not known:
        raise WatchError(
            "watch.sizes",
            f"the sizes of {type(model).__name__} cannot be read: none of the modules in question "
            "is an nn.MultiheadAttention or a layer of clearhead, and there is no config with "
            "num_hidden_layers, num_attention_heads and hidden_size for them.",
        )
    return known


def estimated(
    known: list[AttentionSizes],
    heads: tuple[int, ...] | None,
    keep: str,
    lengths: tuple[int, int, int],
    *,
    values: bool = False,
    contexts: bool = False,
) -> Estimate:
    """Return the memory of modules of these sizes; lengths are batch, query_len and kv_len. With `values`
    the value of each call is kept as well, with `contexts` its context.

    Raises:
        WatchError: code `watch.heads`, for a head that one of the modules does not have.

    Example:
        >>> layer = torch.nn.MultiheadAttention(12, num_heads=3)
        >>> estimated(sizes_of(layer), None, "matrix", (1, 5, 5)).nbytes  # two of 3 × 5 × 4 floats
        480
    """
    batch, query_len, kv_len = lengths
    total, matrices, count = 0, 0, 0
    for size in known:
        chosen = range(size.num_heads) if heads is None else heads
        chosen = head_numbers(chosen, size.num_heads, size.path or "")
        group = size.num_heads // size.num_kv_heads
        used = len(key_heads(torch.tensor(chosen, dtype=torch.int64), group))
        queries, keys = size.lengths(query_len, kv_len)
        rows = batch * len(chosen) * queries
        # The weights and what is made of them: 16 bits are upcast to float32.
        wide = max(4, size.dtype.itemsize)
        width = size.value_head_dim or size.head_dim
        if keep == "total":
            # Entropy, distance, max and max_score; and each role with its count.
            kept = len(chosen) * 8 * (4 + 2 * ROLES)
        elif keep == "contexts":
            kept = batch * keys * 8  # a number of each key
        elif keep == "matrix":
            kept = (rows + batch * used * keys) * size.head_dim * size.dtype.itemsize
            if values:
                kept += batch * used * keys * width * size.dtype.itemsize
        else:
            kept = rows * (STATISTICS * wide + min(TOP_K, keys) * (wide + 8))
            kept += batch * used * keys * wide
            pooled = min(POOL, queries) * min(POOL, keys)
            crosses = size.text == "cross" or queries != keys - size.more_keys
            roles = ROLES - 1 if crosses else ROLES
            kept += batch * len(chosen) * ((pooled + roles) * wide + roles * 8)
        if contexts:
            per_head = 8 if keep == "total" else batch * queries * size.dtype.itemsize
            kept += len(chosen) * width * per_head
        total += kept
        matrices += rows * keys * wide
        count += len(chosen)
    return Estimate(keep, len(known), count, batch, query_len, kv_len, total, matrices)


def _of_module(path: str, module: nn.Module) -> AttentionSizes | None:
    if isinstance(module, MultiHeadAttention):
        # Another module in the place of a projection need not have a weight.
        floats = (each.dtype for each in module.parameters() if each.is_floating_point())
        dtype = next(floats, torch.get_default_dtype())
        sizes = module.num_heads, module.num_kv_heads, module.head_dim
        wide = None if module.value_head_dim == module.head_dim else module.value_head_dim
        return AttentionSizes(path, *sizes, 0, dtype, value_head_dim=wide)
    if isinstance(module, nn.MultiheadAttention):
        more = (module.bias_k is not None) + bool(module.add_zero_attn)
        heads, dtype = module.num_heads, module.out_proj.weight.dtype
        return AttentionSizes(path, heads, heads, module.head_dim, more, dtype)
    return None


def _of_config(model: nn.Module, *, places: bool) -> list[AttentionSizes]:
    """The sizes in a config, of a stack of layers, some of which may not attend, or of an encoder and
    a decoder."""
    config: Any = getattr(model, "config", None)
    known = next((each.dtype for each in model.parameters() if each.is_floating_point()), None)
    dtype = known or torch.get_default_dtype()
    if getattr(config, "is_encoder_decoder", False):
        found = [_beside_source(path, config, dtype) for path in attending(model)]
        return [each for each in found if each is not None]
    layers, heads = _number(config, "num_hidden_layers"), _number(config, "num_attention_heads")
    if not layers or not heads:
        return []
    shared = _number(config, "num_key_value_heads") or heads
    head_dim = _number(config, "head_dim") or _number(config, "hidden_size") // heads
    if latent := _number(config, "qk_nope_head_dim"):
        # Each head has a key of its own, made of the latent; a part of it is rotated.
        shared, head_dim = heads, latent + _number(config, "qk_rope_head_dim")
    wide = _number(config, "v_head_dim") or None
    if not head_dim:
        return []
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    if kinds:
        layers = sum(ATTENDING_KINDS.search(kind) is not None for kind in kinds)
    paths: list[str] | list[None] = [None] * layers
    if places:
        paths = list(attending(model))
        if len(paths) != layers:
            return []
    sizes = heads, shared, head_dim, 0, dtype
    return [AttentionSizes(path, *sizes, value_head_dim=wide) for path in paths]


def _beside_source(path: str, config: Any, dtype: torch.dtype) -> AttentionSizes | None:
    """The sizes of a module of an encoder and a decoder, by its path."""
    encodes = reads_source(path)
    side = "encoder" if encodes else "decoder"
    heads = _number(config, f"{side}_attention_heads") or _number(config, "num_attention_heads")
    head_dim = _number(config, "d_kv") or _number(config, "hidden_size") // max(1, heads)
    if not heads or not head_dim:
        return None
    text = "source" if encodes else "cross" if names_cross(path) else "own"
    return AttentionSizes(path, heads, heads, head_dim, 0, dtype, text)


def _number(config: Any, name: str) -> int:
    return as_int(getattr(config, name, None)) or 0


def attending(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that attend, by the names of their classes: attentions with none inside."""
    named = {
        path: module
        for path, module in model.named_modules()
        if "Attention" in type(module).__name__ and not OTHERWISE.search(type(module).__name__)
    }
    return {
        path: module
        for path, module in named.items()
        if not any(other.startswith(f"{path}.") for other in named)
    }


def _many(count: int, one: str, several: str | None = None) -> str:
    """A count in words: 1 layer, 2 layers."""
    return f"{count} {one if count == 1 else several or one + 's'}"
