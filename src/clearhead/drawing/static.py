"""A head as a picture in a file, drawn by matplotlib."""

import math
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from torch import Tensor

from clearhead.drawing.labels import clusters, label
from clearhead.errors import ArgumentError, ShapeError, missing_extra

try:
    from matplotlib import font_manager
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    if error.name != "matplotlib":
        raise
    raise missing_extra("matplotlib", "plot", "drawing a picture") from error

FONT = "DejaVu Sans"
# Tried in this order for what DejaVu has no glyphs for, where they are installed.
OTHER_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "Hiragino Sans",
    "PingFang SC",
    "Microsoft YaHei",
    "Arial Unicode MS",
    "Noto Sans",
)
LABEL_LETTERS = 16
MOST_LABELS = 64
DOTS_PER_INCH = 150


def head_picture(
    weights: Tensor,
    tokens: Sequence[str],
    *,
    title: str,
    source_tokens: Sequence[str] | None = None,
    visible: Tensor | None = None,
    axes: Axes | None = None,
) -> Axes:
    """Draw one head as a heat map with its tokens on both axes; rows attend to columns.

    Args:
        weights: (query_len, kv_len), shares of one.
        tokens: a word for each query.
        title: what stands above the picture.
        source_tokens: a word for each key; None is those of the queries.
        visible: (query_len, kv_len), bool: the pairs that are not hidden, None for all; the others
            stay white.
        axes: where to draw; None is a figure of its own, of a size that keeps the tokens legible.

    Returns:
        The axes; `axes.figure` is the figure.

    Raises:
        ShapeError: code `picture.tokens`, if there are not as many words as rows and columns.

    Example:
        >>> axes = head_picture(torch.eye(2), ["to", "be"], title="layer 3, head 5")
        >>> [text.get_text() for text in axes.get_yticklabels()]
        ['to', 'be']
        >>> axes.get_title()
        'layer 3, head 5'
    """
    columns = tokens if source_tokens is None else source_tokens
    if tuple(weights.shape) != (len(tokens), len(columns)):
        raise ShapeError(
            "picture.tokens",
            f"weights must have shape (query_len, kv_len) = ({len(tokens)}, {len(columns)}), a row "
            f"and a column per word; got {tuple(weights.shape)}.",
        )
    if axes is None:
        axes = _empty_axes(len(columns), len(tokens))
    shares = weights.detach().float().cpu()
    if visible is not None:
        # What is no number stays white.
        shares = shares.masked_fill(~visible.cpu(), math.nan)
    image = axes.imshow(shares.numpy(), cmap="viridis", vmin=0.0)
    _write_labels(axes, "x", columns)
    _write_labels(axes, "y", tokens)
    axes.set_title(title, parse_math=False)
    axes.set_xlabel("attended to (key)")
    axes.set_ylabel("attends (query)")
    bar = _figure(axes).colorbar(image, ax=axes, shrink=0.8)
    bar.set_label("attention weight (share of 1)")
    return axes


