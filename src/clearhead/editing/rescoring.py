"""Heads recomputed with edited scores: the queries whose weights change, and their context."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.attention.biases import DenseBias
from clearhead.attention.planning import run
from clearhead.attention.problem import Problem
from clearhead.masks.algebra import Or
from clearhead.masks.base import Mask
from clearhead.masks.dense import and_masks, dense
from clearhead.masks.tiles import portions

PORTION = 1 << 22
"""Chunk size in pairs, for a mask that is read as a tensor."""


class Rescoring(NamedTuple):
    """The changes of an operation to the scores of a call.

    Attributes:
        mask: the pairs that stay visible; None for all.
        bias: added to the scores, (batch or 1, 1, 1, kv_len), or None.
        queries: those that it is for, bool, (batch or 1, query_len); None for all.
        keys: the same for keys. Without queries and keys the mask gives the pairs.
    """

    mask: Mask | None = None
    bias: Tensor | None = None
    queries: Tensor | None = None
    keys: Tensor | None = None

    def among(self, others: Tensor) -> "Rescoring":
        """Return the changes limited to the heads that are False in `others`, bool, (1, num_heads, 1, 1)."""
        mask = None if self.mask is None else Or(dense(others), self.mask)
        bias = None if self.bias is None else self.bias.masked_fill(others, 0.0)
        return self._replace(mask=mask, bias=bias)

    def applied(self, call: Problem) -> Problem:
        """Return the call with the mask and bias added to its own; unchanged if both are None."""
        if self.mask is not None:
            call = call.replace(mask=and_masks(call.mask, self.mask))
        if self.bias is None:
            return call
        bias = self.bias
        if call.bias is not None:
            # A description becomes a tensor.
            bias = call.bias.to_dense(call.query_len, call.kv_len, device=call.device) + bias
        return call.replace(bias=DenseBias(bias))


def touched(call: Problem, change: Rescoring) -> Tensor:
    """Return the queries whose weights an operation may change, bool, (batch or 1, num_heads or 1, query_len)."""
    queries = _run_of(change.queries, call.query_len, call)
    keys = _run_of(change.keys, call.kv_len, call)
    by_mask = change.mask if change.queries is None and change.keys is None else None
    leading = [(1, 1) if each is None else each.leading for each in (call.mask, by_mask)]
    leading += [(1 if each is None else len(each), 1) for each in (change.queries, change.keys)]
    batch, heads = map(max, zip(*leading, strict=True))
    none = torch.zeros(batch, heads, call.query_len, dtype=torch.bool, device=call.device)
    rows = [none[:, :, : queries.start]]
    size = max(1, PORTION // (batch * heads * max(1, keys.stop - keys.start)))
    for some in portions(queries.stop - queries.start, size):
        some = slice(queries.start + some.start, queries.start + some.stop)
        pairs = call.visible(some, keys)
        if pairs is None:
            pairs = none.new_ones(1, 1, some.stop - some.start, keys.stop - keys.start)
        if change.queries is not None:
            pairs = pairs & change.queries[:, None, some, None]
        if change.keys is not None:
            pairs = pairs & change.keys[:, None, None, keys]
        if by_mask is not None:
            pairs = pairs & ~by_mask.block(some, keys, call.extent)
        rows.append(pairs.any(dim=-1).expand(batch, heads, -1))
    return torch.cat([*rows, none[:, :, queries.stop :]], dim=2)


def _run_of(chosen: Tensor | None, count: int, call: Problem) -> slice:
    """Return the shortest slice of [0, count) that contains everything chosen in any sample.

    All of it for None, and where numbers cannot be read; an empty slice if nothing is chosen.
    """
    if chosen is None or not call.readable:
        return slice(0, count)
    places = chosen.any(dim=0).nonzero()
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)


def number_of_queries(call: Problem, rows: Tensor) -> Tensor:
    """Return the number of queries of all samples and heads that are True in `rows` (see `touched`), int64, ()."""
    return rows.sum() * (call.batch // rows.shape[0]) * (call.num_heads // rows.shape[1])


def attended_anew(call: Problem, rows: Tensor, own: Tensor) -> Tensor:
    """Return the context with some queries recomputed from a call with edited scores; `own` itself if there are none.

    Args:
        call: the edited call.
        rows: the queries that it changes, as `touched` returns them.
        own: the context of the model's own kernel, which all other queries keep, bit for bit.
    """
    if call.readable and not bool(rows.any()):
        return own
    with apart(call):
        new = run(call.replace(keys_finite=False))
    return torch.where(rows[..., None], new.to(own.dtype), own)


@contextmanager
def apart(call: Problem) -> Iterator[None]:
    """Draw dropout in this block from a separate random stream; no-op for a call without dropout.

    The state of the generator is restored, so random numbers drawn after the block are those of a run without the
    edit.
    """
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
