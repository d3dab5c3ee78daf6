"""Attention as coloured text in a terminal.

Every drawing here is something that rich prints: it asks the console, when it is printed, how wide
it is and whether there are colours, and without colours (a pipe, NO_COLOR) draws in shades.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead._common.text import cell_len
from clearhead.drawing.colours import colour, ink
from clearhead.drawing.labels import clusters, fit, label, widest
from clearhead.drawing.terminal.summary import LayerSummary, Link
from clearhead.errors import missing_extra
from clearhead.tracing.trace import Trace

try:
    from rich.console import Console, ConsoleOptions
    from rich.style import Style
    from rich.text import Text
except ModuleNotFoundError as error:
    if error.name != "rich":
        raise
    raise missing_extra("rich", "cli", "drawing in a terminal") from error

SHADES = " ░▒▓█"
LABEL_COLUMNS = 12
LABEL_ROWS = 8
LETTERS_ACROSS = 4
MOST_CELL = 9
LEAST_SHOWN = 0.05
SCALE_COLUMNS = 20
BAR_COLUMNS = 10
DIM, BOLD = Style(dim=True), Style(bold=True)


@dataclass(frozen=True, eq=False)
class HeatMap:
    """One head over its tokens: rows attend to columns.

    A cell is as wide as there is room for, with the weight in percent where that fits. More tokens
    than columns are pooled, and the picture says so.

    Args:
        weights: (query_len, kv_len), shares of one.
        tokens: a word for each query.
        source_tokens: a word for each key; None is those of the queries.
        visible: (query_len, kv_len), bool: the pairs that are not hidden; None is all of them.
    """

    weights: Tensor
    tokens: Sequence[str]
    source_tokens: Sequence[str] | None = None
    visible: Tensor | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        columns = self.tokens if self.source_tokens is None else self.source_tokens
        rows = _numbered(self.tokens)
        left = widest(rows, LABEL_COLUMNS)
        room = max(1, options.max_width - left - 1)
        pool = math.ceil(len(columns) / room)
        weights = pooled(self.weights, pool)
        longest = max(LETTERS_ACROSS, widest(map(label, columns), MOST_CELL - 1)) + 1
        cell = min(longest, room // max(1, weights.shape[1]))
        for line in _column_names(columns, cell, pool):
            yield _line(" " * (left + 1) + line.rstrip(), style=DIM)
        top = _largest(weights)
        shown = torch.ones_like(self.weights) if self.visible is None else self.visible
        # A block is blank if every pair of it is hidden.
        blank = pooled(shown.to(weights.dtype), pool) == 0
        for name, row, hidden in zip(rows[::pool], weights.tolist(), blank.tolist(), strict=True):
            line = _line(fit(name, left) + " ")
            for value, empty in zip(row, hidden, strict=True):
                cells = _cell(value, top, cell, console, least=LEAST_SHOWN)
                line.append_text(Text(" " * cell) if empty else cells)
            yield line
        legend = _line(" " * (left + 1) + "0 ", style=DIM)
        legend.append_text(_ramp(top, console))
        legend.append(f" {_percent(top)} of a row's attention goes to a column")
        yield legend
        if pool > 1:
            yield _line(
                f"{len(columns)} tokens do not fit: a cell is {pool} × {pool} of them, and shows what "
                f"share of their attention {pool} rows give to {pool} columns",
                style=DIM,
                wrap=True,
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

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        left = len(str(self.tokens - 1))
        room = max(1, options.max_width - left - 1)
        # A terminal's cell is twice as high as wide, so two rows go into one line.
        shares = pooled(self.shares, max(1, math.ceil(self.shares.shape[1] / room)))
        rows = [pair.mean(dim=0) for pair in shares.split(2)]
        wide = max(1, min(2, room // shares.shape[1]))
        # A share of one is rare here, so brightness grows with the root.
        top = math.sqrt(_largest(torch.stack(rows)))
        end = max(wide * shares.shape[1] - 1, left + 1)
        yield _line(f"{'':{left}} 0{self.tokens - 1:>{end}}", style=DIM)
        for place, row in enumerate(rows):
            first = place * 2 * self.tokens // shares.shape[0]
            line = _line(f"{first:>{left}} ")
            for value in row.tolist():
                line.append_text(_cell(math.sqrt(max(0.0, value)), top, wide, console, least=2.0))
            yield line
        legend = _line(f"{'':{left}} 0 ", style=DIM)
        legend.append_text(_ramp(top, console))
        legend.append(f" {_percent(top * top)} of a row's attention, by its square root")
        yield legend
        high, broad = (math.ceil(self.tokens / count) for count in (len(rows), shares.shape[1]))
        yield _line(f"one cell is up to {high} × {broad} tokens", style=DIM, wrap=True)


@dataclass(frozen=True, eq=False)
class Overview:
    """Every head of a model as one cell, layers down, heads across, with a summary per layer."""

    layers: Sequence[LayerSummary]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        heads = max(layer.num_heads for layer in self.layers)
        left = max(len("layer"), len(str(len(self.layers)))) + 1
        right = " entropy distance special"
        cell = max(1, min(4, (options.max_width - left - len(right)) // heads))
        with_summary = left + cell * heads + len(right) <= options.max_width
        per_line = heads if with_summary else max(1, (options.max_width - left) // cell)
        for start in range(0, heads, per_line):
            shown = range(start, min(start + per_line, heads))
            yield _line(
                "layer".ljust(left) + _head_numbers(shown, cell) + (right if with_summary else ""),
                style=DIM,
            )
            for place, layer in enumerate(self.layers):
                line = _line(str(place).rjust(left - 1) + " ")
                for head in shown:
                    focus = float(layer.focus[head]) if head < layer.num_heads else None
                    line.append_text(
                        Text(" " * cell) if focus is None else _cell(focus, 1.0, cell, console)
                    )
                if with_summary:
                    numbers = f"{_mean(layer.entropy):8.2f}{_mean(layer.distance):9.1f}"
                    line.append(f"{numbers}{_percent(_mean(layer.special)):>8}")
                yield line
        legend = _line(" " * left, style=DIM)
        legend.append("all tokens alike 0 % ")
        legend.append_text(_ramp(1.0, console))
        legend.append(" 100 % one token only")
        yield legend
        if with_summary:
            yield _line(
                f"{'':{left}}averages: entropy in nats, distance in tokens, share on special tokens",
                style=DIM,
                wrap=True,
            )


@dataclass(frozen=True, eq=False)
class HeadTable:
    """The heads of a layer, a line each, with their numbers and their strongest link."""

    layer: LayerSummary
    tokens: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        layer = self.layer
        yield _line(
            "head  focus entropy distance first itself previous special  strongest link", style=DIM
        )
        yield _line(
            "          %    nats   tokens  share of the attention, %     between words", style=DIM
        )
        for head in range(layer.num_heads):
            line = _line(f"{head:>4}  ")
            line.append_text(_cell(float(layer.focus[head]), 1.0, 5, console))
            line.append(f"{float(layer.entropy[head]):8.2f}{float(layer.distance[head]):9.1f}")
            for share, width in (
                (layer.first, 6),
                (layer.itself, 7),
                (layer.previous, 9),
                (layer.special, 8),
            ):
                line.append(_whole_percent(float(share[head])).rjust(width))
            link = layer.strongest[head]
            room = options.max_width - line.cell_len - 2
            line.append("  " + (_link(link, self.tokens, room) if link else "none"))
            yield line


@dataclass(frozen=True, eq=False)
class Links:
    """Links, a line each, with a bar for the weight; with the layer where it is given.

    Args:
        links: the links, from the first line to the last.
        tokens: a word for each token.
        layers: the layer of each link; None leaves layer and head out.
    """

    links: Sequence[Link]
    tokens: Sequence[str]
    layers: Sequence[int] | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        names = [label(token) for token in self.tokens]
        room = max(3, (options.max_width - 50) // 2)
        left = widest([names[link.query] for link in self.links], room)
        right = widest([names[link.key] for link in self.links], room)
        for place, link in enumerate(self.links):
            line = _line("")
            if self.layers is not None:
                line.append(f"layer {self.layers[place]:>2} head {link.head:>2}   ", DIM)
            query, key = fit(names[link.query], left), fit(names[link.key], right)
            line.append(f"{query} → {key}  {link.weight:.2f} ")
            line.append_text(bar(link.weight, console))
            way = "back" if link.key < link.query else "ahead"
            tokens = "token" if link.distance == 1 else "tokens"
            line.append(f"  {link.distance} {tokens} {way}" if link.distance else "  itself", DIM)
            yield line


@dataclass(frozen=True, eq=False)
class Traced:
    """A trace, with the names of its stages standing out and its formulas stepping back, and then
    the arithmetic of one query."""

    trace: Trace
    query: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        explanation = self.trace.explain(self.query)
        after_heading = False
        for line in str(self.trace).splitlines():
            is_heading = bool(line) and not line.startswith(" ")
            yield _heading(line) if is_heading else Text(line, DIM if after_heading else "")
            after_heading = is_heading
        yield Text()
        for line in explanation.splitlines():
            yield Text(line) if line.startswith(" ") else _heading(line)


def pooled(weights: Tensor, pool: int) -> Tensor:
    """A matrix of blocks of tokens: each row is the mean of its queries, each column the sum of
    its keys, so that a cell is still a share of one.

    Args:
        weights: (query_len, kv_len).
        pool: tokens on a side of a block; the last block may have fewer.

    Returns:
        (query_len / pool, kv_len / pool), rounded up.

    Example:
        >>> pooled(torch.eye(4), 2)
        tensor([[1., 0.],
                [0., 1.]])
    """
    if pool == 1:
        return weights
    rows = [block.mean(dim=0) for block in weights.split(pool)]
    return weights.new_tensor([[float(part.sum()) for part in row.split(pool)] for row in rows])


def _heading(line: str) -> Text:
    """A heading, `name  [sizes]` or `name: remark`, with its name standing out."""
    name, gap, rest = next(
        (parts for mark in ("  ", ": ") if (parts := line.partition(mark))[1]), (line, "", "")
    )
    return Text.assemble((name, "bold cyan"), (gap + rest, "dim"))


def _numbered(tokens: Sequence[str]) -> list[str]:
    wide = len(str(len(tokens) - 1))
    return [f"{place:>{wide}} {label(token)}" for place, token in enumerate(tokens)]


def _line(text: str, *, style: Style | None = None, wrap: bool = False) -> Text:
    return Text(text, style=style or "", no_wrap=not wrap, overflow="fold" if wrap else "crop")


def _has_colours(console: Console) -> bool:
    # Sixteen colours are too few for a scale.
    return not console.no_color and console.color_system in ("256", "truecolor")


def _cell(value: float, top: float, width: int, console: Console, *, least: float = 0.0) -> Text:
    """A share of one as a cell: coloured as a part of `top`, with its percentage where that fits
    and is not below `least`."""
    number = "" if width < 3 or value < least else _whole_percent(value)
    if _has_colours(console):
        paper = colour(value / top)
        style = Style(color=_hex(ink(paper)), bgcolor=_hex(paper))
        return Text(_centred(number.rjust(3), width) if number else " " * width, style)
    if width < 3:
        return Text(_shade(value / top) * width)
    return Text(_shade(value / top) * (width - len(number)) + number)


def _shade(share: float) -> str:
    if math.isnan(share):
        return "?"
    return SHADES[min(int(share * len(SHADES)), len(SHADES) - 1)]


def _ramp(top: float, console: Console) -> Text:
    line = Text()
    for step in range(SCALE_COLUMNS):
        value = top * step / (SCALE_COLUMNS - 1)
        line.append_text(_cell(value, top, 1, console))
    return line


def bar(share: float, console: Console) -> Text:
    """A share of one as a bar.

    Example:
        >>> bar(0.5, Console(no_color=True)).plain
        '━━━━━     '
    """
    length = 0 if math.isnan(share) else round(share * BAR_COLUMNS)
    style = Style(color=_hex(colour(share))) if _has_colours(console) else ""
    return Text("━" * length, style).append(" " * (BAR_COLUMNS - length))


def _hex(channels: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*channels)


def _largest(weights: Tensor) -> float:
    numbers = [v for row in weights.tolist() for v in row if not math.isnan(v)]
    return max(numbers, default=1.0) or 1.0


def _column_names(tokens: Sequence[str], cell: int, pool: int) -> list[str]:
    """The lines above a heat map: across where there is room for some letters, else downwards."""
    names = [label(token) for token in tokens]
    if pool > 1 or any(cell_len(part) > cell for name in names for part in clusters(name)):
        names = [str(place) for place in range(0, len(tokens), pool)]
    elif cell >= LETTERS_ACROSS:
        return ["".join(fit(_abbreviated(name, cell - 1), cell) for name in names)]
    return ["".join(_centred(part, cell) for part in row) for row in _downwards(names)]


def _abbreviated(name: str, width: int) -> str:
    """The start of a name that is written in full at its row."""
    kept = ""
    for part in clusters(name):
        if cell_len(kept + part) > width:
            break
        kept += part
    return " " * ((width - cell_len(kept) + 1) // 2) + kept


def _downwards(names: Sequence[str]) -> list[list[str]]:
    """The lines of names written downwards, side by side, that end together."""
    letters = []
    for name in names:
        parts = clusters(name)
        letters.append(parts if len(parts) <= LABEL_ROWS else [*parts[: LABEL_ROWS - 1], "⋮"])
    height = max(map(len, letters), default=0)
    full = [[" "] * (height - len(parts)) + parts for parts in letters]
    return [[parts[row] for parts in full] for row in range(height)]


def _centred(text: str, width: int) -> str:
    space = max(0, width - cell_len(text))
    return " " * ((space + 1) // 2) + text + " " * (space // 2)


def _head_numbers(shown: range, cell: int) -> str:
    """The numbers of heads over their cells; where a cell is narrow, only some of them."""
    every = 1 if cell >= 3 else 4 if cell == 2 else 8
    if every == 1:
        return "".join(_centred(f"{head:>3}", cell) for head in shown)
    return "".join(f"{head:<{every * cell}}" for head in shown[::every])[: len(shown) * cell].ljust(
        len(shown) * cell
    )


def _mean(numbers: Tensor) -> float:
    return float(numbers.mean())


def _percent(share: float) -> str:
    return f"{_whole_percent(share)} %"


def _whole_percent(share: float) -> str:
    return "?" if math.isnan(share) else f"{share * 100:.0f}"


def _link(link: Link, tokens: Sequence[str], room: int) -> str:
    words = max(2, room - len(" → ") - len(" 0.00"))
    query, key = label(tokens[link.query]), label(tokens[link.key])
    if cell_len(query) + cell_len(key) > words:
        key_room = max(words // 2, words - cell_len(query))
        key = fit(key, min(cell_len(key), key_room))
        query = fit(query, min(cell_len(query), words - cell_len(key)))
    return f"{query} → {key} {link.weight:.2f}"
