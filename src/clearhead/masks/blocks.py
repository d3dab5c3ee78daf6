"""The tokens × tokens matrix of a mask in blocks, counted without materialising it.

The visible pairs of a block are counted exactly: from the spans, and where a mask has none, pair by pair.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead._common.elements import Drawn
from clearhead.masks.base import Mask
from clearhead.masks.tiles import portions

EMPTY, PARTIAL, FULL = 0, 1, 2
SYMBOLS = {EMPTY: "·", PARTIAL: "◪", FULL: "■"}
DRAWN_BLOCKS = 64
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
    rows, columns = (
        _edges(length, size, counts.device).diff()
        for length, size in zip((query_len, kv_len), block, strict=True)
    )
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
    return _count_pair_by_pair(mask, query_len, kv_len, block) if counts is None else counts


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


def _count_from_spans(
    mask: Mask, query_len: int, kv_len: int, block: tuple[int, int]
) -> Tensor | None:
    """Return the visible pairs per block, int64, (batch or 1, 1, query_blocks, kv_blocks); None without spans."""
    extent = mask.extent(query_len, kv_len)
    spans = mask.spans(extent)
    if spans is None:
        return None
    edges, device = _edges(kv_len, block[1], extent.device), extent.device
    # A run has (e − start)⁺ − (e − stop)⁺ keys before the edge e, where x⁺ is x or 0: a sum of edges and a number of
    # edges, each over all runs that begin or end before e.
    size = len(spans.start), -(-query_len // block[0]), len(edges)
    number, total = torch.zeros(2, *size, dtype=torch.int64, device=device)
    row = torch.arange(query_len, device=device) // block[0] * len(edges)
    for edge, sign in ((spans.start, 1), (spans.stop, -1)):
        place = (row[:, None] + edge // block[1]).flatten(1)
        number.flatten(1).scatter_add_(1, place, torch.full_like(place, sign))
        total.flatten(1).scatter_add_(1, place, edge.flatten(1) * sign)
    number, total = (F.pad(each.cumsum(-1), (1, -1)) for each in (number, total))
    return (edges * number - total).diff(dim=-1)[:, None]


def _count_pair_by_pair(mask: Mask, query_len: int, kv_len: int, block: tuple[int, int]) -> Tensor:
    """Return the visible pairs per block, int64, (batch or 1, heads or 1, query_blocks, kv_blocks).

    The mask is evaluated pair by pair, in chunks of queries.
    """
    extent = mask.extent(query_len, kv_len)
    edges, row = _edges(kv_len, block[1], extent.device), torch.arange(query_len) // block[0]
    size = *mask.leading, -(-query_len // block[0]), len(edges) - 1
    counts = torch.zeros(size, dtype=torch.int64, device=extent.device)
    portion = max(1, PORTION // max(1, mask.leading[0] * mask.leading[1] * kv_len))
    for queries in portions(query_len, portion):
        seen = mask.block(queries, slice(0, kv_len), extent).expand(*mask.leading, -1, -1)
        found = F.pad(seen.cumsum(-1), (1, 0))[..., edges].diff(dim=-1)
        counts.index_add_(2, row[queries].to(extent.device), found)
    return counts


def _edges(length: int, block: int, device: torch.device) -> Tensor:
    """Return the first token of each block of `block` tokens, and `length` at the end, int64, (blocks + 1,)."""
    return torch.arange(-(-length // block) + 1, device=device).mul(block).clamp(max=length)
