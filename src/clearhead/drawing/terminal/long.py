"""The screens of `clearhead show` for a text that is too long for a column per token."""

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from clearhead.drawing.labels import fit, line_of, names, widest
from clearhead.drawing.terminal.heat_maps import LABEL, PooledMap
from clearhead.drawing.terminal.shading import Console, Text, bar
from clearhead.drawing.terminal.terminal import Printer
from clearhead.integrations.text_models import LongReading
from clearhead.matrix.head_numbers import MATCHING
from clearhead.matrix.pooling import bin_sums, row_shares
from clearhead.matrix.summary import Summary
from clearhead.watching.table import HeadRow, Table, rows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TERMINAL_CELLS, PICTURE_CELLS = 64, 256
"""Rows and columns of a map."""

MOST_RECEIVED = 8
AROUND = 3
TOKENS = 40

ACROSS = "head  entropy distance  first  prev. dupl. induct.  role"
UNITS = "         nats   tokens  how far it fills the role, in %"


class LongScreens(Printer):
    """Prints what a model made of a long text.

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

    def title(self, name: str, *, encoder_only: bool = False) -> None:
        """Print the model, and the beginning of the text."""
        part = "its encoder only" if encoder_only else ""
        self._title(name, part, self._reading.heads, self._reading.tokens, TOKENS)

    def model(self) -> int:
        """A line for each layer; returns the one that looks back at other tokens most."""
        self._heading("What the layers do, averaged over their heads")
        self._print(Text("layer  entropy distance  first  prev.  induct.  roles", "dim"))
        self._print(Text("          nats   tokens   in %   in %     in %", "dim"))
        matching = []
        for number, summary in self._reading.summaries.items():
            rows = rows_of(self._reading.layers[number], [summary], number)
            names = [row.role for row in rows if row.role]
            counted = ", ".join(
                f"{names.count(name)} {name}" for name in sorted(set(names), key=names.index)
            )
            line = f"{number:>5}{_mean(rows, 'entropy'):9.2f}{_mean(rows, 'distance'):9.0f}"
            for name, width in (("first", 7), ("previous", 7), ("induction", 9)):
                line += f"{_mean(rows, name) * 100:{width}.0f}"
            self._print(Text(f"{line}  {counted}"))
            matching.append((max(_matching(row) for row in rows), number))
        return max(matching)[1]

    def layer(self, layer: int, head: int | None) -> int:
        """The heads of a layer, a line each, the map of one, and which tokens receive most.

        Args:
            layer: which layer.
            head: which head was asked for, the only one of the summary; None for all.

        Returns:
            The head of the map.
        """
        summary = self._reading.summaries[layer]
        rows = rows_of(self._reading.layers[layer], [summary], layer)
        if head is not None:
            rows = [row._replace(head=head) for row in rows]
        one = "" if head is None else f", head {head}"
        self._heading(f"Layer {layer}{one}", self._reading.layers[layer])
        self._table(Table(rows))
        place = max(range(len(rows)), key=lambda place: _matching(rows[place]))
        self._heading(f"Layer {layer}, head {rows[place].head}, from the first token to the last")
        self._print(PooledMap(self.shares(layer, place), len(self._reading.tokens)))
        self._heading("The tokens that receive most of the attention")
        self._received(summary)
        return rows[place].head

    def shares(self, layer: int, place: int) -> Tensor:
        """The map of a head, (rows, columns): which share of its attention a row gives a column."""
        pooled = self._reading.summaries[layer].pooled
        assert pooled is not None
        return row_shares(pooled[0, place])

    def picture(self, layer: int, head: int, *, only: bool) -> "Axes":
        """The map of a head as a picture; `only` if the summary is of this head alone.

        Raises:
            MissingExtraError: if matplotlib is not installed.
        """
        from clearhead.drawing.figures.png_files import pooled_picture

        return pooled_picture(
            self.shares(layer, 0 if only else head),
            len(self._reading.tokens),
            title=f"layer {layer}, head {head}",
        )

    def _table(self, table: Table) -> None:
        self._print(Text(ACROSS, "dim"))
        self._print(Text(UNITS, "dim"))
        for row in table:
            line = f"{row.head:>4}{row.entropy:9.2f}{row.distance:9.0f}"
            for name, width in (
                ("first", 7),
                ("previous", 7),
                ("duplicate", 6),
                ("induction", 8),
            ):
                score = getattr(row, name)
                line += ("" if score is None else f"{score * 100:.0f}").rjust(width)
            self._print(Text(f"{line}  {row.role}"))

    def _received(self, summary: Summary) -> None:
        """The tokens that get most from all queries of all heads, with what stands around them."""
        received = summary.received[0].double().sum(dim=0)
        share = received / received.sum()
        tokens = self._reading.tokens
        wide = len(str(len(tokens) - 1))
        places = share.topk(min(MOST_RECEIVED, len(tokens))).indices.tolist()
        words = dict(zip(places, names([tokens[place] for place in places]), strict=True))
        left = widest(words.values(), LABEL)
        for place in places:
            value = float(share[place])
            line = Text(f"{place:>{wide}} {fit(words[place], left)} {value * 100:5.1f} % ")
            line.append_text(bar(value / float(share.max()), self._console))
            before = line_of(tokens[max(0, place - AROUND) : place])
            after = line_of(tokens[place + 1 : place + 1 + AROUND])
            line.append(f"  {before} [", "dim").append(words[place])
            line.append(f"] {after}", "dim")
            self._print(line)


def coarser(reading: LongReading, cells: int) -> LongReading:
    """Return the reading with maps of at most `cells` rows and columns.

    Example:
        >>> from clearhead.integrations import huggingface
        >>> reading = huggingface.load().read_long("The cat sat on the mat. " * 20, layer=0, pool=64)
        >>> coarser(reading, 8).summaries[0].pooled.shape
        torch.Size([1, 12, 8, 8])
    """
    summaries = {}
    for number, summary in reading.summaries.items():
        assert summary.pooled is not None
        pooled = bin_sums(bin_sums(summary.pooled, 2, cells), 3, cells)
        summaries[number] = replace(summary, pooled=pooled)
    return reading._replace(summaries=summaries)


def _mean(rows: list[HeadRow], name: str) -> float:
    return sum(getattr(row, name) for row in rows) / len(rows)


def _matching(row: HeadRow) -> float:
    """The highest score of a head among the roles that find an earlier token."""
    return max(getattr(row, name) or 0.0 for name in MATCHING)
