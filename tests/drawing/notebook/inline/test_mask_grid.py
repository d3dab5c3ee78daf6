"""A mask draws itself."""

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.drawing.notebook.inline.matrices import (
    GRID_CELLS,
    LARGEST_CELL,
    MOST_PARTS,
    mask_html,
)
from tests.drawing.notebook.inline.reading import Markup, pixels


def cells(image: dict[str, str], pixel: int) -> Tensor:
    """The middle of each cell: 1 is hidden, more is visible."""
    return pixels(image["src"])[pixel // 2 :: pixel, pixel // 2 :: pixel]


@pytest.mark.parametrize(
    "mask", [ch.causal(), ch.causal() & ch.sliding_window(left=2), ~ch.prefix(2), ch.full()]
)
def test_every_pair_is_a_cell(mask: ch.Mask) -> None:
    found = Markup(mask._repr_html_())
    (image,) = found.images
    assert torch.equal(cells(image, LARGEST_CELL) > 1, mask.to_dense(6, 6))
    count = int(mask.to_dense(6, 6).sum())
    assert f"6 queries × 6 keys (it fits any length): {count} of 36 pairs visible" in found.text
    assert mask.describe() in found.text
    assert image["alt"] == f"the mask: {count} of 36 pairs visible"


def test_its_own_lengths() -> None:
    dense = torch.rand(1, 1, 5, 7) > 0.5
    found = Markup(ch.dense(dense)._repr_html_())
    assert torch.equal(cells(found.images[0], LARGEST_CELL) > 1, dense[0, 0])
    assert "5 queries × 7 keys: " in found.text


def test_samples_and_heads_beside_each_other() -> None:
    dense = torch.rand(2, 3, 5, 7) > 0.5
    found = Markup(ch.dense(dense)._repr_html_())
    assert len(found.images) == 6
    for number, image in enumerate(found.images):
        sample, head = divmod(number, 3)
        assert torch.equal(cells(image, LARGEST_CELL) > 1, dense[sample, head])
        assert image["alt"].startswith(f"sample {sample}, head {head}: ")
    many = Markup(ch.dense(torch.ones(11, 1, 3, 5, dtype=torch.bool))._repr_html_())
    assert len(many.images) == MOST_PARTS
    assert f"{11 - MOST_PARTS} more samples or heads are not drawn." in many.text


def test_a_long_mask_is_drawn_by_the_block() -> None:
    tokens = 100_003
    mask = ch.causal() & ch.padding(torch.arange(tokens) < 50_000)
    found = Markup(mask._repr_html_())
    (image,) = found.images
    block = -(-tokens // GRID_CELLS)
    shown = cells(image, 3)
    kinds = mask.blocks(tokens, tokens, block).kinds
    assert shown.shape == kinds.shape
    assert torch.equal(shown == 1, kinds == 0)
    assert torch.equal(shown == 65, kinds == 2)
    assert f"a cell is {block} × {block} pairs" in found.text
    assert len(mask._repr_html_()) < 10_000


def test_a_block_that_is_hidden_or_visible_but_for_a_pair_is_drawn_as_neither() -> None:
    dense = torch.zeros(1, 1, 640, 640, dtype=torch.bool)
    dense[0, 0, 0, 0] = True
    dense[0, 0, 10:20, 10:20] = True
    dense[0, 0, 19, 19] = False
    (image,) = Markup(ch.dense(dense)._repr_html_()).images
    shown = cells(image, 3)
    assert shown[0, 0] == 2
    assert shown[1, 1] == 64
    assert int((shown == 1).sum()) == 64 * 64 - 2


@pytest.mark.parametrize(
    "mask",
    [
        ch.dense(torch.ones(1, 1, 3, 3, dtype=torch.bool, device="meta")),
        ch.dense(torch.ones(1, 1, 0, 3, dtype=torch.bool)),
    ],
)
def test_what_cannot_be_drawn_is_named(mask: ch.Mask) -> None:
    found = Markup(mask_html(mask))
    assert found.images == []
    assert mask.describe() in found.text


def test_a_mask_for_lengths_that_only_a_query_tells() -> None:
    found = Markup((ch.padding([3, 9]) & ch.causal())._repr_html_())
    assert "It is made for sizes that only a query will tell." in found.text
    assert found.images == []
