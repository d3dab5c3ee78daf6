"""A head as a picture in a file, drawn by matplotlib."""

import math
import os
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from clearhead.drawing.figures import head_map, scales
from clearhead.drawing.figures.cells import Cells, masked
from clearhead.drawing.figures.lettering import entitle
from clearhead.drawing.figures.paper import figure_of
from clearhead.errors import ArgumentError

# Behind the figures, which say what to install where matplotlib is not there.
# isort: split
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

DOTS_PER_INCH = 150


def head_picture(
    weights: Tensor, tokens: Sequence[str], *, title: str, visible: Tensor | None = None
) -> Axes:
    """Draw one head as a heat map with its tokens on both axes; rows attend to columns.

    Args:
        weights: (tokens, tokens), shares of one.
        tokens: a word for each query and key.
        title: what stands above the picture.
        visible: (tokens, tokens), bool: the pairs that are not hidden, None for all; the others
            are grey.

    Returns:
        The axes; `axes.figure` is the figure, of a size that keeps the tokens legible.

    Example:
        >>> axes = head_picture(torch.eye(2), ["to", "be"], title="layer 3, head 5")
        >>> [text.get_text() for text in axes.get_yticklabels()]
        ['to', 'be']
        >>> axes.get_title()
        'layer 3, head 5'
    """
    size = (len(tokens), len(tokens))
    hidden = None if visible is None else ~visible
    cells = Cells(masked(weights.float()[None], hidden), [0], *size)
    ax = _empty_axes(*head_map.size(*size, True))
    return head_map.draw(cells, title=title, tokens=tokens, source_tokens=tokens, log=False, ax=ax)


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
    axes = _empty_axes(12.2, 11.2)
    # A share of one is rare here, so brightness grows with the root.
    image = axes.imshow(
        shares.detach().float().cpu().numpy(),
        cmap=scales.WEIGHTS,
        norm=PowerNorm(0.5, vmin=0.0),
        extent=(0, tokens, tokens, 0),
    )
    high, broad = (math.ceil(tokens / count) for count in shares.shape)
    entitle(axes, title)
    axes.set_xlabel(f"attended to (key), token; one cell is up to {high} × {broad}")
    axes.set_ylabel("attends (query), token")
    colours = figure_of(axes).colorbar(image, ax=axes, shrink=0.8)
    colours.set_label("share of a row's attention")
    return axes


def photo_picture(pixels: Tensor, shares: Tensor, *, title: str) -> Axes:
    """Draw where a head looks over the picture that it looks at.

    Args:
        pixels: (3, height, width), from 0 to 1.
        shares: (rows, columns), shares of one, for the patches.
        title: what stands above the picture.

    Returns:
        The axes; `axes.figure` is the figure.

    Example:
        >>> axes = photo_picture(torch.rand(3, 8, 8), torch.eye(2) / 2, title="layer 3, head 5")
        >>> [image.get_array().shape for image in axes.images]
        [(8, 8), (2, 2)]
    """
    _, height, width = pixels.shape
    axes = _empty_axes(6.4, 5.6 * height / width)
    extent = (0.0, float(width), float(height), 0.0)
    grey = pixels.detach().float().cpu().mean(dim=0)
    axes.imshow(grey.numpy(), cmap="gray", vmin=0.0, vmax=1.0, extent=extent)
    looks = shares.detach().float().cpu()
    # Most patches get little, so brightness and ink grow with the root.
    strength = (looks / looks.max().clamp(min=1e-30)).clamp(0, 1).sqrt()
    image = axes.imshow(
        looks.numpy(),
        cmap=scales.WEIGHTS,
        norm=PowerNorm(0.5, vmin=0.0),
        alpha=(0.2 + 0.7 * strength).numpy(),
        extent=extent,
    )
    entitle(axes, title)
    axes.set_axis_off()
    colours = figure_of(axes).colorbar(image, ax=axes, shrink=0.8)
    colours.set_label("share of its attention")
    return axes


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


def _empty_axes(width: float, height: float) -> Axes:
    """Axes of a figure that pyplot knows nothing of: it is written to a file, and gone."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure.subplots()
