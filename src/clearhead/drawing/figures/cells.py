"""The arguments of a figure, its colour scales, and the maps of some heads as its cells, with hidden cells masked."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize, PowerNorm
from matplotlib.image import AxesImage
from torch import Tensor

from clearhead._common.checks import as_int, as_place
from clearhead._text import shown
from clearhead.drawing.colours import HIDDEN as HIDDEN
from clearhead.drawing.colours import LESS, MORE, ink
from clearhead.drawing.colours import NO_NUMBER as NO_NUMBER
from clearhead.drawing.figures.lettering import figure_of, inches, wrapped
from clearhead.errors import ArgumentError, ArgumentTypeError, SelectionError, ShapeError
from clearhead.matrix.head_view import HeadMaps


@dataclass(frozen=True, eq=False)
class Cells:
    """The maps of some heads of one sample.

    Attributes:
        shares: (heads, rows, columns): the weights, or, pooled, which share of its attention a
            query of the row's tokens gives to the column's tokens, on average; masked where
            everything is hidden.
        heads: which heads of the layer they are.
        query_len: the number of queries of all rows.
        kv_len: the number of keys of all columns.

    Example:
        >>> cells = Cells.of(HeadMaps(torch.full((1, 2, 2), 0.5), None, 6, 6), [0])
        >>> cells.pooled, cells.detail()
        (True, 'one cell = 3 × 3 tokens')
    """

    shares: np.ma.MaskedArray
    heads: Sequence[int]
    query_len: int
    kv_len: int

    @classmethod
    def of(cls, maps: HeadMaps, heads: Sequence[int]) -> Self:
        """Return the cells of the maps of these heads."""
        return cls(masked(maps.shares, maps.hidden), heads, maps.query_len, maps.kv_len)

    @property
    def pooled(self) -> bool:
        """True if a cell is more than a pair of tokens."""
        return self.shares.shape[1:] != (self.query_len, self.kv_len)

    @property
    def hides(self) -> bool:
        """True if something is hidden."""
        return bool(np.ma.getmaskarray(self.shares).any())

    def detail(self) -> str:
        """Return the size of a cell in tokens, in words; "" if a cell is one pair."""
        if not self.pooled:
            return ""
        rows, columns = self.shares.shape[1:]
        even = self.query_len % rows == 0 and self.kv_len % columns == 0
        tall, wide = round(self.query_len / rows), round(self.kv_len / columns)
        return f"one cell {'=' if even else '≈'} {tall:,} × {wide:,} tokens".replace(",", " ")

    def unit(self) -> str:
        """Return the unit of the numbers for a colour bar, and what cells outside of the scale mean."""
        unit = (
            "share of a query's attention, mean" if self.pooled else "attention weight (share of 1)"
        )
        return "; ".join([unit, *self.blank()])

    def blank(self) -> list[str]:
        """Return the meaning of the cells without a colour of the scale, in words: hidden, no number.

        [] if there are none.
        """
        broken = bool(np.isnan(self.shares.compressed()).any())
        return ["grey: hidden"] * self.hides + ["orange: no number"] * broken


def check_cells(cells: object) -> int | None:
    """Return the largest number of cells along a side of a map, as an int; None for None.

    Raises:
        ArgumentError: code `plot.cells`, for anything else or less than 1.
    """
    count = as_int(cells)
    if cells is not None and (count is None or count < 1):
        raise ArgumentError(
            "plot.cells", f"cells must be a whole number, 1 or more, or None; got {shown(cells)}."
        )
    return count


def masked(numbers: Tensor, hidden: Tensor | None) -> np.ma.MaskedArray:
    """Return numbers as a masked array on the CPU, with hidden cells masked; None hides nothing.

    It shares memory with a tensor that is on the CPU.
    """
    array = numbers.detach().cpu().numpy()
    mask = False if hidden is None else hidden.cpu().expand(array.shape).numpy()
    return np.ma.MaskedArray(array, mask=mask)


WEIGHTS = LinearSegmentedColormap.from_list("clearhead", MORE)
SIGNED = LinearSegmentedColormap.from_list("clearhead_signed", [*reversed(LESS), *MORE[1:]])

DECADES = 4
"""Powers of ten from the largest number of a logarithmic scale down to its smallest."""


def upwards(
    values: Sequence[np.ndarray], *, log: bool, root: bool = False
) -> tuple[Normalize, str]:
    """Return a scale from 0 to the largest value, and how a colour bar extends, "min" or "neither".

    It is linear, by square root (`root`) or logarithmic (`log`). Values below the lower end of a logarithmic scale,
    such as 0, get the colour of that end: they are small, and not hidden. NaN and masked values do not count.

    Example:
        >>> import numpy as np
        >>> upwards([np.array([0.0, 0.5])], log=False)[0].vmax
        0.5
        >>> scale, extend = upwards([np.array([0.0, 0.5, 1.0])], log=True)
        >>> scale.vmin, scale.vmax, extend, float(scale(0.0))
        (0.5, 1.0, 'min', 0.0)
    """
    known = np.concatenate([np.ma.compressed(np.ma.masked_invalid(each)) for each in values])
    top = float(known.max(initial=0.0)) or 1.0
    if not log:
        return PowerNorm(0.5, 0.0, top) if root else Normalize(0.0, top), "neither"
    above = known[known > 0]
    bottom = max(float(above.min(initial=top)), top * 10.0**-DECADES)
    if bottom == top:
        bottom = top / 10
    return LogNorm(bottom, top, clip=True), "min" if bool((known < bottom).any()) else "neither"


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


def add_bar(image: AxesImage | QuadMesh, axes: Sequence[Axes], label: str, extend: str) -> Colorbar:
    """Draw a colour bar with a unit next to the axes, which become smaller, and return it."""
    figure = figure_of(axes[0])
    if len(axes) == 1:
        bar = figure.colorbar(image, ax=axes[0], shrink=0.8, extend=extend)
    else:
        bar = figure.colorbar(image, ax=list(axes), shrink=0.6, aspect=30, extend=extend)
    high = inches(axes[0])[1] if len(axes) == 1 else figure.get_size_inches()[1]
    bar.set_label(wrapped(label, 0.8 * high, matplotlib.rcParams["axes.labelsize"]))
    return bar


def write_numbers(axes: Axes, image: AxesImage, texts: Sequence[Sequence[str]], size: str) -> None:
    """Write a text into every cell of an image, in black or white by contrast; hidden cells count as white."""
    papers = image.to_rgba(np.asarray(image.get_array()), bytes=True)
    hidden = np.ma.getmaskarray(np.ma.masked_invalid(np.ma.asarray(image.get_array())))
    for row, line in enumerate(texts):
        for column, text in enumerate(line):
            paper = (255, 255, 255) if hidden[row, column] else papers[row, column, :3].tolist()
            colour = [channel / 255 for channel in ink((paper[0], paper[1], paper[2]))]
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=size)


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
        SelectionError: code `plot.part`.
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
        SelectionError: code `plot.part`.
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
    """Return the indices of several heads, given by their numbers; None is all of them.

    Raises:
        SelectionError: code `plot.part`.
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
