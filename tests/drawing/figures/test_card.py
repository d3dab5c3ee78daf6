"""A head as a card."""

from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle
from PIL import Image

import clearhead as ch
from clearhead.drawing.figures.card import MARGIN, MOST_TOKENS, TEXT_WIDTH, draw
from clearhead.drawing.figures.cells import of_weights
from clearhead.drawing.figures.paper import figure_of
from clearhead.errors import ArgumentError

WORDS = ["the", "cat", "sat", "on", "a", "mat", "since", "it", "slept"]


def matrix(tokens: int = len(WORDS), keys: int | None = None) -> ch.AttentionMatrix:
    generator = torch.Generator().manual_seed(0)
    query = 2 * torch.randn(1, 2, tokens, 5, generator=generator)
    key = 2 * torch.randn(1, 2, keys or tokens, 5, generator=generator)
    return ch.AttentionMatrix(query, key, mask=None if keys else ch.causal())


def written(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.figure.axes[0].texts]


def test_it_says_the_pinned_link_and_is_as_large_as_a_card(tmp_path: Path) -> None:
    weights = matrix()
    cells = of_weights(weights, 0, [1], 99)
    axes = draw(cells, WORDS, WORDS, "a model · layer 3, head 1", pin=(7, 1))
    share = 100 * float(weights[0, 1, 7, 1])
    title, caption, *words = written(axes)
    assert title == f"“it” gives {share:.2g} % of its attention to “cat”"
    assert caption == "a model · layer 3, head 1"
    assert words == WORDS
    figure_of(axes).savefig(tmp_path / "card.png")
    with Image.open(tmp_path / "card.png") as image:
        assert image.size == (1200, 630)
    assert axes.figure.axes[0].texts[0].get_window_extent().x1 <= 1150


def test_an_arc_goes_to_each_key_that_gets_some() -> None:
    weights = matrix()
    axes = draw(of_weights(weights, 0, [0], 99), WORDS, WORDS, "", pin=(7, None))
    page = axes.figure.axes[0]
    row = weights[0, 0, 7].flatten()
    title = written(axes)[0]
    assert title.endswith(f"“{WORDS[int(row.argmax())]}”")
    arrows = [patch for patch in page.patches if isinstance(patch, FancyArrowPatch)]
    assert len(arrows) == min(8, int((row >= 0.02).sum()))
    # The stronger, the broader.
    widths = sorted((arrow.get_linewidth() for arrow in arrows), reverse=True)
    assert widths[0] == pytest.approx(0.8 + 3.2 * float(row.max()), rel=1e-5)


def test_a_pinned_key_is_shown_with_the_query_that_looks_at_it_most() -> None:
    weights = matrix()
    axes = draw(of_weights(weights, 0, [1], 99), WORDS, WORDS, "", pin=(None, 1))
    query = int(weights[0, 1, :, 1].argmax())
    share = 100 * float(weights[0, 1, query, 1])
    assert written(axes)[0] == f"“{WORDS[query]}” gives {share:.2g} % of its attention to “cat”"


def test_a_link_that_reaches_too_far_is_written_around_its_query() -> None:
    words = [f" word{n}" for n in range(300)]
    axes = draw(of_weights(matrix(300), 0, [0], 1024), words, words, "", pin=(200, 10))
    assert {"word200", "word150"} <= set(written(axes)[2:])


def test_a_long_text_is_written_around_its_link_and_within_its_room() -> None:
    weights = matrix(300)
    words = [f" word{n}" for n in range(300)]
    axes = draw(of_weights(weights, 0, [0], 1024), words, words, "", pin=(250, 240))
    page = axes.figure.axes[0]
    assert len(page.texts) == 2 + MOST_TOKENS
    assert "word250" in written(axes)
    boxes = [text.get_window_extent() for text in page.texts[2:]]
    assert max(box.x1 for box in boxes) <= MARGIN + TEXT_WIDTH + 1
    assert min(box.y0 for box in boxes) > 60


def test_two_texts_are_both_there() -> None:
    axes = draw(of_weights(matrix(4, keys=3), 0, [0], 9), WORDS[:4], WORDS[4:7], "", pin=(1, 2))
    assert written(axes)[2:] == WORDS[:7]
    assert written(axes)[0].endswith("“since”")


def test_it_is_a_figure_of_a_matrix_in_the_colours_of_the_settings() -> None:
    with pyplot.style.context("dark_background"):
        axes = matrix().plot("card", head=1, tokens=WORDS)
        assert axes.images[0].get_cmap()(0.0)[:3] == (0.0, 0.0, 0.0)
    marks = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert len(marks) == 2
    assert "gives" in written(axes)[0]
    assert written(axes)[1] == "head 1"
    pyplot.close(axes.figure)


@pytest.mark.parametrize(
    "options", [{"tokens": WORDS}, {"head": 0}, {"head": [0], "tokens": WORDS}]
)
def test_what_has_no_card(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError) as caught:
        matrix().plot("card", **options)
    assert str(caught.value) == (
        "[plot.option] a card is of one head of a matrix, of up to 1024 tokens, with its words: head=3, "
        "tokens=…."
    )
    with pytest.raises(ArgumentError) as caught:
        matrix().plot("card", head=0, tokens=WORDS, cells=3)
    assert str(caught.value) == (
        "[plot.option] cells has no meaning for kind='card' here; leave it out."
    )
