"""The heads of a model side by side: a row of numbers each."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from torch import Tensor

from clearhead._common.checks import check_ids
from clearhead._common.rows import MeasuredRows
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
        layer_number: the number that the record has it by, `seen[layer_number]`; layers that share a module
            share it.
        head: which query head.
        queries: the number of queries, of all samples and calls, in the averages.
        entropy: nats.
        distance: tokens; None in cross-attention, whose places are those of two texts.
        first, previous, duplicate, induction: its score in each role, 0 to 1, as `Roles` has them; None for
            what needs tokens where there are none, and for what compares places or tokens in cross-attention.
        role: the leading role, "" for none.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        >>> with ch.watch(layer) as seen:
        ...     output = layer(torch.randn(1, 5, 8))
        >>> seen.table()[1]._fields[:4]
        ('layer', 'layer_number', 'head', 'queries')
    """

    layer: str
    layer_number: int
    head: int
    queries: int
    entropy: float
    distance: float | None
    first: float | None
    previous: float | None
    duplicate: float | None
    induction: float | None
    role: str


class Table(MeasuredRows[HeadRow]):
    """The rows of all heads of all layers: print it, iterate over it, take columns, sort, or take it to pandas.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        >>> with torch.no_grad(), ch.watch(layer) as seen:
        ...     output = layer(torch.randn(1, 5, 8))
        >>> table = seen.table()
        >>> len(table), table[0].head, table["queries"], table["entropy"].shape
        (2, 0, tensor([5, 5]), torch.Size([2]))
        >>> table.sort("entropy")[0] == table.top(2, by="entropy")[1]
        True
    """

    ROW = HeadRow
    UNITS: ClassVar[dict[str, str]] = {"entropy": "nats", "distance": "tokens"}
    UNPRINTED = frozenset({"queries"})

    def __init__(self, rows: Sequence[HeadRow], missing: Sequence[Missing] = ()) -> None:
        super().__init__(rows)
        self.missing = tuple(missing)
        """The parts of the model that attended and were not seen, which have no rows."""

    @property
    def notes(self) -> Sequence[str]:
        """One line for each part of the model that attended and was not seen."""
        return [f"not seen: {each.brief()}" for each in self.missing]


def rows_of(
    layer: str, summaries: Sequence[Summary | Totals], layer_number: int = 0
) -> list[HeadRow]:
    """Return the rows of a layer: averages over the real queries of all samples and all calls.

    Args:
        layer: the name of the layer.
        summaries: its calls, one or more; without roles the rows have none. Or their one totals.
        layer_number: its number.

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
            layer_number=layer_number,
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
        for head in range(summaries[0].num_heads)
    ]


def summary_of(call: AttentionMatrix | Summary | Totals, tokens: Tensor | None) -> Summary | Totals:
    """Return the summary of a call with its roles; a summary or totals are returned unchanged.

    Tokens, (batch, len) or (len,), may be more than its keys; ArgumentTypeError if they are no ids. Without them, and
    in cross-attention, the ids that the watch knew are used.
    """
    if isinstance(call, Summary | Totals):
        return call
    if tokens is None or call.cross:
        return summary_with_roles(call, call.tokens)
    ids = check_ids(tokens)
    return summary_with_roles(call, ids[..., : call.kv_len] if ids.ndim else ids)
