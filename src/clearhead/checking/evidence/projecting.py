"""A whole layer as a trial: query, key and value as projected, and the contexts as the next operation reads them.

The split into heads, their rotation and their merge are stages of it, as of a function of query, key, value.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clearhead._common.foreign_names import is_output, role
from clearhead.checking.contract import Contract
from clearhead.checking.evidence.base import Recorded
from clearhead.checking.evidence.splitting import consumer, root_node, side_tags
from clearhead.checking.hypotheses.matching import Trial
from clearhead.checking.hypotheses.recipe import Setting
from clearhead.recording.observed import ObservedAttention
from clearhead.recording.operations import PRODUCTS


@dataclass(frozen=True)
class Sides:
    """Query, key, value and context of a layer in one call, each (batch, tokens, width)."""

    query: Tensor
    key: Tensor
    value: Tensor
    context: Tensor

    def end(self, case: Trial) -> Trial | None:
        """Return a trial with the multiplied query and key, the projected value, and the contexts as they are read.

        None if the widths do not fit the heads of `case`. The multiplied value is used if only a bias was added to it.
        """
        (batch, heads, tokens, _), width = case.query.shape, case.value.shape[-1]
        kv_heads = self.value.shape[-1] // width
        shapes = (batch, case.key.shape[2], kv_heads * width), (batch, tokens, heads * width)
        if not kv_heads or heads % kv_heads or shapes != (self.value.shape, self.context.shape):
            return None
        value = self.value.unflatten(-1, (kv_heads, -1)).transpose(1, 2)
        bias = case.value - value.repeat_interleave(heads // kv_heads, 1)
        if torch.allclose(
            bias, bias[:1, :, :1].expand_as(bias)
        ):  # one that is added by an operation of its own
            value = case.value
        return replace(case, value=value, target=self.context)

    def trial(self, contract: Contract, num_heads: int) -> Trial | None:
        """Return the call as a trial with this number of heads; None if the widths do not divide into heads.

        The number of key heads follows from the width of the key.
        """
        dim = self.query.shape[-1] // num_heads
        kv_heads = self.key.shape[-1] // dim if dim else 0
        widths = num_heads * dim, kv_heads * dim
        if not kv_heads or widths != (self.query.shape[-1], self.key.shape[-1]):
            return None
        if num_heads % kv_heads or self.value.shape[-1] % kv_heads:
            return None
        query, key, value = (
            each.unflatten(-1, (heads, -1)).transpose(1, 2)
            for each, heads in (
                (self.query, num_heads),
                (self.key, kv_heads),
                (self.value, kv_heads),
            )
        )
        sizes = query.shape[2], key.shape[2], dim, value.shape[-1]
        setting = Setting(contract, len(query), num_heads, kv_heads, *sizes)
        return Trial(f"{sizes[0]} tokens", setting, query, key, value, self.context)


def sides_by_tags(
    recorded: Recorded, attentions: Sequence[ObservedAttention], batch: int
) -> Iterator[Sides]:
    """Yield the sides of a layer, once for each order in which its projections may hold them.

    Nothing if a projection or the reader of the contexts is not found.

    Args:
        recorded: the call.
        attentions: of the layer, in the order of their heads.
        batch: the number of samples.
    """
    reader = consumer(recorded.recorder, recorded.output, attentions)
    if reader is None or (reader.node is not None and reader.node.name not in PRODUCTS):
        return
    context = recorded.output
    if reader.node is not None:
        # What a layer that multiplies reads is one of two operands.
        context = reader.node.operands[reader.operand]
    projected = [_projected(recorded, attentions, which, batch) for which in range(3)]
    query, key, value = projected
    if query is None or key is None or value is None or context.numel() % batch:
        return
    tokens = query[0].shape[1]
    if context.numel() % (batch * tokens):
        return
    context = context.detach().double().reshape(batch, tokens, -1)
    if query[1] and key[1]:
        yield Sides(query[0], key[0], value[0], context)
        return
    if query[2] != key[2]:  # projections of their own, rotated
        yield Sides(query[0], key[0], value[0], context)
        return
    width, dim = value[0].shape[-1], attentions[0].query.shape[-1]
    rest = query[0]
    if query[2] == value[2]:
        left = torch.tensor([each for each in range(rest.shape[-1]) if each not in set(value[3])])
        rest = rest[..., left]
    if rest.shape[-1] <= width or rest.shape[-1] % dim or width % dim:
        return
    yield Sides(rest[..., :-width], rest[..., -width:], value[0], context)
    groups = rest.unflatten(-1, (width // dim, -1, dim))
    yield Sides(groups[..., :-1, :].flatten(-3), groups[..., -1, :].flatten(-2), value[0], context)


def _projected(
    recorded: Recorded, attentions: Sequence[ObservedAttention], which: int, batch: int
) -> tuple[Tensor, bool, tuple[int, ...], list[int]] | None:
    """Return the rows of query (0), key (1) or value (2), True if their columns are known, the nodes, and the columns.

    The rows are (batch, tokens, width), of all heads; the columns are those of the last attention. None if a head has
    no projection or input that it comes from.
    """
    parts: dict[tuple[int, ...], Tensor] = {}
    known, nodes, columns = True, dict[int, None](), list[int]()
    for each in attentions:
        node, tags = root_node(recorded.recorder, each, which), side_tags(each, which)
        if node is None or tags is None or node.kind not in ("linear", "input"):
            return None
        flat, width = node.output.detach().double(), node.output.shape[-1]
        if flat.numel() % (batch * width):
            return None
        elements = tags.element[tags.node == node.index]
        exact = bool((elements > 0).all())
        columns = ((elements - node.base) % width).unique().tolist() if exact else [*range(width)]
        known &= exact
        nodes[node.index] = None
        parts.setdefault((node.index, *columns), flat.reshape(batch, -1, width)[..., columns])
    return torch.cat([*parts.values()], -1), known, tuple(nodes), columns


def sides_by_name(
    recorded: Recorded, output: Tensor, x: Tensor, context: Tensor
) -> Iterator[Sides]:
    """Yield the sides of a layer, as products with parameters named as projections.

    Nothing if query, key or value has none, a name recurs, or a parameter of another name is multiplied. For layers in
    which no attention was observed, such as a loop.

    Args:
        recorded: the call.
        output: of the call, (batch, tokens, width).
        x: what the queries are computed from, (batch, tokens, width).
        context: what keys and values are computed from, in the same form.
    """
    seen: dict[str, Tensor] = {}
    for node in recorded.recorder.nodes:
        if node.kind != "linear" or node.constant != 1:
            continue
        name = recorded.recorder.parameters.get(node.storages[1], "").removesuffix(".weight")
        side = "o" if is_output(name.rpartition(".")[2]) else role(name)
        if side not in ("q", "k", "v", "o") or side in seen:
            return
        tokens = x if side in ("q", "o") else context
        rows = node.operands[0] if side == "o" else node.output
        if rows.shape[:-1].numel() != tokens.shape[:-1].numel():
            return
        seen[side] = rows.detach().double().reshape(*tokens.shape[:-1], -1)
    output = seen.get("o", output.detach().double())
    if {"q", "k", "v"} <= set(seen) and output.shape[:-1] == x.shape[:-1]:
        yield Sides(seen["q"], seen["k"], seen["v"], output)
