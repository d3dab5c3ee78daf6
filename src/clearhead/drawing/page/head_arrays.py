"""The arrays of a page of heads: weights, maps and links, rounded to fit a size limit."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead._text import format_bytes
from clearhead.drawing.page.payload import BYTE, WORD, Deflated, Rounded, deflated, rounded
from clearhead.errors import ArgumentError
from clearhead.masks.spans import Spans
from clearhead.matrix.head_view import HeadMaps, HeadView
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.summary import Summary

SHORT_BYTES, LONG_BYTES = 8_600_000, 7_100_000
"""The weights of short texts, and all numbers of long ones, take no more before base64, which makes
4 bytes of 3."""

SMALL = 40
"""Rows and columns of the maps of the overview, at most."""

MAPS = (1024, 512, 256, 128)
"""Rows and columns of the map of a long text: the finest that there is room for."""

EXACT_BYTES = 1_000_000
"""Weights that take no more are written as they are, in float32: those of 72 heads up to 58 tokens; and in 16 bits."""

PIECES = 8
"""The runs of keys of a query that a page knows at most; of a mask of more it knows cells only."""

LINKS = 8
"""The strongest links of each query that a long text has, at most."""

VECTOR_BYTES = 8_000_000
"""Queries, keys and biases, float32, of a page that has them."""

STEPS = (WORD, BYTE, 180, 127, 107, 90, 76, 64, 54, 45, 36, 28, 22, 17)
"""Steps that weights are rounded to, in 16 bits or 8: the most that there is room for."""

EVERY = 7
"""Stride of the queries that are sampled to estimate how well weights compress."""


class Arrays(NamedTuple):
    """Arrays of a payload by name, and the entry of the layer that describes how to decode them (`about`)."""

    about: dict[str, Any]
    arrays: dict[str, Tensor | Deflated]


def choose_levels(views: Sequence[HeadView]) -> int:
    """Return the largest number of steps to which the weights of all heads can be rounded on a page.

    It is 16 bits if they fit into EXACT_BYTES, and otherwise the most steps in 8 bits that fit into SHORT_BYTES, as
    estimated from every seventh query; the fewest in STEPS if not even they fit.
    """
    samples = [view.exact(EVERY) for view in views]

    def fits(levels: int) -> bool:
        """Return True if all weights are estimated to fit when they are rounded to `levels` steps."""
        size = 0.0
        for maps in samples:
            rows = max(1, maps.shares.shape[1])
            arrays = dict(enumerate(rounded_maps(maps, levels).codes))
            size += size_of(arrays) * maps.query_len / rows
        return size <= (SHORT_BYTES if levels <= BYTE else min(EXACT_BYTES, SHORT_BYTES))

    place = bisect_left(STEPS, True, key=fits)
    return STEPS[min(place, len(STEPS) - 1)]


def rounded_maps(maps: HeadMaps, levels: int = BYTE) -> Rounded:
    """Return maps rounded to `levels` steps by their square root; hidden cells are distinguished from 0."""
    hidden = None if maps.hidden is None else maps.hidden.expand(maps.shares.shape)
    return rounded(maps.shares, levels, hidden=hidden)


def per_head(place: int, name: str, numbers: Rounded) -> Arrays:
    """Return codes, (heads, rows, columns), as one array "place/head/name" per head, decoded when it is drawn."""
    arrays = {f"{place}/{head}/{name}": codes for head, codes in enumerate(numbers.codes)}
    return Arrays(numbers.about | {"shape": list(numbers.codes.shape[1:])}, dict(arrays))


def exact_weights(place: int, maps: HeadMaps) -> Arrays:
    """Return float32 weights as one array per head; −1 where they are hidden."""
    weights = maps.shares.float()
    if maps.hidden is not None:
        weights = weights.masked_fill(maps.hidden, -1.0)
    arrays = {f"{place}/{head}/weights": each for head, each in enumerate(weights)}
    return Arrays({"exact": True, "shape": list(weights.shape[1:])}, dict(arrays))


def check_why(matrices: Sequence[tuple[AttentionMatrix, int]]) -> None:
    """Raise if queries, keys and biases are too large for a page, or if there are none.

    Raises:
        ArgumentError: code `page.why`.
    """
    if not matrices:
        raise ArgumentError(
            "page.why",
            "why=True writes query and key of short texts, and no layer is the matrix of one. ch.view has "
            "those of longer texts.",
        )
    size = 0
    for matrix, _ in matrices:
        problem = matrix.problem
        size += 4 * (problem.query[0].numel() + problem.key[0].numel())
        if problem.bias is not None:
            size += 4 * matrix.num_heads * matrix.query_len * matrix.kv_len
    if size > VECTOR_BYTES:
        raise ArgumentError(
            "page.why",
            f"why=True writes query and key, which take {format_bytes(size)} here; a page has room for "
            f"{format_bytes(VECTOR_BYTES)}. Watch fewer layers, or use ch.view, which has both.",
        )


def query_and_key(place: int, matrix: AttentionMatrix, sample: int) -> Arrays:
    """Return query, key and bias of a sample, float32, one array per head, and the parameters of the softmax.

    The parameters are the scale, softcap and sinks; with them the page computes the weights.
    """
    problem = matrix.problem
    every = {"query": problem.query[sample], "key": problem.key[sample]}
    if problem.bias is not None:
        queries, keys = slice(0, matrix.query_len), slice(0, matrix.kv_len)
        bias = problem.bias.block(queries, keys, problem.extent)
        shape = (problem.batch, problem.num_heads, queries.stop, keys.stop)
        every["bias"] = bias.expand(shape)[sample]
    arrays: dict[str, Tensor | Deflated] = {
        f"{place}/{head}/{name}": rows.detach().float()
        for name, heads in every.items()
        for head, rows in enumerate(heads)
    }
    about = {
        "dim": problem.query.shape[-1],
        "scale": problem.scale,
        "softcap": problem.softcap,
        "bias": problem.bias is not None,
        "sinks": None if problem.sinks is None else problem.sinks.detach().float().tolist(),
    }
    return Arrays(about, arrays)


def runs_of_keys(place: int, spans: Spans | None, sample: int) -> Arrays | None:
    """Return the keys that each query may see, as runs; None without spans, or with more than 8 runs a query.

    Each edge is stored as the difference from that of the query before, which deflates to next to nothing.
    """
    if spans is None or spans.pieces > PIECES:
        return None
    row = sample if len(spans.start) > 1 else 0
    edges = torch.stack([spans.start[row], spans.stop[row]], dim=-1).flatten(1).T
    steps = edges.diff(dim=1, prepend=edges.new_zeros(len(edges), 1))
    codes = deflated(steps.to(torch.int32).contiguous())
    return Arrays({"pieces": spans.pieces}, {f"{place}/spans": codes})


def small_maps(place: int, maps: HeadMaps) -> Arrays | None:
    """Return the maps of the overview, at most 40 × 40 cells, from weights or a map of shares.

    None if they are empty.
    """
    if not maps.shares.numel():
        return None
    numbers = rounded_maps(maps.coarser(SMALL, SMALL))
    about = numbers.about | {"shape": list(numbers.codes.shape[1:])}
    return Arrays(about, {f"{place}/small": numbers.codes})


def finest_map(place: int, maps: HeadMaps, room: float) -> Arrays:
    """Return the finest map of each head that fits into `room` bytes, or at most 128 cells a side if none does."""
    most = max(maps.shares.shape[1:])
    sizes = [most, *(size for size in MAPS if size < most)]
    while True:
        size = sizes.pop(0)
        about, arrays = per_head(place, "pooled", rounded_maps(maps.coarser(size, size)))
        codes: dict[str, Tensor | Deflated] = {
            name: deflated(each) for name, each in arrays.items()
        }
        if not sizes or size_of(codes) <= room:
            return Arrays(about, codes)


def strongest_links(place: int, summary: Summary, room: float) -> Arrays | None:
    """Return the strongest links of the first sample, rank by rank, as many as fit into `room` bytes, at least one.

    `summary` must have its largest weights. None if they are of 0 ranks.
    """
    assert summary.top_k is not None
    weights, keys = summary.top_k.weights[0], summary.top_k.keys[0]
    position = torch.arange(summary.query_len, device=keys.device)
    position = position + (summary.kv_len - summary.query_len)
    found: Arrays | None = None
    for rank in range(weights.shape[-1]):
        numbers = rounded(weights[..., rank], BYTE)
        back = (position - keys[..., rank]).masked_fill(keys[..., rank] < 0, 0)
        planes = _planes(back, summary.kv_len + summary.query_len)
        new: dict[str, Tensor | Deflated] = {
            f"{place}/{head}/{name}{rank}": deflated(each)
            for name, every in (("back", planes), ("link", numbers.codes))
            for head, each in enumerate(every)
        }
        room -= size_of(new)
        if room < 0 and rank:
            break
        before = Arrays({"top": []}, {}) if found is None else found
        top = [*before.about["top"], numbers.about["top"]]
        counts = {"count": rank + 1, "top": top, "planes": planes.shape[1]}
        found = Arrays(numbers.about | counts, before.arrays | new)
    return found


def size_of(arrays: Mapping[Any, Tensor | Deflated]) -> int:
    """Return the size of arrays in bytes, deflated."""
    return sum(len(deflated(each).content) for each in arrays.values())


def _planes(back: Tensor, most: int) -> Tensor:
    """Split whole numbers from −most to most, (heads, queries), into planes of bytes, (heads, planes, queries).

    −1, 1, −2 … become 1, 2, 3 …; the planes begin with the lowest byte. The high bytes of
    neighbours are mostly the same, which deflates well.
    """
    zigzag = torch.where(back < 0, -2 * back - 1, 2 * back)
    count = max(1, math.ceil(math.log2(2 * most + 1) / 8))
    return torch.stack([(zigzag >> 8 * n & 255).to(torch.uint8) for n in range(count)], dim=1)
