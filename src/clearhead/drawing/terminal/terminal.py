"""Heads, links, traces and long texts as lines of text in a terminal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from clearhead.drawing.labels import fit, label, line_of, names, widest
from clearhead.drawing.terminal.heat_maps import LABEL, PooledMap
from clearhead.drawing.terminal.shading import (
    BAR_COLUMNS,
    DIM,
    Console,
    ConsoleOptions,
    Padding,
    Text,
    bar,
    cell_text,
    centred,
    legend,
    percent,
    remark,
    text_line,
)
from clearhead.drawing.terminal.word_links import LayerHeads
from clearhead.integrations.text_models import LongReading
from clearhead.matrix.head_numbers import MATCHING
from clearhead.matrix.links import Link
from clearhead.matrix.pooling import row_shares
from clearhead.matrix.summary import Summary
from clearhead.watching.table import HeadRow, Table, rows_of

if TYPE_CHECKING:
    from clearhead.tracing.traced_call import Trace


class Printer:
    """Prints headings and texts.

    Args:
        console: to print to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def _print(self, what: object) -> None:
        """Print a renderable on the console."""
        self._console.print(what)

    def _heading(self, heading: str, remark: str = "") -> None:
        """Print an empty line and a heading, with a dim remark after it."""
        self._print(Text())
        self._print(Text.assemble((heading, "bold"), (f"   {remark}" if remark else "", "dim")))

    def _title(
        self, name: str, part: str, heads: Sequence[int], tokens: Sequence[str] = (), most: int = 0
    ) -> None:
        """Print a model with the number of heads of each layer, and the first `most` tokens of a text."""
        several = " or ".join(map(str, sorted(set(heads))))
        size = f": {len(heads)} layers × {several} heads"
        read = f", {len(tokens)} tokens" if tokens else ""
        self._print(Text.assemble((label(name), "bold"), part and f" ({part})", size, read))
        if tokens:
            more = f" … and {len(tokens) - most} more" if len(tokens) > most else ""
            self._print(Text(line_of(tokens[:most]) + more, "italic"))


class LayerTable(Table):
    """The rows of the heads of one layer, printed without the layer."""

    UNPRINTED = Table.UNPRINTED | {"layer", "layer_number"}


