"""Rows of numbers that were measured: columns by name, sorted, as text, as a picture and as a DataFrame."""

import math
import re
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, ClassVar, Generic, Self, TypeVar, overload

import torch

from clearhead._common.checks import check_bool, check_sizes
from clearhead._common.foreign_names import Answering
from clearhead._common.lazy import drawing
from clearhead._text import readable, shown
from clearhead.errors import ArgumentError, SelectionError

Row = TypeVar("Row", bound=tuple[Any, ...])
"""A named tuple."""


class MeasuredRows(Sequence[Row], Answering, Generic[Row]):
    """Rows of one kind, in an order: print them, iterate over them, take a column, sort.

    What sorts, picks or slices makes other rows, and leaves these as they are.

    Example:
        >>> from clearhead.watching.finding import HeadLink, HeadLinks
        >>> links = HeadLinks([HeadLink("a", 0, 2, 1, 0.25), HeadLink("b", 0, 2, 1, 0.75)])
        >>> links["weight"], links["layer"], links.top(1)[0].layer
        (tensor([0.2500, 0.7500], dtype=torch.float64), ['a', 'b'], 'b')
    """

    ROW: ClassVar[Any]
    """The kind of a row."""
    BY: ClassVar[str | None] = None
    """The column that `top` goes by where none is named."""
    UNITS: ClassVar[dict[str, str]] = {}
    UNPRINTED: ClassVar[frozenset[str]] = frozenset()
    DIGITS: ClassVar[int] = 2
    """Of the numbers in the text, behind the point."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = tuple(rows)

    def _with(self, rows: Sequence[Row]) -> Self:
        """Return a copy of the table with other rows."""
        made = copy(self)
        made._rows = tuple(rows)
        return made

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return self.ROW._fields

    @property
    def caption(self) -> str:
        """The line above the rows in a picture; "" without one."""
        return ""

    @property
    def notes(self) -> Sequence[str]:
        """The lines below the rows; () by default."""
        return ()

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    @overload
    def __getitem__(self, index: str) -> Any: ...
    def __getitem__(self, index: int | slice | str) -> Any:
        """Return a row by its index, several rows by a slice, or a column by its name.

        A numeric column is a tensor with one value per row: int64, or float64 with NaN for None. Any other column is a
        list.

        Raises:
            SelectionError: code `rows.column`, if no column has this name.
        """
        if isinstance(index, slice):
            return self._with(self._rows[index])
        if not isinstance(index, str):
            return self._rows[index]
        values = self._column(index)
        if not self._is_numbers(index):
            return values
        if values and all(isinstance(value, int) for value in values):
            return torch.tensor(values)
        numbers = [math.nan if value is None else value for value in values]
        return torch.tensor(numbers, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def sort(self, by: str, *, descending: bool = False) -> Self:
        """Return the rows sorted by a column; rows without a value are last, and equal rows keep their order.

        Strings are sorted in natural order: layer 2 comes before layer 10.

        Args:
            by: the name of the column.
            descending: True for the largest first.

        Raises:
            SelectionError: code `rows.column`, if no column has this name.
            ArgumentTypeError: code `descending.type`.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = ch.MultiHeadAttention(8, num_heads=4, mask=ch.causal())
            >>> with torch.no_grad(), ch.watch(layer) as seen:
            ...     output = layer(torch.randn(1, 5, 8))
            >>> entropy = seen.table().sort("entropy", descending=True)["entropy"]
            >>> bool((entropy.diff() <= 0).all())
            True
        """
        check_bool("descending", descending)
        rows, empty = self._apart(by)
        rows.sort(key=lambda pair: _order(pair[0]), reverse=descending)
        return self._with([row for _, row in rows] + empty)

    def top(self, count: int = 10, by: str | None = None) -> Self:
        """Return the rows with the largest absolute values of a column, largest first.

        Rows without a value are left out.

        Args:
            count: the number of rows, at most all.
            by: the name of the column; None is the main column of these rows, such as the change of effects or
                the weight of links.

        Raises:
            SelectionError: code `rows.column`, if no column has this name.
            ArgumentError: codes `rows.by`, if no column is named or it has no numbers, and `argument.size`.
            ArgumentTypeError: code `argument.type`.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = ch.MultiHeadAttention(8, num_heads=4, mask=ch.causal())
            >>> with torch.no_grad(), ch.watch(layer) as seen:
            ...     output = layer(torch.randn(1, 5, 8))
            >>> table = seen.table()
            >>> table.top(1, by="previous")[0].previous == float(table["previous"].max())
            True
        """
        check_sizes(count=count)
        by = self.BY if by is None else by
        rows = [] if by is None else self._apart(by)[0]
        if by is None or not self._is_numbers(by) or (self._rows and not rows):
            have = [name for name in self.columns if self._is_numbers(name, some=True)]
            raise ArgumentError(
                "rows.by",
                f"by must be a column that holds numbers: {', '.join(have)}; got {shown(by)}.",
            )
        rows.sort(key=lambda pair: -abs(pair[0]))
        return self._with([row for _, row in rows[:count]])

    def to_pandas(self) -> Any:
        """Return the rows as a `pandas.DataFrame` with a column for each field, as `pandas.DataFrame(rows)` does.

        ModuleNotFoundError if pandas is not installed.
        """
        import pandas  # pyright: ignore[reportMissingImports]

        return pandas.DataFrame(list(self._rows), columns=list(self.columns))

    def is_words(self, name: str) -> bool:
        """Return True for a column of strings, also with None, which is aligned to the left; KeyError for no column."""
        return self.ROW.__annotations__[name] in (str, str | None)

    def cells(self) -> tuple[list[str], list[str], list[list[str]]]:
        """Return the table as text: column names, their units ("" without one), and the cells of each row.

        Columns in `UNPRINTED` are left out, and those that may be None and are None in every row.
        """
        kinds = self.ROW.__annotations__
        names = [
            name
            for name in self.columns
            if name not in self.UNPRINTED
            and (
                isinstance(kinds[name], type)
                or any(getattr(row, name) is not None for row in self._rows)
            )
        ]
        lines = [[self._cell(getattr(row, name)) for name in names] for row in self._rows]
        return names, [self.UNITS.get(name, "") for name in names], lines

    def __repr__(self) -> str:
        """Return the rows as text in aligned columns, with units below the names, if any, and the notes last."""
        names, units, lines = self.cells()
        heads = [names, units] if any(units) else [names]
        widths = [max(map(len, column)) for column in zip(*heads, *lines, strict=True)]
        # Words stand on the left, numbers on the right.
        words = [self.is_words(name) for name in names]
        text = "\n".join(
            "  ".join(
                cell.ljust(width) if is_word else cell.rjust(width)
                for is_word, cell, width in zip(words, line, widths, strict=True)
            ).rstrip()
            for line in [*heads, *lines]
        )
        return readable("\n".join([text, *self.notes]))

    def _repr_html_(self) -> str:
        """Return the rows as an HTML table for a notebook."""
        return drawing("notebook.inline.markup").rows_html(self)

    def _cell(self, value: object) -> str:
        """Return a value as the text of a cell; a float with `DIGITS` decimals, "" for None."""
        if isinstance(value, float):
            return f"{value:.{self.DIGITS}f}"
        return "" if value is None else str(value)

    def _column(self, name: str) -> list[Any]:
        """Return the values of a column, one a row.

        SelectionError, code `rows.column`, if there is none of this name.
        """
        if name not in self.columns:
            raise SelectionError(
                "rows.column",
                f"there is no column {shown(name)}; the columns are {', '.join(self.columns)}.",
            )
        return [getattr(row, name) for row in self._rows]

    def _apart(self, by: str) -> tuple[list[tuple[Any, Row]], list[Row]]:
        """Return a list of (value, row) of rows with a value in column `by`, and a list of the other rows.

        Without a value is None or NaN. Raises SelectionError as `_column`.
        """
        every = list(zip(self._column(by), self._rows, strict=True))
        rows = [(value, row) for value, row in every if not _is_empty(value)]
        return rows, [row for value, row in every if _is_empty(value)]

    def _is_numbers(self, name: str, *, some: bool = False) -> bool:
        """Return True for a column declared as int or float, maybe with None; KeyError if there is no such column.

        With `some` only if a row has a number there.
        """
        if self.ROW.__annotations__[name] not in (int, float, int | None, float | None):
            return False
        return not some or any(not _is_empty(value) for value in self._column(name))


def _is_empty(value: object) -> bool:
    """Return True for None and NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _order(value: Any) -> Any:
    """Return the key by which a value is sorted: in text, digits compare as numbers; other values as they are."""
    if not isinstance(value, str):
        return value
    parts = re.split(r"([0-9]+)", value)
    return [int(part) if at % 2 else part for at, part in enumerate(parts)]
