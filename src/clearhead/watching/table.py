"""The heads of a model side by side: a row of numbers each."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

from torch import Tensor

from clearhead._common.checks import check_ids
from clearhead._common.text import readable
from clearhead.errors import MissingExtraError
from clearhead.matrix.head_numbers import ROLES, head_averages, numbers_of_heads
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.roles import summary_with_roles
from clearhead.matrix.summary import Summary
from clearhead.matrix.totals import Totals
from clearhead.watching.missing import Missing


class HeadRow(NamedTuple):
    """One head of one layer, on average over all its real queries.

    Attributes:
        layer: the path of the module that attended.
        head: which query head.
        queries: the number of queries, of all samples and calls, in the averages.
        entropy: nats.
        distance: tokens; None in cross-attention, whose places are those of two texts.
        first, previous, duplicate, induction, local, uniform: its score in each role, 0 to 1, as
            `Roles` has them; None for what needs tokens where there are none, and for what compares
            places or tokens in cross-attention.
        role: the leading role, "" for none.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        >>> with ch.watch(layer) as seen:
        ...     output = layer(torch.randn(1, 5, 8))
        >>> seen.table()[1]._fields[:4]
        ('layer', 'head', 'queries', 'entropy')
    """

    layer: str
    head: int
    queries: int
    entropy: float
    distance: float | None
    first: float | None
    previous: float | None
    duplicate: float | None
    induction: float | None
    local: float | None
    uniform: float | None
    role: str


class Table(Sequence[HeadRow]):
    """The rows of all heads of all layers: print it, iterate over it, or take it to pandas.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        >>> with ch.watch(layer) as seen:
        ...     output = layer(torch.randn(1, 5, 8))
        >>> table = seen.table()
        >>> len(table), table[0].head, table[0].queries
        (2, 0, 5)
    """

    def __init__(self, rows: Sequence[HeadRow], missing: Sequence[Missing] = ()) -> None:
        self._rows = tuple(rows)
        self.missing = tuple(missing)
        """The parts of the model that attended and were not seen, which have no rows."""

    @overload
    def __getitem__(self, index: int) -> HeadRow: ...
    @overload
    def __getitem__(self, index: slice) -> "Table": ...
    def __getitem__(self, index: int | slice) -> "HeadRow | Table":
        return (
            Table(self._rows[index], self.missing)
            if isinstance(index, slice)
            else self._rows[index]
        )

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[HeadRow]:
        return iter(self._rows)

    def to_pandas(self) -> Any:
        """The rows as a `pandas.DataFrame`, with a column for each field.

        Raises:
            MissingExtraError: if pandas is not installed.
        """
        try:
            import pandas  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError as error:
            if error.name != "pandas":
                raise
            raise MissingExtraError(
                "extra.missing",
                "a table for pandas needs pandas, which is not installed.\n  pip install pandas",
            ) from error
        return pandas.DataFrame(list(self._rows), columns=list(HeadRow._fields))

    def __repr__(self) -> str:
        shown = [
            name
            for name in HeadRow._fields
            if name != "queries"
            and (name not in ROLES or any(getattr(row, name) is not None for row in self._rows))
        ]
        lines = [[_cell(getattr(row, name)) for name in shown] for row in self._rows]
        units = {"entropy": "nats", "distance": "tokens"}
        heads = [shown, [units.get(name, "") for name in shown]]
        widths = [max(map(len, column)) for column in zip(*heads, *lines, strict=True)]
        # Words stand on the left, numbers on the right.
        text = "\n".join(
            "  ".join(
                cell.ljust(width) if name in ("layer", "role") else cell.rjust(width)
                for name, cell, width in zip(shown, line, widths, strict=True)
            ).rstrip()
            for line in [*heads, *lines]
        )
        unseen = "".join(f"\nnot seen: {each.brief()}" for each in self.missing)
        return readable(text + unseen)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return "" if value is None else str(value)


def rows_of(layer: str, summaries: Sequence[Summary | Totals]) -> list[HeadRow]:
    """The rows of a layer: averages over the real queries of all samples and of all its calls.

    Args:
        layer: the name of the layer.
        summaries: its calls, one or more; without roles the rows have none. Or their one totals.

    Raises:
        ShapeError: code `table.heads`, for calls with different numbers of heads.
    """
    totals = summaries[0] if isinstance(summaries[0], Totals) else None
    known = [each for each in summaries if isinstance(each, Summary)]
    means = head_averages(layer, known) if totals is None else totals.averages()
    numbers = numbers_of_heads(summaries[0])
    return [
        HeadRow(
            layer=layer,
            head=numbers[head],
            queries=means.queries,
            entropy=float(means.entropy[head]),
            distance=None if means.distance is None else float(means.distance[head]),
            **{
                name: float(means.scores[name][head]) if name in means.scores else None
                for name in ROLES
            },
            role=means.leading[head],
        )
        for head in range(len(means.leading))
    ]


def summary_of(call: AttentionMatrix | Summary | Totals, tokens: Tensor | None) -> Summary | Totals:
    """Return the summary of a call with its roles, or what is one; tokens may go on beyond its keys."""
    if isinstance(call, Summary | Totals):
        return call
    if tokens is None or call.cross:
        return summary_with_roles(call, None)
    ids = check_ids(tokens)
    return summary_with_roles(call, ids[..., : call.kv_len] if ids.ndim else ids)