@dataclass(frozen=True, eq=False)
class Overview:
    """Every head of a model as one cell of its focus, layers down, heads across, with averages if they fit."""

    layers: Sequence[LayerHeads]

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[Text | Padding]:
        """Yield a line of head numbers and a line for each layer, for the heads that fit at once; then the legend."""
        heads = max(len(layer.rows) for layer in self.layers)
        left = max(len("layer"), len(str(len(self.layers)))) + 1
        right = " entropy distance special"
        cell = max(1, min(4, (options.max_width - left - len(right)) // heads))
        with_summary = left + cell * heads + len(right) <= options.max_width
        per_line = heads if with_summary else max(1, (options.max_width - left) // cell)
        for start in range(0, heads, per_line):
            shown = range(start, min(start + per_line, heads))
            yield text_line(
                "layer".ljust(left) + _head_numbers(shown, cell) + (right if with_summary else ""),
                style=DIM,
            )
            for place, layer in enumerate(self.layers):
                line = text_line(str(place).rjust(left - 1) + " ")
                for head in shown:
                    focus = layer.focus[head] if head < len(layer.rows) else None
                    line.append_text(
                        Text(" " * cell) if focus is None else cell_text(focus, 1.0, cell, console)
                    )
                if with_summary:
                    entropy, distance = (
                        fmean(getattr(row, name) for row in layer.rows)
                        for name in ("entropy", "distance")
                    )
                    special = percent(fmean(layer.special))
                    line.append(f"{entropy:8.2f}{distance:9.1f}{special:>8}")
                yield line
        yield from legend("100 %: one token only; 0: all tokens alike", console, options, left)
        if with_summary:
            yield remark(
                "averages: entropy in nats, distance in tokens, share on special tokens", left
            )


@dataclass(frozen=True, eq=False)
class Links:
    """Links, one per line, with a bar for the weight; with the layer if layers are given.

    Args:
        links: the links, from the first line to the last.
        tokens: a word for each token.
        layers: the layer of each link; None leaves layer and head out.
    """

    links: Sequence[Link]
    tokens: Sequence[str]
    layers: Sequence[int] | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield a line for each link; without its bar where the console is too narrow."""
        words = names(self.tokens)
        left = widest([words[link.query] for link in self.links], LABEL)
        right = widest([words[link.key] for link in self.links], LABEL)
        others = len(" →  0.00   10 tokens ahead") + (0 if self.layers is None else 19)
        with_bar = left + right + others + BAR_COLUMNS <= options.max_width
        for place, link in enumerate(self.links):
            line = Text()
            if self.layers is not None:
                line.append(f"layer {self.layers[place]:>2} head {link.head:>2}   ", DIM)
            query, key = fit(words[link.query], left), fit(words[link.key], right)
            line.append(f"{query} → {key}  {link.weight:.2f} ")
            if with_bar:
                line.append_text(bar(link.weight, console))
            way = "back" if link.key < link.query else "ahead"
            tokens = "token" if link.distance == 1 else "tokens"
            line.append(f"  {link.distance} {tokens} {way}" if link.distance else "  itself", DIM)
            yield line


@dataclass(frozen=True, eq=False)
class Traced:
    """A trace that renders in a terminal: its stages, and then the arithmetic of one query.

    Names of stages are emphasised, and formulas are dimmed.
    """

    trace: "Trace"
    query: int
    head: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines of `Trace.show` and, after an empty one, of `Trace.explain`."""
        explanation = self.trace.explain(self.query, head=self.head)
        after_heading = False
        for line in self.trace.show(head=self.head).splitlines():
            is_heading = bool(line) and not line.startswith(" ")
            yield _heading(line) if is_heading else Text(line, DIM if after_heading else "")
            after_heading = is_heading
        yield Text()
        for line in explanation.splitlines():
            yield Text(line) if line.startswith(" ") else _heading(line)


def _heading(line: str) -> Text:
    """Return a heading, `name  [sizes]` or `name: remark`, with its name emphasised."""
    name, gap, rest = next(
        (parts for mark in ("  ", ": ") if (parts := line.partition(mark))[1]), (line, "", "")
    )
    return Text.assemble((name, "bold cyan"), (gap + rest, "dim"))


def _head_numbers(shown: range, cell: int) -> str:
    """Return the numbers of heads above their cells; if cells are narrow, only some of them."""
    every = 1 if cell >= 3 else 4 if cell == 2 else 8
    if every == 1:
        return "".join(centred(f"{head:>3}", cell) for head in shown)
    return "".join(f"{head:<{every * cell}}" for head in shown[::every])[: len(shown) * cell].ljust(
        len(shown) * cell
    )


MAP_CELLS = 256
"""Rows and columns of a map; a terminal folds them as its width demands."""

MOST_RECEIVED = 8
AROUND = 3
TOKENS = 40


class LongScreens(Printer):
    """Prints the attention of a model on a long text.

    Args:
        console: where to.
        reading: what the model made of the text.

    Example:
        >>> import io
        >>> from clearhead.integrations import huggingface
        >>> minilm = huggingface.load()
        >>> reading = minilm.read_long("The cat sat on the mat. " * 60, layer=0)
        >>> console = Console(file=io.StringIO(), width=80)
        >>> LongScreens(console, reading).layer(0, None)
        2
        >>> "previous" in console.file.getvalue()
        True
    """

    def __init__(self, console: Console, reading: LongReading) -> None:
        super().__init__(console)
        self._reading = reading

    def title(self, name: str, part: str) -> None:
        """Print the model, the part of it that ran, and the beginning of the text."""
        self._title(name, part, self._reading.heads, self._reading.tokens, TOKENS)

    def model(self) -> int:
        """Print a line for each layer; return the number of the layer whose head best finds earlier tokens."""
        self._heading("What the layers do, averaged over their heads")
        self._print(Text("layer  entropy distance  first  prev.  induct.  roles", "dim"))
        self._print(Text("          nats   tokens   in %   in %     in %", "dim"))
        matching = []
        for number in self._reading.summaries:
            rows = self._rows(number)
            roles = [row.role for row in rows if row.role]
            counted = ", ".join(f"{roles.count(role)} {role}" for role in dict.fromkeys(roles))
            line = f"{number:>5}{_mean(rows, 'entropy'):9.2f}{_mean(rows, 'distance'):9.0f}"
            for name, width in (("first", 7), ("previous", 7), ("induction", 9)):
                line += f"{_mean(rows, name) * 100:{width}.0f}"
            self._print(Text(f"{line}  {counted}"))
            matching.append((max(map(_matching, rows)), number))
        return max(matching)[1]

    def layer(self, layer: int, head: int | None) -> int:
        """Print the heads of a layer, the map of one, and the tokens that receive most.

        Args:
            layer: which layer.
            head: the requested head, the only one of the summary; None for all.

        Returns:
            The head of the map, which best finds earlier tokens.
        """
        rows = self._rows(layer)
        if head is not None:
            rows = [row._replace(head=head) for row in rows]
        one = "" if head is None else f", head {head}"
        self._heading(f"Layer {layer}{one}", self._reading.layers[layer])
        self._print(Text(str(LayerTable(rows))))
        place = max(range(len(rows)), key=lambda place: _matching(rows[place]))
        self._heading(f"Layer {layer}, head {rows[place].head}, from the first token to the last")
        pooled = self._reading.summaries[layer].pooled
        assert pooled is not None
        self._print(PooledMap(row_shares(pooled[0, place]), len(self._reading.tokens)))
        self._heading("The tokens that receive most of the attention")
        self._received(self._reading.summaries[layer])
        return rows[place].head

    def _rows(self, layer: int) -> list[HeadRow]:
        """Return one row of numbers for each head of a layer that has a summary."""
        return rows_of(self._reading.layers[layer], [self._reading.summaries[layer]], layer)

    def _received(self, summary: Summary) -> None:
        """Print the 8 tokens that receive most from all queries of all heads, with bars and their neighbours."""
        received = summary.received[0].double().sum(dim=0)
        share = received / received.sum()
        tokens = self._reading.tokens
        wide = len(str(len(tokens) - 1))
        places = share.topk(min(MOST_RECEIVED, len(tokens))).indices.tolist()
        words = names([tokens[place] for place in places])
        left = widest(words, LABEL)
        for place, word in zip(places, words, strict=True):
            value = float(share[place])
            line = Text(f"{place:>{wide}} {fit(word, left)} {value * 100:5.1f} % ")
            line.append_text(bar(value / float(share.max()), self._console))
            before = line_of(tokens[max(0, place - AROUND) : place])
            after = line_of(tokens[place + 1 : place + 1 + AROUND])
            self._print(
                line.append(f"  {before} [", "dim").append(word).append(f"] {after}", "dim")
            )


def _mean(rows: list[HeadRow], name: str) -> float:
    """Return the mean of a column over rows."""
    return fmean(getattr(row, name) for row in rows)


def _matching(row: HeadRow) -> float:
    """Return the highest score of a head among the roles that find an earlier token; 0 if they are not known."""
    return max(getattr(row, name) or 0.0 for name in MATCHING)
