"""The counts of what each operation of an edit changed."""

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from clearhead._common.rows import MeasuredRows
from clearhead._common.torch_internals import is_concrete, is_transformed


class EditCounts(NamedTuple):
    """The counts of one operation of an edit, over all calls in the block.

    Attributes:
        layer: the path, or the glob, that it was asked for.
        operation: such as "heads[2].hide".
        calls: of attention, of the modules that are like the layer, since the operation was added.
        heads: of these modules together.
        queries: of these heads and all samples, each with a context that is another; None where
            numbers cannot be read, as in torch.vmap.
    """

    layer: str
    operation: str
    calls: int
    heads: int
    queries: int | None


class EditReport(MeasuredRows[EditCounts]):
    """The counts of what each operation of an edit changed; it can be printed and iterated.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        >>> with ch.edit(layer) as edit:
        ...     edit[0].hide(query=[1, 2], key=2)
        ...     output = layer(torch.randn(1, 5, 8))
        >>> edit.report[0].queries
        2
    """

    ROW = EditCounts

    def _cell(self, value: object) -> str:
        """Return the text of a cell; "(the model)" for an empty path."""
        return "(the model)" if value == "" else super()._cell(value)


@dataclass(eq=False)
class Tally:
    """Counts of what an operation has changed so far."""

    calls: int = 0
    heads: dict[str, int] = field(default_factory=dict)
    queries: Tensor | int = 0
    known: bool = True
    tokens: dict[str, int] = field(default_factory=lambda: {"query": 0, "key": 0})
    """The most tokens of the sequences of queries and of keys."""

    def call(self, path: str, heads: int, tokens: int, key_tokens: int) -> None:
        """Count a call of a module with this number of edited heads, and note the longest sequences."""
        self.calls += 1
        self.heads[path] = heads
        for name, found in (("query", tokens), ("key", key_tokens)):
            self.tokens[name] = max(self.tokens[name], found)

    def add(self, queries: Tensor | int) -> None:
        """Add changed queries, without waiting for an accelerator.

        A tensor that cannot be read makes the count unknown.
        """
        if isinstance(queries, Tensor) and (is_transformed(queries) or not is_concrete(queries)):
            self.known = False
        else:
            self.queries = self.queries + queries

    def counts(self, layer: str, operation: str) -> EditCounts:
        """Return everything that was counted, as the row of a layer and an operation, which only name it.

        The number of queries is None if it is unknown.
        """
        queries = int(self.queries) if self.known else None
        return EditCounts(layer, operation, self.calls, sum(self.heads.values()), queries)
