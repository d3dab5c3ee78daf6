"""The tokens × tokens matrix of a mask in blocks, counted without materialising it.

The visible pairs of a block are counted exactly, from the spans. A run of keys covers some blocks of
its row whole and at most two in part; the whole ones are entered as +1 where they begin and −1 where
they end, and summed once per row of blocks.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead._common.elements import Drawn
from clearhead.masks.base import Mask
from clearhead.masks.full import full
from clearhead.masks.spans import Extent, Spans

EMPTY, PARTIAL, FULL = 0, 1, 2
SYMBOLS = {EMPTY: "·", PARTIAL: "◪", FULL: "■"}
DRAWN_BLOCKS = 64
KEY_SETS_WORTH_COUNTING = 64
BITS = 62
PORTION = 1 << 22


@dataclass(frozen=True, eq=False, repr=False)
class BlockMap(Drawn):
    """The blocks of a mask: empty (0), partial (1) or full (2).

    `kinds` is uint8 of shape (query_blocks, kv_blocks), with (batch, num_heads or 1) as leading axes for a
    mask that differs between samples or heads; `share`, float32 of the same shape, is the share of the pairs of
    a block that are visible, from 0 to 1. `block` is the size of a block in tokens, (queries, keys).

    Example:
        >>> import clearhead as ch
        >>> blocks = ch.sliding_window(left=1, right=0).blocks(8, 8, 2)
        >>> blocks.kinds.tolist()
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
        >>> blocks.share[1].tolist()
        [0.25, 0.75, 0.0, 0.0]
    """

    kinds: Tensor
    share: Tensor
    block: tuple[int, int]
    query_len: int
    kv_len: int

    @property
    def empty(self) -> Tensor:
        """The blocks in which no query sees a key: bool, of the shape of `kinds`."""
        return self.kinds == EMPTY

    @property
    def partial(self) -> Tensor:
        """The blocks in which some pairs are visible and some are not: bool, of the shape of `kinds`."""
        return self.kinds == PARTIAL

    @property
    def full(self) -> Tensor:
        """The blocks in which every query sees every key: bool, of the shape of `kinds`."""
        return self.kinds == FULL

    def __repr__(self) -> str:
        """Return the numbers of full, partial and empty blocks as text, and a drawing of up to 64 × 64 blocks.

        A map that differs between samples or heads is not drawn.
        """
        rows, columns = self.kinds.shape[-2:]
        counts = ", ".join(
            f"{int((self.kinds == kind).sum())} {name}"
            for kind, name in ((FULL, "full"), (PARTIAL, "partial"), (EMPTY, "empty"))
        )
        leading = "".join(f"{size} × " for size in self.kinds.shape[:-2])
        text = f"{leading}{rows} × {columns} blocks of {self.block[0]} × {self.block[1]}: {counts}"
        if self.kinds.ndim == 2 and 0 < max(rows, columns) <= DRAWN_BLOCKS:
            for row in self.kinds.tolist():
                text += "\n" + " ".join(SYMBOLS[kind] for kind in row)
        return text


def block_map(mask: Mask, query_len: int, kv_len: int, block: tuple[int, int]) -> BlockMap:
    """Return the block map of a mask, as `Mask.blocks` describes.

    `block` is the queries and keys of a block, each 1 or more.
    """
    counts = block_counts(mask, query_len, kv_len, block)
    rows = _sizes(query_len, block[0], counts.device)
    columns = _sizes(kv_len, block[1], counts.device)
    pairs = rows[:, None] * columns
    kinds = torch.where(counts == pairs, FULL, PARTIAL)
    kinds = kinds.masked_fill(counts == 0, EMPTY).to(torch.uint8)
    each = [
        tensor.expand(*mask.leading, *counts.shape[-2:])
        for tensor in (kinds, (counts / pairs).float())
    ]
    if mask.batch is None and mask.heads is None:
        each = [tensor[0, 0] for tensor in each]
    kinds, share = (tensor.contiguous() for tensor in each)
    return BlockMap(kinds, share, block, query_len, kv_len)


def block_counts(mask: Mask, query_len: int, kv_len: int, block: tuple[int, int]) -> Tensor:
    """Return the number of visible pairs of each block, int64.

    The shape is (batch or 1, num_heads or 1, query_blocks, kv_blocks).
    """
    counts = _count_from_spans(mask, query_len, kv_len, block)
    return _count_row_by_row(mask, query_len, kv_len, block) if counts is None else counts


def pairs_of_queries(mask: Mask | None, tokens: int, kv_len: int) -> Tensor:
    """Return the number of keys that each query sees, float64, (tokens,), on the CPU.

    For a mask that differs between samples or heads it is the sum over these; None sees all keys. It is counted from
    the spans, in O(tokens); a mask without spans is evaluated pair by pair.
    """
    if mask is None:
        return torch.full((tokens,), float(kv_len), dtype=torch.float64)
    if not tokens * kv_len:
        return torch.zeros(tokens, dtype=torch.float64)
    return block_counts(mask, tokens, kv_len, (1, kv_len)).sum(dim=(0, 1, 3)).double().cpu()


def _sizes(length: int, block: int, device: torch.device) -> Tensor:
    """Return the number of tokens in each block of `block` tokens, int64, (blocks,); only the last can have fewer."""
    starts = torch.arange(0, length, block, device=device)
    return (length - starts).clamp(max=block)


def _count_from_spans(
    mask: Mask, query_len: int, kv_len: int, block: tuple[int, int]
) -> Tensor | None:
    """Return the visible pairs per block, int64, (batch or 1, 1, query_blocks, kv_blocks).

    None if the mask has no spans even where its `columns` are known, if these are more than BITS, or if they make more
    than KEY_SETS_WORTH_COUNTING different sets of keys.
    """
    extent = mask.extent(query_len, kv_len)
    device = extent.device
    columns = list(dict.fromkeys(mask.columns()))
    if len(columns) > BITS:
        return None
    # One bit for each part: keys of one number are in the same parts.
    parts_of_key = torch.zeros(1, kv_len, dtype=torch.int64, device=device)
    for bit, part in enumerate(columns):
        parts_of_key = parts_of_key + (_key_set(part, extent).long() << bit)
    classes = parts_of_key.unique().tolist() if columns else [0]
    if len(classes) > KEY_SETS_WORTH_COUNTING:
        return None
    # Keys of one set are counted together: their parts show every key, and the other parts none.
    every, none = full(), ~full()
    total: Tensor | None = None
    for parts in classes:
        known = {part: every if parts >> bit & 1 else none for bit, part in enumerate(columns)}
        spans = mask.substitute(known).spans(extent)
        if spans is None:
            return None
        counts = _count(spans, parts_of_key == parts, query_len, kv_len, block)
        total = counts if total is None else total + counts
    return total


def _key_set(part: Mask, extent: Extent) -> Tensor:
    """Return which keys `part` shows, a mask that is the same for all queries: bool, (batch or 1, kv_len)."""
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.int64, device=extent.device)
    keys = torch.arange(extent.kv_len, device=extent.device).view(1, 1, 1, -1)
    return part.visible(zero, keys, extent)[:, 0, 0]


def _count(
    spans: Spans, keys: Tensor, query_len: int, kv_len: int, block: tuple[int, int]
) -> Tensor:
    """Return the pairs per block of a query and a key in one of its runs, int64, (rows, 1, query_blocks, kv_blocks).

    Args:
        spans: the runs of each query.
        keys: bool, (rows, kv_len): only keys that are True count.
        query_len: number of queries.
        kv_len: number of keys.
        block: the queries and keys of a block.
    """
    query_block, kv_block = block
    query_blocks, kv_blocks = -(-query_len // query_block), -(-kv_len // kv_block)
    rows = keys.shape[0] if spans.start.shape[0] == 1 else spans.start.shape[0]
    device = keys.device
    counts = torch.zeros(rows, query_blocks * kv_blocks, dtype=torch.int64, device=device)
    if counts.numel() == 0:
        return counts.view(rows, 1, query_blocks, kv_blocks)
    start = spans.start.expand(rows, -1, -1).flatten(1)
    stop = spans.stop.expand(rows, -1, -1).flatten(1)
    before = torch.zeros(rows, kv_len + 1, dtype=torch.int64, device=device)
    before[:, 1:] = keys.expand(rows, -1).cumsum(-1)
    edges = torch.arange(kv_blocks + 1, device=device).mul(kv_block).clamp(max=kv_len)

    query = torch.arange(query_len, device=device).repeat_interleave(spans.pieces)
    row_of_blocks = (query // query_block * kv_blocks).expand(rows, -1)
    nonempty = stop > start
    first = (start // kv_block).clamp(max=kv_blocks - 1)
    last = ((stop - 1) // kv_block).clamp(min=0)

    def keys_between(low: Tensor, high: Tensor) -> Tensor:
        """Return the number of marked keys in [low, high) of each run, (rows, runs of all queries); 0 if empty."""
        return (before.gather(1, high) - before.gather(1, low)).mul(nonempty)

    one_block = first == last
    head_stop = torch.where(one_block, stop, edges[first + 1])
    counts.scatter_add_(1, row_of_blocks + first, keys_between(start, head_stop))
    tail = keys_between(edges[last], stop).mul(~one_block)
    counts.scatter_add_(1, row_of_blocks + last, tail)

    # Blocks strictly between the first and the last are covered whole.
    between = (nonempty & ~one_block).long()
    steps = torch.zeros(rows, query_blocks * kv_blocks + 1, dtype=torch.int64, device=device)
    steps.scatter_add_(1, row_of_blocks + first + 1, between)
    steps.scatter_add_(1, row_of_blocks + last, -between)
    covering = steps[:, :-1].view(rows, query_blocks, kv_blocks).cumsum(-1)
    keys_of_block = before[:, edges[1:]] - before[:, edges[:-1]]
    counts = counts.view(rows, query_blocks, kv_blocks) + covering * keys_of_block[:, None]
    return counts[:, None]


def _count_row_by_row(mask: Mask, query_len: int, kv_len: int, block: tuple[int, int]) -> Tensor:
    """Return the visible pairs per block, int64, (batch or 1, heads or 1, query_blocks, kv_blocks).

    The mask is evaluated pair by pair, in chunks of queries.
    """
    query_block, kv_block = block
    query_blocks, kv_blocks = -(-query_len // query_block), -(-kv_len // kv_block)
    extent = mask.extent(query_len, kv_len)
    size = (*mask.leading, query_blocks, kv_blocks)
    counts = torch.zeros(size, dtype=torch.int64, device=extent.device)
    portion = max(1, PORTION // max(1, mask.leading[0] * mask.leading[1] * kv_len))
    for row in range(query_blocks):
        stop = min((row + 1) * query_block, query_len)
        for first in range(row * query_block, stop, portion):
            queries = slice(first, min(first + portion, stop))
            seen = mask.block(queries, slice(0, kv_len), extent)
            padded = F.pad(seen.sum(-2), (0, kv_blocks * kv_block - kv_len))
            counts[:, :, row] += padded.unflatten(-1, (kv_blocks, kv_block)).sum(-1)
    return counts