def pooled_picture(shares: Tensor, tokens: int, *, title: str) -> Axes:
    """Draw one head over a long text as a map of few rows and columns; rows attend to columns.

    Args:
        shares: (rows, columns): which share of its attention a row gives a column.
        tokens: how many tokens the rows, and the columns, are.
        title: what stands above the picture.

    Returns:
        The axes, which count tokens; `axes.figure` is the figure.

    Example:
        >>> axes = pooled_picture(torch.eye(4), 8_000, title="layer 3, head 5")
        >>> print(axes.get_xlabel())
        attended to (key), token; one cell is up to 2000 × 2000
    """
    axes = _empty_axes(MOST_LABELS // 2, MOST_LABELS // 2)
    # A share of one is rare here, so brightness grows with the root.
    image = axes.imshow(
        shares.detach().float().cpu().numpy(),
        cmap="viridis",
        norm=PowerNorm(0.5, vmin=0.0),
        extent=(0, tokens, tokens, 0),
    )
    high, broad = (math.ceil(tokens / count) for count in shares.shape)
    axes.set_title(title, parse_math=False)
    axes.set_xlabel(f"attended to (key), token; one cell is up to {high} × {broad}")
    axes.set_ylabel("attends (query), token")
    colours = _figure(axes).colorbar(image, ax=axes, shrink=0.8)
    colours.set_label("share of a row's attention")
    return axes


def save_png(axes: Axes, path: str | os.PathLike[str]) -> Path:
    """Write the figure of some axes as a PNG: all of it or nothing.

    It is written beside its place and then moved there, so that whatever was at that place stays
    whole if the writing is interrupted. The same picture gives the same bytes.

    Args:
        axes: what `head_picture` returns.
        path: the file; its folder must be there.

    Returns:
        The file's absolute path.

    Raises:
        ArgumentError: code `picture.path`, if no file can be written there.

    Example:
        >>> import tempfile, pathlib
        >>> axes = head_picture(torch.eye(2), ["to", "be"], title="layer 3, head 5")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_png(axes, pathlib.Path(folder) / "head.png").name
        'head.png'
    """
    file = check_place(path)
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        _figure(axes).savefig(part, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
        os.replace(part, file)
    except OSError as error:
        raise ArgumentError(
            "picture.path", f"{file} could not be written: {error.strerror or error}."
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return file


def check_place(path: str | os.PathLike[str]) -> Path:
    """The absolute path of a file that can be made, or made anew.

    Raises:
        ArgumentError: code `picture.path`, if its folder is not there, or something that is no
            file is in its place.

    Example:
        >>> check_place("head.png").is_absolute()
        True
    """
    # A link is followed: what it points to is replaced, and it stays a link.
    file = Path(path).expanduser().resolve()
    if not file.parent.is_dir():
        raise ArgumentError("picture.path", f"{file} cannot be written: there is no such folder.")
    if file.exists() and not file.is_file():
        raise ArgumentError("picture.path", f"{file} cannot be written: it is no file.")
    return file


def _figure(axes: Axes) -> Figure:
    figure = axes.figure.figure  # a figure inside another has that one here, any other itself
    assert isinstance(figure, Figure)
    return figure


def _empty_axes(columns: int, rows: int) -> Axes:
    width, height = (min(max(0.3 * count, 2.4), 14.0) for count in (columns, rows))
    figure = Figure(figsize=(width + 2.6, height + 1.6), layout="constrained")
    FigureCanvasAgg(figure)
    return figure.subplots()


def _write_labels(axes: Axes, axis: str, tokens: Sequence[str]) -> None:
    every = -(-len(tokens) // MOST_LABELS)
    places = list(range(0, len(tokens), every))
    names = [_drawable(_short(label(tokens[place]))) for place in places]
    if every > 1:
        names = [f"{place} {name}" for place, name in zip(places, names, strict=True)]
    font = {"fontfamily": _families(), "fontsize": 9, "parse_math": False}
    if axis == "x":
        axes.set_xticks(places, names, rotation=90, **font)
    else:
        axes.set_yticks(places, names, **font)


def _short(text: str) -> str:
    letters = clusters(text)
    return text if len(letters) <= LABEL_LETTERS else "".join(letters[: LABEL_LETTERS - 1]) + "…"


def _drawable(text: str) -> str:
    """The text with the characters that no font at hand has spelled out."""
    return "".join(char if _has_glyph(char) else _spelled(char) for char in text)


def _spelled(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


@cache
def _families() -> list[str]:
    installed = {entry.name for entry in font_manager.fontManager.ttflist}
    return [FONT, *(name for name in OTHER_FONTS if name in installed)]


@cache
def _has_glyph(char: str) -> bool:
    fonts = [font_manager.get_font(font_manager.findfont(name)) for name in _families()]
    return any(font.get_char_index(ord(char)) for font in fonts)
