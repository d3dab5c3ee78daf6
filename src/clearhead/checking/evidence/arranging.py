"""Blocks of an observed attention as (batch, heads, len, dim), and calls of it as trials."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.matching import Trial
from clearhead.checking.hypotheses.recipe import Setting
from clearhead.recording.observed import ObservedAttention
from clearhead.recording.provenance import Provenance


@dataclass(frozen=True)
class Arrangement:
    """The places of samples and heads among blocks and rows.

    Attributes:
        per_sample: the number of blocks of one sample.
        batch_first: True if the blocks of a sample are adjacent, False if those of a head are.
        in_rows: the number of heads that share a block, as rows of the query.
        tiled: True if the rows of such a head are adjacent, False if those of a token are.
    """

    per_sample: int
    batch_first: bool
    in_rows: int = 1
    tiled: bool = True

    def heads(self, blocks: Tensor, *, keys: bool = False) -> Tensor:
        """Return (blocks, len, dim) as (batch, heads, len, dim); RuntimeError if the blocks do not divide into samples.

        With several heads in the rows of a block these are split; `keys` repeats the block for them instead.
        """
        count = self.per_sample
        split = (
            blocks.unflatten(0, (-1, count))
            if self.batch_first
            else blocks.unflatten(0, (count, -1)).transpose(0, 1)
        )
        if keys:
            return split.repeat_interleave(self.in_rows, 1)
        if self.in_rows == 1:
            return split
        if self.tiled:
            return split.unflatten(2, (self.in_rows, -1)).flatten(1, 2)
        return split.unflatten(2, (-1, self.in_rows)).transpose(2, 3).flatten(1, 2)


def arrangement(found: Provenance | None, batch: int) -> Arrangement | None:
    """Return the arrangement that the tokens of the rows show.

    None if a token is unknown, the samples have different numbers of blocks, or the tokens of keys or queries are not
    in order and the same in all blocks.
    """
    if found is None or not found.known:
        return None
    blocks = found.blocks
    count, whole = int(blocks.sum()), len(blocks)
    if whole != count * batch:
        return None
    batch_first = bool(blocks[whole - count :].all())
    if not batch_first and not blocks[batch - 1 :: batch].all():
        return None
    for each in (found.query, found.key):
        rows = each[blocks]
        if not (rows == rows[:1]).all():
            return None
    query, key = found.query[blocks][0], found.key[blocks][0]
    if not (key[key >= 0].diff() == 1).all():
        return None
    tokens = len(query.unique())
    times = len(query) // tokens
    first = int(query.min())
    line = torch.arange(first, first + tokens)
    if torch.equal(query, line.repeat(times)):
        return Arrangement(count, batch_first, times, True)
    if torch.equal(query, line.repeat_interleave(times)):
        return Arrangement(count, batch_first, times, False)
    return None


def trial(
    group: Sequence[ObservedAttention],
    found: Arrangement | None,
    contract: Contract,
    d_in: int,
    mask: Tensor | None = None,
) -> Trial:
    """Return one call of a group of heads as a trial, with the contexts of the heads as target.

    Without an arrangement every block is a sample of one head, and the mask is left out. Query and key are divided by
    the gains that were found. Raises RuntimeError if the blocks do not divide into samples.
    """
    alone = Arrangement(1, True)
    parts = []
    for index, name in enumerate(("query", "key", "value", "context")):
        heads = []
        for each in group:
            # As they were before they were scaled.
            gain = (*(each.gains or (1.0, 1.0)), 1.0, 1.0)[index]
            blocks = getattr(each, name) / gain
            heads.append((found or alone).heads(blocks, keys=name in ("key", "value")))
        parts.append(torch.cat(heads, 1))
    query, key, value, context = parts
    batch, heads, query_len, dim = query.shape
    setting = Setting(
        contract,
        batch,
        heads,
        heads,
        query_len,
        key.shape[2],
        dim,
        value.shape[3],
        mask if found is not None else None,
        d_in,
    )
    return Trial(f"{query_len} tokens", setting, query, key, value, context)
