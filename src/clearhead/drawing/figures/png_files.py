"""A head as a picture in a file, drawn by matplotlib."""

import os
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from clearhead.drawing.figures import head_map
from clearhead.drawing.figures.cells import Cells, masked
from clearhead.drawing.figures.paper import figure_of
from clearhead.errors import ArgumentError

# Behind the figures, which say what to install where matplotlib is not there.
# isort: split
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

DOTS_PER_INCH = 150


def head_picture(
    weights: Tensor,
    tokens: Sequence[str],
    *,
    title: str,
    visible: Tensor | None = None,
    head: int = 0,
) -> Axes:
    """Draw one head as a map; rows attend to columns.

    Args:
        weights: (tokens, tokens), shares of one; or fewer rows and columns, of a long text: the share of its
            attention that a row gives a column.
        tokens: a word for each query and key, written where there is a cell for each.
        title: the title of the picture.
        visible: (tokens, tokens), bool: the visible pairs, None for all; the others are grey.
        head: the number of the head.

    Returns:
        The axes; `axes.figure` is the figure, of a size that keeps the tokens legible.

    Example:
        >>> axes = head_picture(torch.eye(2), ["to", "be"], title="layer 3, head 5")
        >>> [text.get_text() for text in axes.get_yticklabels()]
        ['to', 'be']
        >>> head_picture(torch.eye(4), ["to", "be"] * 4, title="").get_xlabel()
        'attended to (key)\none cell = 2 × 2 tokens'
    """
    size = (len(tokens), len(tokens))
    cells = Cells(
        masked(weights.float()[None], None if visible is None else ~visible), [head], *size
    )
    words = None if cells.pooled else tokens
    # A figure that pyplot does not know: it is written to a file, and gone.
    figure = Figure(figsize=head_map.size(*size, words is not None), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    return head_map.draw(cells, title=title, tokens=words, source_tokens=words, log=False, ax=axes)


def save_png(axes: Axes, path: str | os.PathLike[str]) -> Path:
    """Write the figure of some axes as a PNG: all of it or nothing.

    It is written next to its place and then moved there, so that whatever was at that place stays
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
        figure_of(axes).savefig(part, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
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
