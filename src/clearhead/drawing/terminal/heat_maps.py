"""A head as a map in a terminal: rows attend to columns."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead._text import cell_len
from clearhead.drawing.labels import clusters, fit, names, widest
from clearhead.drawing.terminal.shading import (
    DIM,
    Console,
    ConsoleOptions,
    Padding,
    Text,
    cell_text,
    centred,
    largest,
    legend,
    percent,
    remark,
    text_line,
)
from clearhead.matrix.pooling import in_blocks

LABEL = 16
"""Columns, or rows, of a token that is written at its row, or over its column."""

NUMBER_CELL = 5
LEAST_SHOWN = 0.05


@dataclass(frozen=True, eq=False)
class HeatMap:
    """One head over its tokens: rows attend to columns.

    A cell is as wide as there is room for, with the weight in percent where that fits. More tokens
    than columns are pooled, and the picture says so.

    Args:
        weights: (query_len, kv_len), shares of one.
        tokens: a word for each query and key.
        visible: (query_len, kv_len), bool: the pairs that are not hidden; None is all of them.
    """

    weights: Tensor
    tokens: Sequence[str]
    visible: Tensor | None = None

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[Text | Padding]:
        """Yield the names of the columns, a line for each (pooled) row, the legend, and a remark on pooling."""
        rows = _numbered(self.tokens)
        left = widest(rows, LABEL + len(str(len(rows))))
        room = max(1, options.max_width - left - 1)
        pool = math.ceil(len(self.tokens) / room)
        weights = in_blocks(self.weights, pool, pool)
        count = max(1, weights.shape[1])
        cell = max(NUMBER_CELL, widest(names(self.tokens), LABEL) + 1)
        if cell * count > room:
            cell = min(NUMBER_CELL, room // count)
        for line in _column_names(self.tokens, cell, pool):
            yield text_line(" " * (left + 1) + line.rstrip(), style=DIM)
        top = largest(weights)
        shown = torch.ones_like(self.weights) if self.visible is None else self.visible
        # A block is blank if every pair of it is hidden.
        blank = in_blocks(shown.to(weights.dtype), pool, pool) == 0
        for name, row, hidden in zip(rows[::pool], weights.tolist(), blank.tolist(), strict=True):
            line = text_line(fit(name, left) + " ")
            for value, empty in zip(row, hidden, strict=True):
                cells = cell_text(value, top, cell, console, least=LEAST_SHOWN)
                line.append_text(Text(" " * cell) if empty else cells)
            yield line
        words = f"{percent(top)} of a row's attention goes to a column"
        yield from legend(words, console, options, left + 1)
        if pool > 1:
            yield remark(
                f"{len(self.tokens)} tokens do not fit: a cell is {pool} × {pool} of them, and shows what "
                f"share of their attention {pool} rows give to {pool} columns"
            )


@dataclass(frozen=True, eq=False)
class PooledMap:
    """One head over a long text, as a map of few rows and columns; rows attend to columns.

    Args:
        shares: (rows, columns): which share of its attention a row gives a column.
        tokens: how many tokens the rows, and the columns, are.
    """

    shares: Tensor
    tokens: int

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[Text | Padding]:
        """Yield the positions of the columns, a line for each row of cells, the legend, and the size of a cell."""
        left = len(str(self.tokens - 1))
        room = max(1, options.max_width - left - 1)
        # A terminal's cell is twice as high as wide, so two rows go into one line.
        fold = max(1, math.ceil(self.shares.shape[1] / room))
        shares = in_blocks(self.shares, fold, fold)
        rows = in_blocks(shares, 2, 1)
        wide = max(1, min(2, room // shares.shape[1]))
        # A share of one is rare here, so brightness grows with the root.
        top = math.sqrt(largest(rows))
        end = max(wide * shares.shape[1] - 1, left + 1)
        yield text_line(f"{'':{left}} 0{self.tokens - 1:>{end}}", style=DIM)
        for place, row in enumerate(rows.tolist()):
            first = place * 2 * self.tokens // shares.shape[0]
            line = text_line(f"{first:>{left}} ")
            for value in row:
                line.append_text(
                    cell_text(math.sqrt(max(0.0, value)), top, wide, console, least=2.0)
                )
            yield line
        words = f"{percent(top * top)} of a row's attention, by its square root"
        yield from legend(words, console, options, left + 1)
        high, broad = (math.ceil(self.tokens / count) for count in (len(rows), shares.shape[1]))
        yield remark(f"one cell is up to {high} × {broad} tokens")


def _numbered(tokens: Sequence[str]) -> list[str]:
    """Return the tokens as labels with their positions before them."""
    wide = len(str(len(tokens) - 1))
    return [f"{place:>{wide}} {name}" for place, name in enumerate(names(tokens))]


def _column_names(tokens: Sequence[str], cell: int, pool: int) -> list[str]:
    """Return the lines above a heat map: names across if every name fits into its cell, or else downwards.

    Positions instead of names if tokens are pooled, or a letter is wider than a cell of `cell` columns.
    """
    words = names(tokens)
    if pool > 1 or any(cell_len(part) > cell for word in words for part in clusters(word)):
        words = [str(place) for place in range(0, len(tokens), pool)]
    elif all(cell_len(word) < cell for word in words):
        return ["".join(fit(centred(word, cell - 1), cell) for word in words)]
    return ["".join(centred(part, cell) for part in row) for row in _downwards(words)]


def _downwards(words: Sequence[str]) -> list[list[str]]:
    """Return the lines of names written downwards, a letter a name, aligned at their ends; long names are cut."""
    letters = []
    for word in words:
        parts = clusters(word)
        letters.append(parts if len(parts) <= LABEL else [*parts[: LABEL - 1], "⋮"])
    height = max(map(len, letters), default=0)
    full = [[" "] * (height - len(parts)) + parts for parts in letters]
    return [[parts[row] for parts in full] for row in range(height)]
