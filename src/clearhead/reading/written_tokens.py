"""The tokens that each head raises and lowers by itself: its results, through the last norm and the unembedding."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from clearhead import stages
from clearhead._common.checks import as_int, check_sizes
from clearhead._common.hints import with_hints
from clearhead._common.rows import MeasuredRows
from clearhead._text import shown
from clearhead.errors import SelectionError
from clearhead.watching.finding import path_of_layer
from clearhead.watching.stream import EndedRun, check_asked

CHUNK = 1 << 22
"""Logits that are in memory at once, but at least those of all heads of a layer at one query."""


PLACE = "layer", "head", "sample", "query"


class WrittenToken(NamedTuple):
    """A token that a head raises or lowers.

    Attributes:
        layer: the path of the module that attended.
        head: which query head.
        sample: which sample.
        query: the position that the logit is made at.
        token: the number of the logit.
        rank: the number of tokens that the head raises more.
        logit: what the head adds to the logit, as in `LogitShare`.
        above: the same, less its mean over all tokens, which changes no probability.
    """

    layer: str
    head: int
    sample: int
    query: int
    token: int
    rank: int
    logit: float
    above: float


class Writes(MeasuredRows[WrittenToken]):
    """The tokens that each head raises most and lowers most, strongest first.

    Attributes:
        vocabulary: the number of tokens in the vocabulary.

    Example:
        >>> from clearhead.reading.written_tokens import Writes, WrittenToken
        >>> rows = [WrittenToken("0", 0, 0, 4, 7, 0, 2.5, 2.0), WrittenToken("0", 0, 0, 4, 3, 19, -1.5, -2.0)]
        >>> found = Writes(rows, 20)
        >>> found.raised["token"], found.lowered["token"], len(found.of(0, head=0))
        (tensor([7]), tensor([3]), 2)
        >>> found.lists()
        [{'layer': '0', 'head': 0, 'sample': 0, 'query': 4, 'raised': [(7, 2.0)], 'lowered': [(3, -2.0)]}]
    """

    ROW = WrittenToken
    BY = "above"

    def __init__(self, rows: Sequence[WrittenToken], vocabulary: int) -> None:
        super().__init__(rows)
        self.vocabulary = vocabulary

    @property
    def raised(self) -> Self:
        """The rows of the tokens that heads raise most, in a new object; the order stays."""
        return self._with([row for row in self._rows if self._is_raised(row)])

    @property
    def lowered(self) -> Self:
        """The rows of the tokens that heads lower most, in a new object; the order stays."""
        return self._with([row for row in self._rows if not self._is_raised(row)])

    def of(self, layer: str | int, head: int | None = None) -> Self:
        """Return the rows of a layer, by its path or its number, or of one of its heads, in a new object.

        Raises:
            SelectionError: codes `watch.layer` and `writes.head`.
        """
        path = path_of_layer(layer, dict(enumerate(dict.fromkeys(self["layer"]))))
        rows = [row for row in self._rows if row.layer == path]
        if head is not None:
            known = sorted({row.head for row in rows})
            if as_int(head) not in known:
                raise SelectionError(
                    "writes.head",
                    f"head must be one of {known} in {shown(path)}; got {shown(head)}.",
                )
            rows = [row for row in rows if row.head == head]
        return self._with(rows)

    def lists(self) -> list[dict[str, Any]]:
        """Return a list of plain dicts for JSON, one for each layer, head, sample and query.

        The keys are "layer", "head", "sample" and "query", and "raised" and "lowered" with pairs of a token and its
        `above`.
        """
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in self._rows:
            place = dict(zip(PLACE, row, strict=False))
            made = found.setdefault(row[: len(PLACE)], place | {"raised": [], "lowered": []})
            side = "raised" if self._is_raised(row) else "lowered"
            made[side].append((row.token, row.above))
        return list(found.values())

    def _is_raised(self, row: WrittenToken) -> bool:
        """Return True if the rank of the row is in the upper half of the vocabulary: the head raises its token."""
        return 2 * row.rank < self.vocabulary


@with_hints
def writes(model: nn.Module, inputs: object, *, query: int | None = -1, top: int = 10) -> Writes:
    """Return the tokens that each head raises and lowers by itself, in one run of a model.

    What a head adds to the residual stream goes through the last norm, frozen at the scale that it had in the run,
    and the unembedding, without their biases: it is `logits_of` for every token at once (direct logit attribution:
    Elhage et al., 2021, https://transformer-circuits.pub/2021/framework), and rests on the same of the model. The
    logits of all tokens are in memory for the heads of one layer and a chunk of queries at a time.

    Args:
        model: any PyTorch model that `watch` watches, of blocks, a last LayerNorm or RMSNorm, and an unembedding.
        inputs: what it is called with, a mapping of named arguments, a tuple, or one tensor.
        query: the position that the logits are made at; None for all of them. Pad on the left for −1.
        top: how many tokens of either kind; at most half of all.

    Returns:
        `Writes`, rows for each layer, head, sample and query.

    Raises:
        ArgumentTypeError: codes `logits.model` and `argument.type`.
        ArgumentError: code `argument.size`.
        SelectionError: code `logits.query`.
        UnsupportedError: codes `logits.unembedding`, `logits.stream` and `norms.projection`, as in `logits_of`.

    Example:
        >>> import torch, clearhead as ch
        >>> class Block(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.norm = torch.nn.LayerNorm(8)
        ...         self.attention = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        ...     def forward(self, x):
        ...         return x + self.attention(self.norm(x))
        >>> parts = Block(), Block(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 20)
        >>> model, x = torch.nn.Sequential(*parts), torch.randn(1, 5, 8)
        >>> found = ch.reading.writes(model, x, top=3)
        >>> len(found), found.of(1, head=0).raised["rank"]
        (24, tensor([0, 1, 2]))
        >>> row = found.of(1, head=0)[0]
        >>> abs(row.logit - ch.reading.logits_of(model, x, row.token).heads[2].logit) < 1e-4
        True
    """
    check_asked(model, query)
    check_sizes(top=top)
    run = EndedRun(model, inputs, query)
    weight = stages.upcast(run.weight)
    size, rows = len(weight), []
    for path, heads, results in run.layers():
        batch, num_heads, query_len, _ = results.shape
        step = max(1, CHUNK // (num_heads * size))
        for sample, start in product(range(batch), range(0, query_len, step)):
            queries = slice(start, start + step)
            added = results[sample, :, queries].to(weight)
            logits = added @ weight.mT  # (heads, queries, vocabulary)
            rows += _rows(logits, min(top, size // 2), path, heads, sample, run.places[queries])
    return Writes(rows, size)


def _rows(
    logits: Tensor,
    top: int,
    path: str,
    heads: Sequence[int],
    sample: int,
    places: Sequence[int],
) -> Iterator[WrittenToken]:
    """Yield the rows of the heads of a layer, head by head and query by query, raised tokens before lowered ones.

    Args:
        logits: (heads, queries, vocabulary).
        top: the number of tokens of either kind.
        path: the path of the layer.
        heads: the number of each head.
        sample: the index of the sample.
        places: the position of each query.
    """
    size = logits.shape[-1]
    ranks = [*range(top), *range(size - 1, size - 1 - top, -1)]
    ends = [logits.topk(top, largest=largest) for largest in (True, False)]
    values, tokens = (torch.cat(each, dim=-1) for each in zip(*ends, strict=True))
    above = values - logits.mean(dim=-1, keepdim=True)
    columns = zip(tokens.tolist(), values.tolist(), above.tolist(), strict=True)
    for head, of_head in zip(heads, columns, strict=True):
        for query, of_query in zip(places, zip(*of_head, strict=True), strict=True):
            for rank, (token, value, more) in zip(ranks, zip(*of_query, strict=True), strict=True):
                yield WrittenToken(path, head, sample, query, token, rank, value, more)
