"""Random masks with what they must look like: every leaf written a second time, the slow way.

The second way is one comparison per pair of query and key, in Python, and what combines them are
the operators of tensors. Nothing of `clearhead.masks` is used for it.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead.masks.padding import Side

LENGTHS = (0, 1, 2, 3, 5, 7, 17)
BLOCKS = st.integers(1, 8) | st.tuples(st.integers(1, 40), st.integers(1, 40))


class Sizes(NamedTuple):
    batch: int
    heads: int
    query_len: int
    kv_len: int


class Expression(NamedTuple):
    """A mask, the sizes it is for, and the tensor (batch, heads, query_len, kv_len) it must be."""

    mask: ch.Mask
    sizes: Sizes
    expected: Tensor

    def __repr__(self) -> str:
        return f"{self.mask.describe()} for {self.sizes}"


sizes = st.builds(
    Sizes,
    batch=st.sampled_from([1, 3]),
    heads=st.sampled_from([1, 2]),
    query_len=st.sampled_from(LENGTHS),
    kv_len=st.sampled_from(LENGTHS),
)


def pairs(sizes: Sizes, visible: Callable[[int, int, int], bool]) -> Tensor:
    """The tensor of a mask that is given as a function of sample, query and key."""
    batch, _, query_len, kv_len = sizes
    flat = [
        visible(sample, query, key)
        for sample in range(batch)
        for query in range(query_len)
        for key in range(kv_len)
    ]
    tensor = torch.tensor(flat, dtype=torch.bool).view(batch, 1, query_len, kv_len)
    return tensor.expand(sizes)


def whole_numbers(batch: int, low: int, high: int) -> st.SearchStrategy[int | list[int] | Tensor]:
    """One number for all rows, or one per row as a list or as a tensor."""
    number = st.integers(low, high)
    rows = st.lists(number, min_size=batch, max_size=batch)
    return number | rows | rows.map(torch.tensor)


def of_row(numbers: int | list[int] | Tensor, sample: int) -> int:
    return numbers if isinstance(numbers, int) else int(numbers[sample])


def bools(*shape: int) -> st.SearchStrategy[Tensor]:
    count = int(torch.Size(shape).numel())
    # The bits of one number are drawn much faster than as many booleans.
    return st.integers(0, (1 << count) - 1).map(
        lambda bits: torch.tensor([bits >> i & 1 for i in range(count)]).bool().view(shape)
    )


@st.composite
def causals(draw: st.DrawFn, sizes: Sizes) -> Expression:
    offset = draw(st.none() | whole_numbers(sizes.batch, -4, 31))
    last = sizes.kv_len - sizes.query_len

    def visible(sample: int, query: int, key: int) -> bool:
        return key <= query + (last if offset is None else of_row(offset, sample))

    return Expression(ch.causal(offset=offset), sizes, pairs(sizes, visible))


@st.composite
def windows(draw: st.DrawFn, sizes: Sizes) -> Expression:
    side = st.none() | st.integers(0, 31)
    left, right = draw(side), draw(side)
    offset = draw(st.none() | whole_numbers(sizes.batch, -4, 31))
    last = sizes.kv_len - sizes.query_len

    def visible(sample: int, query: int, key: int) -> bool:
        position = query + (last if offset is None else of_row(offset, sample))
        near_left = left is None or position - key <= left
        near_right = right is None or key - position <= right
        return near_left and near_right

    mask = ch.sliding_window(left=left, right=right, offset=offset)
    return Expression(mask, sizes, pairs(sizes, visible))


@st.composite
def prefixes(draw: st.DrawFn, sizes: Sizes) -> Expression:
    length = draw(whole_numbers(sizes.batch, 0, 31))
    expected = pairs(sizes, lambda sample, query, key: key < of_row(length, sample))
    return Expression(ch.prefix(length), sizes, expected)


@st.composite
def paddings(draw: st.DrawFn, sizes: Sizes) -> Expression:
    lengths = draw(whole_numbers(sizes.batch, 0, sizes.kv_len))
    side: Side | None = draw(st.sampled_from([None, "right", "left"]))

    def visible(sample: int, query: int, key: int) -> bool:
        real = of_row(lengths, sample)
        return key >= sizes.kv_len - real if side == "left" else key < real

    return Expression(ch.padding(lengths, side=side), sizes, pairs(sizes, visible))


@st.composite
def paddings_with_holes(draw: st.DrawFn, sizes: Sizes) -> Expression:
    shape = draw(st.sampled_from([(sizes.kv_len,), (sizes.batch, sizes.kv_len)]))
    valid = draw(bools(*shape))
    rows = valid.tolist() if valid.ndim == 2 else [valid.tolist()] * sizes.batch
    expected = pairs(sizes, lambda sample, query, key: rows[sample][key])
    return Expression(ch.padding(valid), sizes, expected)


@st.composite
def packed(draw: st.DrawFn, sizes: Sizes) -> Expression:
    """Documents whose ids may come back, sometimes too often to be listed as runs."""
    row = st.lists(st.integers(0, 3), min_size=sizes.kv_len, max_size=sizes.kv_len)
    one = row | row.map(sorted)
    rows = draw(st.lists(one, min_size=sizes.batch, max_size=sizes.batch))
    ids = rows
    if draw(st.booleans()):
        ids = rows[0]
        rows = [ids] * sizes.batch
    given = draw(st.sampled_from([ids, torch.tensor(ids, dtype=torch.int64)]))
    last = sizes.kv_len - sizes.query_len
    expected = pairs(
        sizes, lambda sample, query, key: rows[sample][query + last] == rows[sample][key]
    )
    return Expression(ch.documents(given), sizes, expected)


@st.composite
def tensors(draw: st.DrawFn, sizes: Sizes) -> Expression:
    batch = draw(st.sampled_from([1, sizes.batch]))
    heads = draw(st.sampled_from([1, sizes.heads]))
    rows = draw(st.sampled_from([1, sizes.query_len]))
    columns = draw(st.sampled_from([1, sizes.kv_len]))
    tensor = draw(bools(batch, heads, rows, columns))
    expected = tensor.expand(sizes)
    flat = tensor[0, 0] if batch == heads == 1 and draw(st.booleans()) else tensor
    return Expression(ch.dense(flat), sizes, expected)


def leaves(sizes: Sizes) -> st.SearchStrategy[Expression]:
    """Any mask that is not made of others."""
    kinds = [causals, windows, prefixes, paddings, paddings_with_holes, tensors]
    # A document id belongs to each key, and to each query as one of the last keys.
    if sizes.query_len <= sizes.kv_len:
        kinds.append(packed)
    everything = Expression(ch.full(), sizes, torch.ones(sizes, dtype=torch.bool))
    return st.one_of(st.just(everything), *(kind(sizes) for kind in kinds))


def combined(parts: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    def both(a: Expression, b: Expression) -> Expression:
        return Expression(a.mask & b.mask, a.sizes, a.expected & b.expected)

    def either(a: Expression, b: Expression) -> Expression:
        return Expression(a.mask | b.mask, a.sizes, a.expected | b.expected)

    def opposite(a: Expression) -> Expression:
        return Expression(~a.mask, a.sizes, ~a.expected)

    return (
        st.builds(both, parts, parts) | st.builds(either, parts, parts) | st.builds(opposite, parts)
    )


def expressions_for(sizes: Sizes) -> st.SearchStrategy[Expression]:
    return st.recursive(leaves(sizes), combined, max_leaves=4)


expressions = sizes.flatmap(expressions_for)


def as_tensor(mask: ch.Mask, sizes: Sizes) -> Tensor:
    """The mask as a tensor of all four dimensions."""
    return mask.to_dense(sizes.query_len, sizes.kv_len).expand(sizes)
