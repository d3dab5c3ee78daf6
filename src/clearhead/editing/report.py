"""The counts of what each operation of an edit changed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

from torch import Tensor

from clearhead._common.elements import Html, element
from clearhead._common.text import readable
from clearhead._common.torch_internals import is_concrete, is_transformed


class EditCounts(NamedTuple):
    """The counts of one operation of an edit, over all that ran in the block.

    Attributes:
        layer: the path, or the glob, that it was asked for.
        operation: such as "heads[2].hide".
        calls: of attention, of the modules that are like the layer, since the operation was added.
        heads: of these modules together.
        queries: of these heads and all samples, each with a context that is another; of `average`,
            those that it read. None where numbers cannot be read, as in torch.vmap.
        weights: that hide took away or scale multiplied, likewise; None for other operations.
    """

    layer: str
    operation: str
    calls: int
    heads: int
    queries: int | None
    weights: int | None


class EditReport(Sequence[EditCounts]):
    """The counts of what each operation of an edit changed: print it, or iterate.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        >>> with ch.edit(layer) as edit:
        ...     edit[0].hide(query=[1, 2], key=2)
        ...     output = layer(torch.randn(1, 5, 8))
        >>> edit.report[0].queries, edit.report[0].weights  # query 1 did not see key 2
        (2, 2)
    """

    def __init__(self, rows: Sequence[EditCounts]) -> None:
        self._rows = tuple(rows)

    @overload
    def __getitem__(self, index: int) -> EditCounts: ...
    @overload
    def __getitem__(self, index: slice) -> "EditReport": ...
    def __getitem__(self, index: int | slice) -> "EditCounts | EditReport":
        return EditReport(self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[EditCounts]:
        return iter(self._rows)

    def __repr__(self) -> str:
        rows = [row._replace(layer=row.layer or "(the model)") for row in self._rows]
        lines = [["" if each is None else str(each) for each in row] for row in rows]
        lines.insert(0, list(EditCounts._fields))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        # Words stand on the left, numbers on the right.
        return readable(
            "\n".join(
                "  ".join(
                    cell.ljust(width) if place < 2 else cell.rjust(width)
                    for place, (cell, width) in enumerate(zip(line, widths, strict=True))
                ).rstrip()
                for line in lines
            )
        )

    def _repr_html_(self) -> Html:
        return element("pre", repr(self))


@dataclass(eq=False)
class Tally:
    """What an operation has changed so far."""

    calls: int = 0
    heads: dict[str, int] = field(default_factory=dict)
    queries: Tensor | int = 0
    weights: Tensor | int | None = None
    known: bool = True
    tokens: dict[str, int] = field(default_factory=lambda: {"query": 0, "key": 0})
    """The most tokens of the sequences of queries and of keys."""

    def call(self, path: str, heads: int, tokens: int, key_tokens: int) -> None:
        """Count a call of a module."""
        self.calls += 1
        self.heads[path] = heads
        for name, found in (("query", tokens), ("key", key_tokens)):
            self.tokens[name] = max(self.tokens[name], found)

    def add(self, queries: Tensor | int, weights: Tensor | None = None) -> None:
        """Count what is changed in a call; on an accelerator nothing waits for the numbers."""
        for each in (queries, weights):
            if isinstance(each, Tensor) and (is_transformed(each) or not is_concrete(each)):
                self.known = False
                return
        self.queries = self.queries + queries
        if weights is not None:
            self.weights = weights if self.weights is None else self.weights + weights

    def counts(self, layer: str, operation: str) -> EditCounts:
        """Return the counts."""
        weights = int(self.weights) if self.known and self.weights is not None else None
        queries = int(self.queries) if self.known else None
        return EditCounts(layer, operation, self.calls, sum(self.heads.values()), queries, weights)
