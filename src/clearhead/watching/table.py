"""The heads of a model side by side: a row each, with the numbers that tell what they do."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from clearhead.errors import MissingExtraError, ShapeError
from clearhead.matrix.summary import Roles, Summary

ROLES = ("first", "previous", "duplicate", "induction", "local", "uniform")


class HeadRow(NamedTuple):
    """What one head of one layer does, averaged over all its queries that count.

    Attributes:
        layer: the path of the module that attended.
        head: which query head.
        queries: over how many queries, of all samples and calls, the averages were taken.
        entropy: nats.
        distance: tokens.
        first, previous, duplicate, induction, local, uniform: how far it fills each role, 0 to 1,
            as `Roles` has them; None for what needs tokens where there are none.
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
    distance: float
    first: float | None
    previous: float | None
    duplicate: float | None
    induction: float | None
    local: float | None
    uniform: float | None
    role: str


class Table(Sequence[HeadRow]):
    """Rows, one for each head of each layer; print it, iterate over it, or take it to pandas.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        >>> with ch.watch(layer) as seen:
        ...     output = layer(torch.randn(1, 5, 8))
        >>> table = seen.table()
        >>> len(table), table[0].head, table[0].queries
        (2, 0, 5)
    """

    def __init__(self, rows: Sequence[HeadRow]) -> None:
        self._rows = tuple(rows)

    @overload
    def __getitem__(self, index: int) -> HeadRow: ...
    @overload
    def __getitem__(self, index: slice) -> "Table": ...
    def __getitem__(self, index: int | slice) -> "HeadRow | Table":
        return Table(self._rows[index]) if isinstance(index, slice) else self._rows[index]

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
        return "\n".join(
            "  ".join(
                cell.ljust(width) if name in ("layer", "role") else cell.rjust(width)
                for name, cell, width in zip(shown, line, widths, strict=True)
            ).rstrip()
            for line in [*heads, *lines]
        )


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return "" if value is None else str(value)


def rows_of(layer: str, summaries: Sequence[Summary]) -> list[HeadRow]:
    """The rows of a layer: averages over the queries of all samples and of all its calls.

    Args:
        layer: what to call the layer.
        summaries: its calls, with roles.

    Raises:
        ShapeError: code `table.heads`, for calls with different numbers of heads.
    """
    counted = [_counted(each) for each in summaries]
    heads = sorted({each.shape[1] for each, _, _ in counted})
    if len(heads) > 1:
        raise ShapeError(
            "table.heads",
            f"every call of {layer!r} must have the same number of heads; got {heads}.",
        )
    total = sum(int(count.sum()) for _, _, count in counted)
    # Every query counts once, whatever the length of its sample or call.
    numbers = sum(number for number, _, _ in counted) / max(1, total)
    assert isinstance(numbers, Tensor)
    scores: dict[str, Tensor] = {}
    for name in ROLES:
        each = [(roles[name], count) for _, roles, count in counted]
        if all(score is not None for score, _ in each):
            weighed = [
                (score * count[:, None]).sum(dim=0) for score, count in each if score is not None
            ]
            scores[name] = torch.stack(weighed).sum(dim=0) / max(1, total)
    average = Roles(
        previous=scores["previous"],
        first=scores["first"],
        duplicate=scores.get("duplicate"),
        induction=scores.get("induction"),
        local=scores["local"],
        uniform=scores["uniform"],
    )
    names = average.names()
    return [
        HeadRow(
            layer=layer,
            head=head,
            queries=total,
            entropy=float(numbers[0, head]),
            distance=float(numbers[1, head]),
            **{name: float(scores[name][head]) if name in scores else None for name in ROLES},
            role=names[head],
        )
        for head in range(numbers.shape[1])
    ]


def _counted(summary: Summary) -> tuple[Tensor, dict[str, Tensor | None], Tensor]:
    """Entropy and distance summed over the queries that count, (2, num_heads), the scores of the
    roles, each (batch, num_heads), and how many queries count in each sample; all float64."""
    entropy, distance = (
        each.double().reshape((1,) * (3 - each.ndim) + each.shape)
        for each in (summary.entropy, summary.distance)
    )
    every = torch.ones_like(entropy[:, 0], dtype=torch.bool)
    real = every if summary.real is None else torch.atleast_2d(summary.real)
    both = torch.stack([entropy, distance])
    # A padded query may hold anything, a NaN as well.
    sums = both.where(real[:, None], 0.0).sum(dim=(1, 3))
    assert summary.roles is not None
    roles = {name: getattr(summary.roles, name) for name in ROLES}
    scores = {
        name: None if score is None else score.double().reshape(entropy.shape[:2])
        for name, score in roles.items()
    }
    return sums, scores, real.sum(dim=1).double()
