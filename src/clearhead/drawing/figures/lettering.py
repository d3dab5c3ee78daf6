"""Axes to draw on, and tokens as text on them, as many labels as fit."""

import itertools
import re
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import MaxNLocator

from clearhead.drawing.labels import clusters, label, names
from clearhead.errors import ArgumentTypeError


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of `width` by `height` inches.

    It is one of pyplot's, as everywhere in Python: a notebook shows it, `plt.show()` opens it,
    `plt.savefig()` writes it, and it is there until it is closed.
    """
    from matplotlib import pyplot

    return pyplot.figure(figsize=(width, height), layout="constrained")


def grid_of(count: int, columns: int, width: float, height: float) -> list[Axes]:
    """Return a list of `count` axes of a new figure, `columns` in a row, of `width` by `height` inches each."""
    columns = min(columns, count)
    rows = -(-count // columns)
    grid = new_figure(width * columns, height * rows).subplots(rows, columns, squeeze=False)
    axes: list[Axes] = grid.ravel().tolist()
    for spare in axes[count:]:
        spare.remove()
    return axes[:count]


def axes_or_new(ax: object, width: float, height: float) -> Axes:
    """Return the given axes, or those of a new figure of `width` by `height` inches.

    Raises:
        ArgumentTypeError: code `plot.axes`, for what is no axes.
    """
    if ax is None:
        return new_figure(width, height).subplots()
    if not isinstance(ax, Axes):
        raise ArgumentTypeError(
            "plot.axes",
            f"ax must be matplotlib axes, or None for a new figure; got {type(ax).__name__}.",
        )
    return ax


def figure_of(axes: Axes) -> Figure:
    """Return the top-level figure of axes."""
    figure = axes.figure.figure  # a figure inside another has that one here, any other itself
    assert isinstance(figure, Figure)
    return figure


def inches(axes: Axes) -> tuple[float, float]:
    """Return the width and height of axes in the present layout, in inches."""
    box = axes.get_window_extent()
    dots = figure_of(axes).dpi
    return box.width / dots, box.height / dots


FALLBACK = "DejaVu Sans"
# Tried in this order for what DejaVu has no glyphs for, where they are installed.
OTHER_FONTS = (
    "Noto Sans CJK SC",
    "WenQuanYi Zen Hei",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Arial Unicode MS",
)
LETTERS = 20
"""Largest number of letters written of a token, and of a path."""

MOST_LABELS = 64
SPARSE_LABELS = 20
"""Number of labels on an axis where not every token fits."""

SIZE = "small"
LINE = 1.05
"""The distance of lines of text, in sizes of the font."""

LETTER = 0.56
"""The mean width of a letter, in sizes of the font."""

POINTS_PER_INCH = 72


def written(tokens: Sequence[str]) -> list[str]:
    r"""Return the tokens of one list as they are written next to an axis.

    Example:
        >>> written(["$x$", "\n", " the", "a" * 40])
        ['$x$', '⏎', 'the', 'aaaaaaaaaaaaaaaaaaa…']
    """
    every = [clusters(each) for each in names(tokens)]
    return [
        "".join(each if len(each) <= LETTERS else [*each[: LETTERS - 1], "…"]) for each in every
    ]


def families() -> tuple[str, ...]:
    """Return the first installed font of the user's settings, if any, DejaVu Sans, and the installed OTHER_FONTS."""
    settings: dict[Any, Any] = dict(matplotlib.rcParams)
    wanted: list[str] = []
    for family in settings["font.family"]:
        wanted += settings.get(f"font.{family}", [family])
    installed = set(font_manager.get_font_names())
    own = [family for family in wanted if family in installed][:1]
    return tuple(dict.fromkeys([*own, FALLBACK, *(f for f in OTHER_FONTS if f in installed)]))


