"""A call of which some heads are those of another call, as whoever watches an edit is handed it."""

import math

import torch
from torch import Tensor

from clearhead import stages
from clearhead.attention.biases import DenseBias
from clearhead.attention.distance_biases import Alibi
from clearhead.attention.problem import Problem
from clearhead.masks.dense import dense


def with_heads(call: Problem, other: Problem, heads: list[int]) -> Problem:
    """Return the call with some heads of another one, whose keys are then not shared."""
    index = torch.tensor(heads, device=call.device)
    if (call.scale, call.softcap) != (other.scale, other.softcap):
        other = _in_bias(other)  # which is added to what those two made
    width = max(call.query.shape[3], other.query.shape[3])
    key = _wide(stages.repeat_kv_heads(call.key, call.num_heads), width)
    key = key.index_copy(1, index, _wide(stages.repeat_kv_heads(other.key, len(heads)), width))
    query = _wide(call.query, width).index_copy(1, index, _wide(other.query, width))
    mask, bias, sinks = call.mask, call.bias, call.sinks
    shape = *query.shape[:3], key.shape[2]
    if mask is not None or other.mask is not None:
        shown = torch.ones(shape, dtype=torch.bool, device=call.device)
        visible, others = call.visible(), other.visible()
        shown = shown if visible is None else shown & visible
        shown[:, heads] = True if others is None else others
        mask = dense(shown)
    exact = stages.upcast(query[:0])
    if isinstance(bias, Alibi) and isinstance(other.bias, Alibi):
        slopes = bias.slopes.to(index.device)
        bias = Alibi(slopes.index_copy(0, index, other.bias.slopes.to(slopes)), follows=False)
    elif bias is not None or other.bias is not None:
        added = exact.new_zeros(shape)
        own, others = call.bias_block(), other.bias_block()
        added = added if own is None else added + own
        added[:, heads] = 0.0 if others is None else others.to(added)
        bias = DenseBias(added)
    if sinks is not None or other.sinks is not None:
        own, others = (
            # A sink of −∞ takes no share.
            exact.new_full((each.num_heads,), -math.inf) if each.sinks is None else each.sinks
            for each in (call, other)
        )
        sinks = own.to(exact).index_copy(0, index, others.to(exact))
    value = stages.repeat_kv_heads(call.value, call.num_heads)
    return call.replace(query=query, key=key, value=value, mask=mask, bias=bias, sinks=sinks)


def _in_bias(call: Problem) -> Problem:
    """The call with its scores in its bias alone."""
    query, key = stages.upcast(call.query), stages.repeat_kv_heads(call.key, call.num_heads)
    scores = stages.scores(query, key, call.factor) * call.scale
    bias = stages.masked_scores(stages.capped_scores(scores, call.softcap), call.bias_block(), None)
    return call.replace(query=torch.zeros_like(call.query), bias=DenseBias(bias), softcap=None)


def _wide(tensor: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(tensor, (0, width - tensor.shape[3]))
