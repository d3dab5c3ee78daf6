"""The arguments of a figure, its colour scales, and numbers in its cells; hidden cells are masked."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LinearSegmentedColormap, Normalize, PowerNorm
from matplotlib.image import AxesImage
from torch import Tensor

from clearhead._common.checks import as_int, as_place
from clearhead._text import shown
from clearhead.drawing.colours import LESS, MORE, ink
from clearhead.drawing.figures.lettering import figure_of, inches, wrapped
from clearhead.errors import ArgumentError, ArgumentTypeError, SelectionError, ShapeError
from clearhead.matrix.head_view import HeadMaps


def map_of(maps: HeadMaps, place: int) -> np.ma.MaskedArray:
    """Return the map of the head with index `place`, (rows, columns), on the CPU, with hidden cells masked."""
    hidden = None if maps.hidden is None else maps.hidden.expand(maps.shares.shape)[place]
    return masked(maps.shares[place], hidden)


def grain(maps: HeadMaps) -> str:
    """Return the size of a cell in tokens, in words; "" if a cell is one pair.

    Example:
        >>> grain(HeadMaps(torch.full((1, 2, 2), 0.5), None, 6, 6))
        'one cell = 3 × 3 tokens'
    """
    if not maps.pooled:
        return ""
    rows, columns = maps.shares.shape[1:]
    even = maps.query_len % rows == 0 and maps.kv_len % columns == 0
    tall, wide = round(maps.query_len / rows), round(maps.kv_len / columns)
    return f"one cell {'=' if even else '≈'} {tall:,} × {wide:,} tokens".replace(",", " ")


def unit(drawn: Sequence[np.ma.MaskedArray], *, pooled: bool) -> str:
    """Return the unit of maps for a colour bar, and the meaning of the cells without a colour of the scale."""
    share = "share of a query's attention, mean" if pooled else "attention weight (share of 1)"
    hides = any(np.ma.is_masked(each) for each in drawn)
    broken = any(np.isnan(each.compressed()).any() for each in drawn)
    return "; ".join([share, *["grey: hidden"] * hides, *["orange: no number"] * broken])


def masked(numbers: Tensor, hidden: Tensor | None) -> np.ma.MaskedArray:
    """Return numbers as a masked array on the CPU, with hidden cells masked; None hides nothing.

    It shares memory with a tensor that is on the CPU.
    """
    array = numbers.detach().cpu().numpy()
    mask = False if hidden is None else hidden.cpu().expand(array.shape).numpy()
    return np.ma.MaskedArray(array, mask=mask)


WEIGHTS = LinearSegmentedColormap.from_list("clearhead", MORE)
SIGNED = LinearSegmentedColormap.from_list("clearhead_signed", [*reversed(LESS), *MORE[1:]])


def upwards(values: Sequence[np.ndarray], *, root: bool = False) -> Normalize:
    """Return a scale from 0 to the largest value, linear or by square root; NaN and masked values do not count.

    Example:
        >>> import numpy as np
        >>> upwards([np.array([0.0, 0.5])]).vmax
        0.5
    """
    known = np.concatenate([np.ma.compressed(np.ma.masked_invalid(each)) for each in values])
    top = float(known.max(initial=0.0)) or 1.0
    return PowerNorm(0.5, 0.0, top) if root else Normalize(0.0, top)


def around_zero(values: np.ndarray) -> Normalize:
    """Return a linear scale with 0 in the middle, to the largest absolute value; to 1 if there is none.

    Example:
        >>> import numpy as np
        >>> scale = around_zero(np.array([-1.0, 3.0]))
        >>> scale.vmin, scale.vmax
        (-3.0, 3.0)
    """
    known = np.abs(np.ma.compressed(np.ma.masked_invalid(values)))
    most = float(known.max(initial=0.0)) or 1.0
    return Normalize(-most, most)


def add_bar(image: AxesImage, axes: Axes, label: str) -> Colorbar:
    """Draw a colour bar with a unit next to the axes, which become smaller, and return it."""
    high = inches(axes)[1]
    bar = figure_of(axes).colorbar(image, ax=axes, shrink=0.8)
    bar.set_label(wrapped(label, 0.8 * high, matplotlib.rcParams["axes.labelsize"]))
    return bar


WRITTEN = 0.28
"""Width of a cell in inches from which its number is written into it."""
LETTERS_OF_CELL = 6
"""The characters that such a cell has room for."""


def write_numbers(axes: Axes, image: AxesImage) -> bool:
    """Write the numbers of an image into its cells, black or white by contrast, if they fit; return True if they do.

    Masked cells stay empty.
    """
    numbers = np.ma.asarray(image.get_array())
    wide, high = inches(axes)
    rows, columns = numbers.shape
    if min(wide / columns, 2 * high / rows) < WRITTEN:
        return False
    papers, hidden = image.to_rgba(numbers, bytes=True), np.ma.getmaskarray(numbers)
    for row, column in zip(*np.nonzero(~hidden), strict=True):
        red, green, blue = papers[row, column, :3].tolist()
        colour = [channel / 255 for channel in ink((red, green, blue))]
        style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": "x-small"}
        axes.text(column, row, _written(float(numbers[row, column])), color=colour, **style)
    return True


def _written(value: float) -> str:
    """Return a number with two decimals, or as many as fit into a cell.

    Example:
        >>> _written(-0.001), _written(-1.0), _written(-1234.5), _written(1.2e11)
        ('0.00', '−1.00', '−1234', '1e11')
    """
    texts = [f"{value:.{places}f}" for places in (2, 1, 0)]
    text = next((each for each in texts if len(each) <= LETTERS_OF_CELL), f"{value:.0e}")
    if text == "-0.00":
        return "0.00"
    return text.replace("e+", "e").replace("-", "−")


def check_kind(kind: object, kinds: Collection[str]) -> str:
    """Return the kind of figure, after checking that it is one of `kinds`.

    Raises:
        ArgumentError: code `plot.kind`.
    """
    if not isinstance(kind, str) or kind not in kinds:
        raise ArgumentError(
            "plot.kind", f"kind must be one of {', '.join(kinds)}; got {shown(kind)}."
        )
    return kind


def check_options(kind: str, options: Mapping[str, Any], used: Collection[str]) -> None:
    """Raise if one of `options`, by name, is not None and not among the names that a kind of figure uses.

    Raises:
        ArgumentError: code `plot.option`.
    """
    for name, value in options.items():
        if value is not None and name not in used:
            raise ArgumentError(
                "plot.option", f"{name} has no meaning for kind={shown(kind)} here; leave it out."
            )


def check_place(name: str, place: object, count: int) -> int:
    """Return the index of a sample, or of a head of a mask, counted from 0; negative ones count from the end.

    Raises:
        SelectionError: code `plot.part`, for anything but a whole number, or one that is out of range.
    """
    number = as_place(place, count)
    if number is None:
        raise SelectionError(
            "plot.part", f"{name} must be a whole number from 0 to {count - 1}; got {shown(place)}."
        )
    return number


def check_head(name: str, head: object, numbers: Sequence[int]) -> int:
    """Return the index of a head that is given by its number in the layer, or from the end.

    Raises:
        SelectionError: code `plot.part`, for anything but a whole number, or a head that does not exist.
    """
    number, count = as_int(head), len(numbers)
    if number is not None and number in numbers:
        return numbers.index(number)
    if number is None or not -count <= number < 0:
        raise SelectionError(
            "plot.part", f"{name} must be a whole number {_among(numbers)}; got {shown(head)}."
        )
    return number % count


def check_heads(name: str, heads: object, numbers: Sequence[int]) -> list[int]:
    """Return the indices of several heads, given as a sequence of their numbers, or from the end; None is all of them.

    They are in the given order, where a head may come twice.

    Raises:
        SelectionError: code `plot.part`, for anything but a sequence, an empty one, or a head that does not exist.
    """
    if heads is None:
        return list(range(len(numbers)))
    if not isinstance(heads, Sequence) or isinstance(heads, str) or not heads:
        raise SelectionError(
            "plot.part",
            f"{name} must be a whole number, or one or more of them, {_among(numbers)}; "
            f"got {shown(heads)}.",
        )
    return [check_head(name, head, numbers) for head in heads]


def _among(numbers: Sequence[int]) -> str:
    """Return the valid numbers of heads, in words."""
    if list(numbers) == list(range(len(numbers))):
        return f"from 0 to {len(numbers) - 1}"
    return f"among {', '.join(map(str, numbers))}, the heads that were kept"


def check_words(
    tokens: object, source_tokens: object, query_len: int, kv_len: int
) -> tuple[list[str] | None, list[str] | None]:
    """Return a word for each query and each key, or None; words of queries serve for as many keys.

    Raises:
        ArgumentTypeError: code `plot.tokens`, for what are no strings.
        ShapeError: code `plot.tokens`, for more or fewer of them.
    """
    words = _words("tokens", tokens, query_len, "query")
    if source_tokens is None and query_len == kv_len:
        return words, words
    return words, _words("source_tokens", source_tokens, kv_len, "key")


def _words(name: str, words: Any, count: int, of: str) -> list[str] | None:
    """Return the words for an axis as a list, None if none were given.

    Raises ArgumentTypeError for no list of strings, ShapeError for another number; code `plot.tokens`.
    """
    if words is None:
        return None
    is_list = isinstance(words, Sequence) and not isinstance(words, str)
    odd = [word for word in words if not isinstance(word, str)] if is_list else [words]
    if odd:
        raise ArgumentTypeError(
            "plot.tokens", f"{name} must be a list of strings; got {type(odd[0]).__name__}."
        )
    listed = list(words)
    if len(listed) != count:
        raise ShapeError(
            "plot.tokens", f"{name} must hold a word for each {of}, {count}; got {len(listed)}."
        )
    return listed
