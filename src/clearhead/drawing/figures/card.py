"""A head as a card to take along, 1200 × 630 pixels: a link as a sentence, its text with arcs, the map."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, PowerNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.path import Path
from matplotlib.text import Text
from torch import Tensor

from clearhead.drawing.colours import ink
from clearhead.drawing.figures import scales
from clearhead.drawing.figures.cells import Cells
from clearhead.drawing.figures.lettering import drawable, families, name
from clearhead.drawing.telling import between_words, telling_links

WIDTH, HEIGHT, DOTS_PER_INCH = 1200, 630, 100
"""Pixels, and how many of them are an inch: what chats and sites show of a link."""

MARGIN, TEXT_WIDTH, MAP = 60, 640, 380
TOP, BOTTOM = 210, 520
"""Pixels: of the text from above and below, and the side of the map."""

SIZES = (22, 20, 18, 16, 14, 12, 10, 8)
"""Points: the largest in which the text has room is taken."""

MOST_TOKENS = 120
"""Of a longer text those around the link are written."""

MOST_OF_MAP = 1024
"""Tokens of a side of the map."""

MOST_ARCS, LEAST = 8, 0.02


class CardLink(NamedTuple):
    """The link that a card is of.

    Attributes:
        query, key: the places of the tokens.
        row: (kv_len,), what the query gives each key; 0 where it is hidden.
    """

    query: int
    key: int
    row: np.ndarray


class _Place(NamedTuple):
    """A token on the card: pixels from the left, and its line from above."""

    token: int
    x: float
    width: float
    line: int


def draw(
    cells: Cells,
    tokens: Sequence[str],
    source_tokens: Sequence[str],
    caption: str,
    *,
    pin: tuple[int | None, int | None] | None = None,
    figure: Figure | None = None,
) -> Axes:
    """Draw a head as a card, in the colours of matplotlib's settings.

    Args:
        cells: the map of the head, to the single token.
        tokens, source_tokens: a word for each query and each key; the same for a text that looks at itself.
        caption: a line under it, such as the model and the head.
        pin: the query and the key of the sentence; None for either takes the largest weight of the other, and
            for both the link between words that stands out most.
        figure: to draw on; None is one of its own.

    Returns:
        The axes of the map; `axes.figure.savefig` writes 1200 × 630 pixels.

    Example:
        >>> from clearhead.drawing.figures.cells import of_weights
        >>> weights = ch.AttentionMatrix.from_weights(torch.eye(3).flip(0))
        >>> axes = draw(of_weights(weights, 0, [0], 3), ["a", "b", "c"], ["a", "b", "c"], "a model")
        >>> axes.figure.axes[0].texts[0].get_text()
        '“a” gives all of its attention to “c”'
    """
    if figure is None:
        figure = Figure()
        FigureCanvasAgg(figure)
    figure.set_size_inches(WIDTH / DOTS_PER_INCH, HEIGHT / DOTS_PER_INCH)
    figure.set_dpi(DOTS_PER_INCH)
    page = figure.add_axes((0, 0, 1, 1))
    page.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))
    page.axis("off")
    weights = torch.from_numpy(np.nan_to_num(cells.shares[0].filled(0.0)))
    visible = torch.from_numpy(~np.ma.getmaskarray(cells.shares[0]))
    link = _link(weights, visible, tokens, source_tokens, pin)
    query, key = (_word(each) for each in (tokens[link.query], source_tokens[link.key]))
    share = float(link.row[link.key])
    much = "all" if share >= 0.995 else f"{100 * share:.2g} %"
    title = _written(
        page, f"“{query}” gives {much} of its attention to “{key}”", MARGIN, 105, 34, weight="bold"
    )
    title.set_fontsize(min(34.0, 33 * (WIDTH - 2 * MARGIN) / _width(title)))
    _written(page, drawable(caption), MARGIN, HEIGHT - 45, 14, alpha=0.65)
    _text(page, link, tokens, source_tokens)
    return _map(figure, cells, link)


def _link(
    weights: Tensor,
    visible: Tensor,
    tokens: Sequence[str],
    source_tokens: Sequence[str],
    pin: tuple[int | None, int | None] | None,
) -> CardLink:
    query, key = pin or (None, None)
    if query is None and key is None:
        words = between_words(tokens, source_tokens)
        (found,) = telling_links(weights[None], words, visible[None])
        at = int(weights.argmax())
        query, key = divmod(at, weights.shape[1]) if found is None else (found.query, found.key)
    elif query is None:
        query = int(weights[:, key].argmax())
    elif key is None:
        key = int(weights[query].argmax())
    assert query is not None
    assert key is not None
    return CardLink(query, key, weights[query].numpy())


def _map(figure: Figure, cells: Cells, link: CardLink) -> Axes:
    left, low = WIDTH - MARGIN - MAP, HEIGHT - 550
    axes = figure.add_axes((left / WIDTH, low / HEIGHT, MAP / WIDTH, MAP / HEIGHT))
    axes.imshow(
        cells.shares[0],
        cmap=_colours().with_extremes(bad=scales.HIDDEN if not _is_dark() else "#3a3d42"),
        norm=PowerNorm(0.5, vmin=0.0),
        extent=(0, cells.kv_len, cells.query_len, 0),
        aspect="auto",
    )
    mark: dict[str, Any] = {"fill": False, "ec": scales.NO_NUMBER, "lw": 1.5}
    axes.add_patch(Rectangle((0, link.query), cells.kv_len, 1, **mark))
    axes.add_patch(Rectangle((link.key, 0), 1, cells.query_len, **mark))
    axes.set(xticks=[], yticks=[])
    axes.set_title("key →", loc="left", fontsize=12)
    axes.set_ylabel("← query", loc="top", fontsize=12)
    return axes


def _text(page: Axes, link: CardLink, tokens: Sequence[str], source_tokens: Sequence[str]) -> None:
    """The words, the keys as dark as the query looks at them, with an arc to each of the strongest."""
    itself = list(tokens) == list(source_tokens)
    sides = [tokens] if itself else [tokens, source_tokens]
    points, found = next(_placed(page, link, sides))
    keys = found[-1]
    high = 1.6 * points
    lines = 1 + keys[-1].line
    apart = min((BOTTOM - TOP) / max(1, lines - 1), 5 * points)
    first = (TOP + BOTTOM - apart * (lines - 1)) / 2
    top = float(link.row.max(initial=0.0)) or 1.0
    colours, ground = _colours(), matplotlib.rcParams["figure.facecolor"]
    for side, places in zip(sides, found, strict=True):
        for place in places:
            y = first + apart * place.line
            is_key = places is keys
            share = float(link.row[place.token]) if is_key else 0.0
            paper = to_rgb(colours(math.sqrt(share / top)) if share else ground)
            if share:
                page.add_patch(
                    Rectangle((place.x - 3, y - high / 2), place.width + 6, high, color=paper)
                )
            if place.token == link.query and places is found[0]:
                box = (place.x - 4, y - high / 2 - 1), place.width + 8, high + 2
                page.add_patch(Rectangle(*box, fill=False, ec=scales.NO_NUMBER, lw=2.5))
            red, green, blue = (round(255 * channel) for channel in paper)
            colour = [channel / 255 for channel in ink((red, green, blue))]
            _written(page, _word(side[place.token]), place.x, y, points, color=colour)
    own = next(place for place in found[0] if place.token == link.query)
    strongest = sorted(keys, key=lambda place: -link.row[place.token])
    for place in strongest[:MOST_ARCS]:
        share = float(link.row[place.token])
        if share >= LEAST:
            _arc(page, own, place, share, (first, apart, high))


def _arc(
    page: Axes, own: _Place, other: _Place, share: float, lines: tuple[float, float, float]
) -> None:
    """An arrow from the query to a key: over the words of a line, or between two lines."""
    first, apart, high = lines
    start, end = own.x + own.width / 2, other.x + other.width / 2
    down = other.line > own.line
    begin = first + apart * own.line + (high if down else -high) / 2
    stop = first + apart * other.line + (-high if own.line <= other.line else high) / 2
    if own.line == other.line:
        rise = min(0.9 * apart, 24 + 0.16 * abs(end - start))
        if own.token == other.token:
            start, end = start - 5, end + 5
        corners = [(start, begin - rise), (end, stop - rise)]
    else:
        corners = [(start, (begin + stop) / 2), (end, (begin + stop) / 2)]
    codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    page.add_patch(
        FancyArrowPatch(
            path=Path([(start, begin), *corners, (end, stop)], codes),
            arrowstyle="-|>",
            mutation_scale=10,
            lw=0.8 + 3.2 * share,
            color="#7ab8f0" if _is_dark() else "#0a58a8",
            alpha=0.35 + 0.65 * min(1.0, share),
        )
    )


def _placed(
    page: Axes, link: CardLink, sides: Sequence[Sequence[str]]
) -> Iterator[tuple[float, list[list[_Place]]]]:
    """The size of the letters, and the places of all words of each text, where they have room."""
    middle = (link.query + link.key) // 2 if len(sides) == 1 else None
    for points in SIZES:
        x, line = float(MARGIN), 0
        found: list[list[_Place]] = []
        for number, side in enumerate(sides):
            own = link.query if number == 0 and len(sides) > 1 else link.key
            centre = own if middle is None else middle
            if middle is not None and abs(link.query - link.key) > MOST_TOKENS - 20:
                centre = link.query
            begin = max(0, min(centre - MOST_TOKENS // 2, len(side) - MOST_TOKENS))
            spaced = any(each.startswith(" ") for each in side)
            places: list[_Place] = []
            for at in range(begin, min(len(side), begin + MOST_TOKENS)):
                text = _written(page, _word(side[at]), 0, 0, points)
                width = _width(text)
                text.remove()
                if x > MARGIN:
                    x += (0.55 if not spaced or side[at].startswith(" ") else 0.15) * points
                if x + width > MARGIN + TEXT_WIDTH:
                    x, line = float(MARGIN), line + 1
                places.append(_Place(at, x, width, line))
                x += width
            found.append(places)
            x, line = float(MARGIN), line + 2
        if (line - 1) * 2.2 * points < BOTTOM - TOP or points == SIZES[-1]:
            yield points, found


def _word(token: str) -> str:
    return name(token.strip(" ") or token)


def _written(page: Axes, words: str, x: float, y: float, points: float, **style: Any) -> Text:
    return page.text(
        x,
        y,
        words,
        fontsize=points,
        va="center_baseline",
        parse_math=False,
        fontfamily=list(families()),
        **style,
    )


def _width(text: Text) -> float:
    return text.get_window_extent().width


def _colours() -> LinearSegmentedColormap:
    ends = ["#2171b5", "#d4e8fa"] if _is_dark() else ["#6baed6", "#08306b"]
    return LinearSegmentedColormap.from_list(
        "card", [matplotlib.rcParams["figure.facecolor"], *ends]
    )


def _is_dark() -> bool:
    return sum(to_rgb(matplotlib.rcParams["figure.facecolor"])) < 1.5
