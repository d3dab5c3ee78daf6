"""The screens of `clearhead show` for a text that is too long for one column per token."""

from statistics import fmean

from torch import Tensor

from clearhead.drawing.labels import fit, line_of, names, widest
from clearhead.drawing.terminal.heat_maps import LABEL, PooledMap
from clearhead.drawing.terminal.shading import Console, Text, bar
from clearhead.drawing.terminal.terminal import LayerTable, Printer
from clearhead.integrations.text_models import LongReading
from clearhead.matrix.head_numbers import MATCHING
from clearhead.matrix.pooling import row_shares
from clearhead.matrix.summary import Summary
from clearhead.watching.table import HeadRow, rows_of

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
        self._print(PooledMap(self.shares(layer, place), len(self._reading.tokens)))
        self._heading("The tokens that receive most of the attention")
        self._received(self._reading.summaries[layer])
        return rows[place].head

    def shares(self, layer: int, place: int) -> Tensor:
        """Return the map of a head of the first sample, (rows, columns): the share of a row's attention on a column.

        The summary of the layer must have a map.
        """
        pooled = self._reading.summaries[layer].pooled
        assert pooled is not None
        return row_shares(pooled[0, place])

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
