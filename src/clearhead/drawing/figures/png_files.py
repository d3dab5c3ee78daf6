"""A head as a PNG file, drawn by matplotlib."""

import os
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from clearhead._common.writing import replacing
from clearhead.drawing.figures import head_map
from clearhead.drawing.figures.cells import Cells, masked
from clearhead.drawing.figures.paper import figure_of

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
        >>> head_picture(torch.eye(4), ["to", "be"] * 4, title="").get_xlabel().splitlines()[1]
        'one cell = 2 × 2 tokens'
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
    """Write the figure of some axes as a PNG, completely or not at all, and return its path.

    The same picture gives the same bytes.

    Raises:
        FileError: code `file.unwritable`, if the place cannot be written to.

    Example:
        >>> import tempfile
        >>> axes = head_picture(torch.eye(2), ["to", "be"], title="layer 3, head 5")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_png(axes, f"{folder}/head.png").name
        'head.png'
    """
    with replacing(path) as (name, target):
        figure_of(axes).savefig(name, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return target
