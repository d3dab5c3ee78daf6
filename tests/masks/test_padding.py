import torch
from hypothesis import given
from hypothesis import strategies as st

import clearhead as ch
from clearhead.masks.padding import Side
from tests.masks.drawn import docstring_drawings, rows
from tests.masks.expressions import (
    BLOCKS,
    Sizes,
    as_tensor,
    sizes,
)


def test_the_docstring_is_true() -> None:
    drawn = [ch.padding([3]).draw(4, 4), ch.padding([3], side="left").draw(4, 4)]
    assert [f"batch 0\n{each}" for each in docstring_drawings(ch.padding)] == drawn


def test_what_happens_to_valid_later_does_not_reach_the_mask() -> None:
    valid = rows("● ● · ·")
    mask = ch.padding(valid)
    valid[0] = torch.tensor([False, False, True, True])
    expected = rows("● ● · ·")
    assert torch.equal(mask.to_dense(1, 4)[0, 0], expected)
    assert mask.blocks(1, 4, 2).kinds.tolist() == [[[[2, 0]]]]


def test_an_empty_batch_and_no_keys() -> None:
    for mask in (ch.padding([]), ch.padding(torch.zeros(0, 4, dtype=torch.bool))):
        assert mask.to_dense(3, 4).shape == (0, 1, 3, 4)
        assert mask.blocks(3, 4, 2).kinds.shape == (0, 1, 2, 2)
    for valid in (torch.zeros(2, 0), torch.zeros(0), torch.zeros(0, 0)):
        mask = ch.padding(valid.bool())
        assert mask.to_dense(3, 0).shape[-2:] == (3, 0)
        assert mask.blocks(3, 0, 2).kinds.shape[-2:] == (2, 0)


@given(sizes, st.data())
def test_lengths_are_what_valid_says_and_the_prefix_of_each_row(
    sizes: Sizes, data: st.DataObject
) -> None:
    """Three ways to say it: one mask, its blocks and its runs."""
    batch, _, query_len, kv_len = sizes
    lengths = data.draw(st.lists(st.integers(0, kv_len), min_size=batch, max_size=batch))
    real = torch.arange(kv_len) < torch.tensor(lengths)[:, None]
    of_lengths, block = ch.padding(lengths), data.draw(BLOCKS)
    ways: list[tuple[Side, ch.Mask]] = [
        ("right", ch.padding(real)),
        ("right", ch.prefix(lengths)),
        ("left", ch.padding(real.flip(1))),
    ]
    for side, other in ways:
        mask = ch.padding(lengths, side=side)
        assert torch.equal(as_tensor(other, sizes), as_tensor(mask, sizes))
        found = [each.blocks(query_len, kv_len, block).kinds for each in (mask, other)]
        assert torch.equal(found[0], found[1])
    from_the_left = ch.padding(lengths, side="left").to_dense(query_len, kv_len)
    assert torch.equal(from_the_left.flip(-1), of_lengths.to_dense(query_len, kv_len))


def test_it_says_how_it_was_made() -> None:
    assert ch.padding([1, 3]).describe() == "padding([1, 3])"
    assert ch.padding([1, 3], side="left").describe() == 'padding([1, 3], side="left")'
    assert ch.padding(list(range(9))).describe() == "padding(<9 numbers>)"
    assert ch.padding(rows("● ·")).describe() == "padding(<valid 1 × 2>)"
