"""Attention from the textbook, dense, in float64, with a module's own weights where it is one.

It stands apart from the library, so that the bank is judged by nothing that it judges. `change`
makes it wrong on purpose: what an entry computes must be the mistake that it is filed under.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

Linear = tuple[Tensor, Tensor | None]

QUERY = "W_query W_q W_Q w_q wq q_proj to_q query queries q q_lin toqueries linear_q fc_q w_qs weight_query"
KEY = "W_key W_k W_K w_k wk k_proj to_k key keys k k_lin tokeys linear_k fc_k w_ks weight_key"
VALUE = "W_value W_v W_V w_v wv v_proj to_v value values v v_lin tovalues linear_v fc_v w_vs weight_value"
PACKED = "qkv c_attn to_qkv in_proj query_key_value wqkv Wqkv qkv_proj W_pack"
KEY_VALUE = "to_kv kv kv_proj"
OUT = (
    "out_proj o_proj to_out proj c_proj W_o W_O wo dense output fc_out out_lin unifyheads "
    "linear_final fc_o fc o outs output_projection out resid_proj"
)


@dataclass(frozen=True)
class Case:
    """A legal call, and all that the definition needs to know of it."""

    args: tuple[Tensor, ...]
    query: Tensor
    key: Tensor
    value: Tensor
    declared: dict[str, Any]
    out: Linear | None = None
    merged: bool = False
    mask: Tensor | None = None
    judged: Tensor | None = None

    def visible(self, **change: Any) -> Tensor:
        n, m = self.query.shape[-2], self.key.shape[-2]
        offset = change.get("offset", m - n)
        i, j = torch.arange(n)[:, None] + offset, torch.arange(m)[None, :]
        seen = torch.ones(n, m, dtype=torch.bool)
        if self.declared.get("causal") and not change.get("no_causal"):
            seen &= j <= i
        if "window" in self.declared:
            left, right = change.get("window", self.declared["window"])
            seen &= (i - j <= left) & (j - i <= right)
        if change.get("inverted"):
            seen = ~seen
        mask = change.get("mask", self.mask)
        if mask is not None:
            seen = seen & (~mask if change.get("inverted_mask") else mask)
        return seen

    def weights(self, **change: Any) -> Tensor:
        query, key, declared = self.query, self.key, self.declared
        if "rope" in declared:
            rope = declared["rope"] | change.get("rope", {})
            start = change.get("query_start", key.shape[-2] - query.shape[-2])
            query = turn(query, start, **rope)
            key = turn(key, 0, **rope)
        if change.get("tiled"):
            key = key.repeat(1, query.shape[1] // key.shape[1], 1, 1)
        else:
            key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        raw = query @ key.mT
        scale = change.get("scale", declared.get("scale") or query.shape[-1] ** -0.5)
        bias = torch.zeros((), dtype=raw.dtype)
        if "bias" in declared:
            bias = declared["bias"](raw.shape[-2], raw.shape[-1]).to(raw.dtype)
        if "alibi_slopes" in declared:
            n, m = raw.shape[-2:]
            distance = (torch.arange(m - n, m)[:, None] - torch.arange(m)[None]).abs()
            bias = -declared["alibi_slopes"].to(raw.dtype)[:, None, None] * distance
        seen = self.visible(**change)
        late_bias = change.get("late_bias", False)
        scores = (raw + bias) * scale if change.get("bias_scaled") else raw * scale
        cap = declared.get("softcap")
        if cap and change.get("late_cap"):
            scores = scores.masked_fill(~seen, -math.inf)
        if cap:
            scores = cap * torch.tanh(scores / cap)
        if not late_bias and not change.get("bias_scaled"):
            scores = scores + bias
        if change.get("multiplied"):
            scores = scores * seen
        elif change.get("added"):
            scores = scores + change["added"] * seen
        elif not (change.get("after_softmax") or change.get("late_cap")):
            # A row that sees nothing is never judged, and must not spoil the gradients of others.
            scores = scores.masked_fill(~seen & seen.any(dim=-1, keepdim=True), -math.inf)
        if "sinks" in declared:
            sinks = declared["sinks"].to(scores.dtype)[:, None, None]
            scores = torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], dim=-1)
        weights = scores.softmax(dim=change.get("axis", -1))
        if "sinks" in declared:
            weights = weights[..., :-1]
        if change.get("after_softmax"):
            weights = weights * seen
        if late_bias:
            return weights + bias * (seen if late_bias == "visible" else 1)
        return weights

    def output(self, **change: Any) -> Tensor:
        groups = self.query.shape[1] // self.value.shape[1]
        tiled = change.get("tiled")
        value = self.value.repeat(1, groups, 1, 1) if tiled else None
        if value is None:
            value = self.value.repeat_interleave(groups, dim=1)
        return self.finish(self.weights(**change) @ value, **change)

    def finish(self, context: Tensor, **change: Any) -> Tensor:
        if not self.merged:
            return context
        if change.get("no_transpose"):
            context = context.reshape(context.shape[0], context.shape[2], -1)
        else:
            context = context.transpose(1, 2).flatten(2)
        if self.out is not None:
            context = apply(context, self.out)
        return context[0] if self.args[0].ndim == 2 else context

    def rows(self, **change: Any) -> Tensor:
        """The rows of the output that are judged: those that see something, and are no padding."""
        seen = self.visible(**change).any(dim=-1)
        if self.merged:
            seen = seen.amax(dim=1) if seen.ndim == 4 else seen
            seen = seen[:, 0] if seen.ndim == 3 else seen
            batch = 1 if self.args[0].ndim == 2 else self.query.shape[0]
            seen = seen.expand(batch, self.query.shape[-2])
            if self.judged is not None:
                seen = seen & self.judged
            return seen[0] if self.args[0].ndim == 2 else seen
        return seen.expand(self.query.shape[:-1])

    def changed(self, **fields: Any) -> "Case":
        return replace(self, **fields)


def turn(x: Tensor, start: int, base: float = 10000.0, layout: str = "half") -> Tensor:
    pairs = x.shape[-1] // 2
    positions = start + torch.arange(x.shape[-2], dtype=x.dtype)
    angles = positions[:, None] * base ** -(torch.arange(pairs, dtype=x.dtype) / pairs)
    first = torch.arange(pairs) if layout == "half" else 2 * torch.arange(pairs)
    second = first + (pairs if layout == "half" else 1)
    turned = torch.empty_like(x)
    turned[..., first] = x[..., first] * angles.cos() - x[..., second] * angles.sin()
    turned[..., second] = x[..., second] * angles.cos() + x[..., first] * angles.sin()
    return turned


def apply(x: Tensor, linear: Linear) -> Tensor:
    matrix, bias = linear
    return x @ matrix if bias is None else x @ matrix + bias


def linear_of(thing: Any, out: bool = False) -> Linear:
    """The matrix (in, out) and the bias of whatever projects."""
    if isinstance(thing, nn.ModuleList):
        parts = [linear_of(child) for child in thing]
        if out:
            return torch.cat([matrix for matrix, _ in parts]), None
        biases = [bias for _, bias in parts if bias is not None]
        return torch.cat([matrix for matrix, _ in parts], dim=1), (
            torch.cat(biases) if biases else None
        )
    if isinstance(thing, nn.Sequential):
        return linear_of(thing[0])
    if isinstance(thing, nn.Linear):
        return thing.weight.T, thing.bias
    if isinstance(thing, nn.Conv1d):
        return thing.weight[:, :, 0].T, thing.bias
    if isinstance(thing, nn.Parameter):
        if thing.ndim == 3:  # (heads, in, head_dim), or (heads, head_dim, out)
            return (thing.flatten(0, 1) if out else thing.transpose(0, 1).flatten(1)), None
        return thing, None
    return thing.weight, thing.bias  # Conv1D of transformers


def find(module: nn.Module, names: str) -> Any:
    found = [*module.named_modules(), *module.named_parameters()]
    return next((t for name, t in found if name.rpartition(".")[2] in names.split()), None)


def split(linear: Linear, sizes: list[int]) -> list[Linear]:
    matrices = linear[0].split(sizes, dim=1)
    biases = [None] * len(sizes) if linear[1] is None else linear[1].split(sizes)
    return list(zip(matrices, biases, strict=True))


def interleaved(linear: Linear, heads: int) -> list[Linear]:
    """Packed head by head, query, key and value of a head together."""
    matrix = linear[0].unflatten(1, (heads, 3, -1))
    bias = None if linear[1] is None else linear[1].unflatten(0, (heads, 3, -1))
    return [
        (matrix[:, :, i].flatten(1), None if bias is None else bias[:, i].flatten())
        for i in range(3)
    ]


def projections(module: nn.Module, heads: int, kv_heads: int) -> list[Linear | None]:
    """Query, key, value and out."""
    for child in module.modules():
        if isinstance(child, nn.MultiheadAttention):
            out: Linear = (child.out_proj.weight.T, child.out_proj.bias)
            bias = child.in_proj_bias
            if child.in_proj_weight is not None:
                return [*split((child.in_proj_weight.T, bias), [child.embed_dim] * 3), out]
            three = [child.q_proj_weight, child.k_proj_weight, child.v_proj_weight]
            return [*((w.T, b) for w, b in zip(three, bias.chunk(3), strict=True)), out]
    listed = getattr(module, "heads", None)
    if isinstance(listed, nn.ModuleList):
        parts = [projections(head, 1, 1)[:3] for head in listed]
        joined: list[Linear | None] = []
        for i in range(3):
            several = [part[i] for part in parts]
            matrices = [s[0] for s in several if s is not None]
            biases = [s[1] for s in several if s is not None and s[1] is not None]
            joined.append((torch.cat(matrices, dim=1), torch.cat(biases) if biases else None))
        return [*joined, None]
    four = getattr(module, "linears", None)
    if isinstance(four, nn.ModuleList):
        return [linear_of(child) for child in four]
    found = find(module, OUT)
    out_linear = None if found is None else linear_of(found, out=True)
    packed = find(module, PACKED)
    if packed is not None:
        linear = linear_of(packed)
        if type(module).__name__ in INTERLEAVED:
            return [*interleaved(linear, heads), out_linear]
        width = linear[0].shape[1] // (heads + 2 * kv_heads)
        sizes = [heads * width, kv_heads * width, kv_heads * width]
        return [*split(linear, sizes), out_linear]
    query = linear_of(find(module, QUERY))
    both = find(module, KEY_VALUE)
    if both is not None:
        linear = linear_of(both)
        return [query, *split(linear, [linear[0].shape[1] // 2] * 2), out_linear]
    key, value = linear_of(find(module, KEY)), linear_of(find(module, VALUE))
    return [query, key, value, out_linear]


INTERLEAVED = {"NeoXPacked"}
# As printed in the tutorial: two dimensions, although it takes a context.
TWO_DIMENSIONS = {"CrossAttention"}


def project(
    module: nn.Module, x: Tensor, context: Tensor, declared: dict[str, Any]
) -> dict[str, Any]:
    heads = declared.get("num_heads", 1)
    kv_heads = declared.get("num_kv_heads", heads)
    query, key, value, out = projections(module, heads, kv_heads)
    assert query is not None
    assert key is not None
    assert value is not None
    x, context = (t[None] if t.ndim == 2 else t for t in (x, context))
    return {
        "query": apply(x, query).unflatten(-1, (heads, -1)).transpose(1, 2),
        "key": apply(context, key).unflatten(-1, (kv_heads, -1)).transpose(1, 2),
        "value": apply(context, value).unflatten(-1, (kv_heads, -1)).transpose(1, 2),
        "out": out,
        "merged": True,
        "declared": declared,
    }


def padding(declared: dict[str, Any]) -> list[Tensor]:
    right = torch.arange(7)[None] < torch.tensor([7, 4, 2])[:, None]
    left = torch.arange(7)[None] >= torch.tensor([3, 0, 5])[:, None]
    holes = torch.tensor([[1, 0, 1, 1, 0, 1, 1], [0, 1, 1, 0, 1, 1, 0], [1] * 7]).bool()
    return [right, left, holes]


def width_of(thing: Any, declared: dict[str, Any]) -> int:
    sizes = declared.get("sizes", {})
    if "d_in" in sizes:
        return sizes["d_in"]
    query = projections(thing, declared.get("num_heads", 1), declared.get("num_heads", 1))[0]
    assert query is not None
    return query[0].shape[0]


def cases(
    thing: Any, takes: str, declared: dict[str, Any], dtype: torch.dtype = torch.float64
) -> Iterator[Case]:
    """Legal calls of every kind that the declaration allows."""
    generator = torch.Generator().manual_seed(7)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    sizes = declared.get("sizes", {})
    if takes in ("qkv", "qkv,mask"):
        heads = declared.get("num_heads", 3)
        kv_heads = declared.get("num_kv_heads", heads)
        width = sizes.get("head_dim", 4 if "rope" in declared else 5)
        for n, m, value_width in [(7, 7, width), (5, 11, width), (5, 11, 3), (1, 5, width)]:
            if value_width != sizes.get("value_head_dim", value_width):
                continue
            query, key = draw(2, heads, n, width), draw(2, kv_heads, m, width)
            value = draw(2, kv_heads, m, value_width)
            query, key = 1.5 * query, 1.5 * key
            case = Case((query, key, value), query, key, value, declared)
            if takes == "qkv":
                yield case
                continue
            mask = torch.rand(2, 1, n, m, generator=generator) < 0.6
            mask[..., m - n :] |= torch.eye(n, dtype=torch.bool)
            yield case.changed(args=(query, key, value, mask), mask=mask)
            # Every first block of keys is hidden from somebody.
            mask = torch.ones_like(mask).triu(m - n - 1)
            yield case.changed(args=(query, key, value, mask), mask=mask)
        return
    width = width_of(thing, declared)
    if takes in ("x", "decode", "x2d"):
        longest = sizes.get("context_length", 13)
        lengths = [min(7, longest), 1, min(13, longest)]
        for n in lengths:
            x = draw(n, width) if takes == "x2d" else draw(3, n, width)
            yield Case((x,), **project(thing, x, x, declared))
    elif takes == "x,mask":
        x = draw(3, 7, width)
        for real in padding(declared):
            parts = project(thing, x, x, declared)
            yield Case((x, real), **parts, mask=real[:, None, None, :], judged=real)
    elif takes == "x,context":
        for n, m in [(7, 5), (3, 11), (5, 5)]:
            x, context = draw(3, n, width), draw(3, m, sizes.get("d_context", width))
            if type(thing).__name__ in TWO_DIMENSIONS:
                x, context = x[0], context[0]
            yield Case((x, context), **project(thing, x, context, declared))
    else:
        raise ValueError(takes)