def tick(
    axes: Axes,
    axis: str,
    count: int,
    words: Sequence[str] | None,
    *,
    centre: float = 0.0,
    size: str | float = SIZE,
    literal: bool = False,
) -> None:
    """Write the tokens along an axis in place; where not all fit, some with their positions.

    Args:
        axes: where.
        axis: "x" or "y".
        count: how many tokens the axis is long.
        words: their texts; None for their places only.
        centre: where on its stretch of the axis a token's middle is.
        size: of the letters.
        literal: True for names that are written as they are; tokens are spelled out.
    """
    if words is None:
        side = axes.xaxis if axis == "x" else axes.yaxis
        side.set_major_locator(MaxNLocator(nbins="auto", integer=True, min_n_ticks=1))
        return
    room = int(inches(axes)[axis == "y"] * POINTS_PER_INCH / (_points(size) * LINE))
    every = 1
    if count > min(MOST_LABELS, room):
        every = even_step(count, max(1, min(SPARSE_LABELS, room)))
    places = range(0, count, every)
    chosen = [words[place] for place in places]
    texts = chosen if literal else written(chosen)
    if every > 1 and not literal:
        texts = [f"{place} {text}" for place, text in zip(places, texts, strict=True)]
    style: dict[str, Any] = {"fontfamily": list(families()), "fontsize": size, "parse_math": False}
    middles = [place + centre for place in places]
    if axis == "x":
        axes.set_xticks(middles, texts, rotation=90, **style)
    else:
        axes.set_yticks(middles, texts, **style)


def even_step(count: int, most: int) -> int:
    """Return the smallest round step with which at most `most` of `count` positions are labelled.

    Example:
        >>> even_step(150, 20), even_step(5000, 20), even_step(7, 20)
        (10, 500, 1)
    """
    steps = (step * 10**power for power in itertools.count() for step in (1, 2, 5))
    return next(step for step in steps if step * most >= count)


def wrapped(text: str, length: float, size: str | float) -> str:
    r"""Wrap a text into lines of at most `length` inches where its words allow it.

    Text in brackets stays together.

    Example:
        >>> wrapped("attention weight (share of 1); grey: hidden", 2.5, 10)
        'attention weight (share of 1)\ngrey: hidden'
    """
    letters = max(8, int(length * POINTS_PER_INCH / (_points(size) * LETTER)))
    lines: list[str] = []
    for line in text.split("\n"):
        parts = [line] if len(line) <= letters else line.split("; ")
        for part in parts:
            together = re.sub(r"\([^)]*\)", lambda found: found[0].replace(" ", "\u00a0"), part)
            lines += textwrap.wrap(together, letters) or [""]
    return "\n".join(lines).replace("\u00a0", " ")


def entitle(axes: Axes, text: str, *, size: str | None = None) -> None:
    """Set the title of axes literally, without formulas, wrapped to their width; `size` of None is Matplotlib's."""
    chosen = size or matplotlib.rcParams["axes.titlesize"]
    axes.set_title(
        wrapped(text, inches(axes)[0], chosen),
        parse_math=False,
        fontfamily=list(families()),
        fontsize=chosen,
    )


def name_axis(axes: Axes, axis: str, text: str) -> None:
    """Set the name of the axis "x" or "y", wrapped to its length."""
    lines = wrapped(text, inches(axes)[axis == "y"] * 1.1, matplotlib.rcParams["axes.labelsize"])
    (axes.set_xlabel if axis == "x" else axes.set_ylabel)(lines)


def short_paths(paths: Sequence[str]) -> list[str]:
    """Return the paths of modules without the parts that all of them share, at either end or after the first part.

    A number alone is "layer n", "" is "the model", and a long path is cut at its beginning.

    Example:
        >>> short_paths(["layer.0.self", "layer.1.self"]), short_paths(["self_attn", ""])
        (['layer 0', 'layer 1'], ['self_attn', 'the model'])
        >>> short_paths(["encoder.layers.0.self_attn", "decoder.layers.0.self_attn"])
        ['encoder', 'decoder']
    """
    parts = [path.split(".") for path in paths]
    if len(parts) > 1:
        while min(map(len, parts)) > 1 and len({part[0] for part in parts}) == 1:
            parts = [part[1:] for part in parts]
        while min(map(len, parts)) > 1 and len({part[-1] for part in parts}) == 1:
            parts = [part[:-1] for part in parts]
        while min(map(len, parts)) > 1 and len({part[1] for part in parts}) == 1:
            parts = [[part[0], *part[2:]] for part in parts]
    return [_path(".".join(part)) for part in parts]


def _path(text: str) -> str:
    """Return a path that fits next to an axis, cut at its beginning; "layer n" for a number, "the model" for ""."""
    if not text or text.isdigit():
        return f"layer {text}" if text else "the model"
    letters = clusters(label(text))
    return "".join(letters if len(letters) <= LETTERS else ["…", *letters[1 - LETTERS :]])


def _points(size: str | float) -> float:
    """Return a font size, a number or a name such as "small", in points."""
    return FontProperties(size=size).get_size_in_points()
