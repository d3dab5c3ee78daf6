"""Heads that attend anew with other scores: the queries that this changes, and their context."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.attention.biases import DenseBias
from clearhead.attention.planning import run
from clearhead.attention.problem import Problem
from clearhead.masks.base import Mask
from clearhead.masks.dense import dense
from clearhead.masks.tiles import portions

PORTION = 1 << 22
"""Pairs of a mask that are read at a time."""


class Touched(NamedTuple):
    """The weights of a call that an operation on the scores changes.

    Attributes:
        rows: bool, (batch or 1, num_heads or 1, query_len), True at queries with one.
        weights: their number, int64, ().
    """

    rows: Tensor
    weights: Tensor

    def queries(self, call: Problem) -> Tensor:
        """The number of queries with one, int64, ()."""
        return self.rows.sum() * _copies(call, self.rows)


def touched(call: Problem, spared: Mask) -> Touched:
    """Return the weights that are there and are not spared.

    Args:
        call: the call as it is.
        spared: the pairs that an operation leaves as they are.
    """
    masks = [spared] if call.mask is None else [spared, call.mask]
    batch, heads = (max(sizes) for sizes in zip(*(each.leading for each in masks), strict=True))
    found = [torch.zeros(batch, heads, 0, dtype=torch.bool, device=call.device)]
    weights = torch.zeros((), dtype=torch.int64, device=call.device)
    for rows in portions(call.query_len, max(1, PORTION // (batch * heads * max(1, call.kv_len)))):
        every = slice(0, call.kv_len)
        pairs = ~spared.block(rows, every, call.query_len, call.kv_len, call.device)
        visible = call.visible(rows)
        pairs = pairs if visible is None else pairs & visible
        found.append(pairs.any(dim=-1).expand(batch, heads, -1))
        weights = weights + pairs.expand(batch, heads, -1, -1).sum()
    return Touched(torch.cat(found, dim=2), weights * _copies(call, found[0]))


def _copies(call: Problem, rows: Tensor) -> int:
    """The number of samples and heads that one of a mask is for."""
    return (call.batch // rows.shape[0]) * (call.num_heads // rows.shape[1])


def attended_anew(call: Problem, rows: Tensor, own: Tensor) -> Tensor:
    """Return the context with that of some queries from a call with other scores.

    Args:
        call: the edited call.
        rows: the queries that it changes, as `Touched` has them.
        own: the context of the model's own kernel, which all other queries keep, bit for bit.
    """
    some = slice(0, call.query_len)
    if call.readable:
        places = rows.any(dim=0).any(dim=0).nonzero()
        if not len(places):
            return own
        some = _if_small(call, slice(int(places[0]), int(places[-1]) + 1))
    if some != slice(0, call.query_len):
        visible, bias = call.visible(some), call.bias_block(some)
        call = call.replace(
            query=call.query[:, :, some],
            mask=None if visible is None else dense(visible),
            bias=None if bias is None else DenseBias(bias),
            real_queries=None,
        )
    with apart(call):
        new = run(call.replace(keys_finite=False))
    new = torch.where(rows[:, :, some, None], new.to(own.dtype), own[:, :, some])
    return torch.cat([own[:, :, : some.start], new, own[:, :, some.stop :]], dim=2)


def _if_small(call: Problem, some: slice) -> slice:
    """The run of queries; that of all, where what some see would not be small as a tensor."""
    leading = 1 if call.mask is None else call.mask.leading[0] * call.mask.leading[1]
    leading = leading if call.bias is None else max(leading, call.num_heads)
    is_large = (some.stop - some.start) * leading * call.kv_len > PORTION
    return slice(0, call.query_len) if is_large or call.part is not None else some


@contextmanager
def apart(call: Problem) -> Iterator[None]:
    """Draw the dropout of what attends anew from a stream of its own, so that all that is drawn later is
    what it is without the edit."""
    if call.dropout is None:
        yield
        return
    device, on_cpu = call.device, call.device.type == "cpu"
    with torch.random.fork_rng(
        [] if on_cpu else [device], device_type="cuda" if on_cpu else device.type
    ):
        seed = int(torch.randint(1 << 62, (), device=device))
        if on_cpu:
            torch.default_generator.manual_seed(seed)
        else:
            module = torch.get_device_module(device)
            with module.device(device):
                module.manual_seed(seed)
        yield
