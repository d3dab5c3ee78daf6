"""The attention of transformers written out, with a place to edit scores, weights and context.

It is registered as an implementation of transformers, so that an edit by hand needs no hooks.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from tests.integrations.models import same

NAME = "by_hand"


class ByHand:
    """Edits of the scores, the weights and the context of a module, by its place among those
    that attend: tensors (batch, num_heads, query_len, …)."""

    def __init__(self, layer: int) -> None:
        self.layer = layer
        self.module: nn.Module | None = None
        self.seen: list[nn.Module] = []

    def at(self, module: nn.Module) -> bool:
        if not any(each is module for each in self.seen):
            self.seen.append(module)
        return self.seen.index(module) == self.layer if module in self.seen else False

    def inputs(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return query, key, value

    def scores(self, scores: Tensor) -> Tensor:
        return scores

    def weights(self, weights: Tensor) -> Tensor:
        return weights

    def context(self, context: Tensor) -> Tensor:
        return context


_edit: list[ByHand] = []


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    edit = _edit[-1] if _edit and _edit[-1].at(module) else None
    if edit is not None:
        query, key, value = edit.inputs(query, key, value)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    if position_bias is not None:
        scores = scores + position_bias
    if attention_mask is not None:
        scores = scores + attention_mask[..., : key.shape[2]]
    if edit is not None:
        scores = edit.scores(scores)
    if s_aux is not None:
        sinks = s_aux.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], dim=3)
    weights = scores.softmax(dim=3)
    if s_aux is not None:
        weights = weights[..., :-1]
    if edit is not None:
        weights = edit.weights(weights)
    context = weights @ value
    if edit is not None:
        context = edit.context(context)
    return context.transpose(1, 2).contiguous(), weights


def by_hand(model: Any) -> Any:
    """The model with the attention that is written out here, and the weights of another."""
    interface: Any = transformers.AttentionInterface
    masks: Any = transformers.AttentionMaskInterface
    interface.register(NAME, attention)
    masks.register(NAME, masks()["eager"])
    return same(model, NAME)


@contextmanager
def edited(edit: ByHand) -> Iterator[ByHand]:
    _edit.append(edit)
    try:
        yield edit
    finally:
        _edit.pop()


def changing(layer: int, **functions: Callable[[Tensor], Tensor]) -> ByHand:
    """An edit by hand, from functions of the scores, the weights or the context."""
    edit = ByHand(layer)
    for name, function in functions.items():
        setattr(edit, name, function)
    return edit
