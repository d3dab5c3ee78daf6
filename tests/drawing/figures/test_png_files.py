"""Pictures: right, the same each time, and never half written."""

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch

from clearhead.drawing.figures.head_map import head_picture, save_png

HOSTILE = ["$x^2$", "$\\frac{", "[red]", "\x1b[31m", "\u202eabc", "😀", "猫", "\n", "", "a" * 40]


def square(size: int) -> torch.Tensor:
    return torch.softmax(torch.arange(size * size, dtype=torch.float32).view(size, size), dim=-1)


def test_a_picture_says_what_it_shows() -> None:
    weights = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    axes = head_picture(weights, ["it", "was"], title="layer 3, head 5")
    assert axes.get_title() == "layer 3, head 5"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["it", "was"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["it", "was"]
    assert axes.get_xlabel() == "attended to (key)"
    assert axes.get_ylabel() == "attends (query)"
    assert torch.tensor(axes.images[0].get_array()).tolist() == weights.tolist()
    bar = axes.figure.axes[1]
    assert bar.get_ylabel() == "attention weight (share of 1)"


def test_hidden_pairs_are_blank() -> None:
    visible = torch.tensor([[True, False], [True, True]])
    axes = head_picture(square(2), ["a", "b"], title="", visible=visible)
    blank = np.ma.masked_invalid(np.ma.asarray(axes.images[0].get_array())).mask
    assert blank.tolist() == [[False, True], [False, False]]


def test_what_tokens_hold_is_drawn_and_not_obeyed(tmp_path: Path) -> None:
    """A formula in a token is not typeset, and a character without a glyph is spelled out."""
    axes = head_picture(square(len(HOSTILE)), HOSTILE, title="$t$")
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names[:5] == ["$x^2$", "$\\frac{", "[red]", "\\x1b[31m", "\\u202eabc"]
    assert names[-1] == "a" * 15 + "…"
    save_png(axes, tmp_path / "hostile.png")


@pytest.mark.parametrize("size", [1, 3, 150])
def test_any_number_of_tokens(tmp_path: Path, size: int) -> None:
    axes = head_picture(square(size), ["token"] * size, title="layer 0, head 0")
    assert len(axes.get_yticklabels()) == (size if size < 150 else 15)
    height, width, _ = matplotlib.image.imread(save_png(axes, tmp_path / "head.png")).shape
    assert 200 < height < 2600
    assert 300 < width < 2700


def test_the_same_picture_gives_the_same_bytes(tmp_path: Path) -> None:
    files = [
        save_png(head_picture(square(3), ["a", "b", "c"], title="t"), tmp_path / name)
        for name in ("one.png", "two.png")
    ]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].read_bytes().startswith(b"\x89PNG")


def test_a_map_of_a_long_text(tmp_path: Path) -> None:
    shares = square(7)
    axes = head_picture(shares, ["a"] * 50_000, title="$layer$ 3")
    assert axes.get_title() == "$layer$ 3"
    assert axes.get_xlabel() == "attended to (key)\none cell ≈ 7 143 × 7 143 tokens"
    # The first token is at the top, as in the map of a short text.
    assert (axes.get_xlim(), axes.get_ylim()) == ((0.0, 50_000.0), (50_000.0, 0.0))
    assert torch.tensor(axes.images[0].get_array()).tolist() == shares.tolist()
    assert save_png(axes, tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
