"""Packed texts whose queries and keys are packed apart, and masks that count in each text by itself."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from clearhead._common.checks import as_int
from clearhead._text import shown
from clearhead.errors import MaskError
from clearhead.masks.algebra import leaves
from clearhead.masks.base import Mask
from clearhead.masks.causal import Positioned
from clearhead.masks.full import Full
from clearhead.masks.prefix import Prefix
from clearhead.masks.spans import Extent, Spans

LENGTHS_WORTH_SAYING = 8


@dataclass(frozen=True, eq=False, repr=False)
class EachDocument(Mask, kind="each_document"):
    """Queries see the keys of their own document that an inner mask for this document shows.

    Args:
        mask: that of one document, of any length; the last query has the position of the last key.
        query_lengths: how many queries each document has, one after the other.
        key_lengths: how many keys each document has.

    Raises:
        MaskError: code `mask.documents-mask`, for an inner mask with an offset, a batch or lengths of its own; code
            `mask.documents-pair`, unless the lengths are as many and 0 or more.
    """

    mask: Mask
    query_lengths: list[int]
    key_lengths: list[int]

    def __post_init__(self) -> None:
        """Raise MaskError unless the inner mask fits any length, and queries have as many lengths, from 0, as keys."""
        for each in leaves(self.mask):
            goes = isinstance(each, Positioned) and each.offset is None
            if not (goes or (isinstance(each, Full | Prefix) and each.batch is None)):
                raise MaskError(
                    "mask.documents-mask",
                    "the mask of each document must fit any length and sample, such as causal() and "
                    f"sliding_window(…) without offset, or prefix(3); got {each.describe()}.",
                )
        queries, keys = self.query_lengths, self.key_lengths
        lengths = [as_int(each) for each in (*queries, *keys)]
        if len(queries) != len(keys) or any(each is None or each < 0 for each in lengths):
            raise MaskError(
                "mask.documents-pair",
                "queries must be of as many documents as the keys, 0 tokens or more each; got "
                f"lengths {shown(queries)} of the queries, {shown(keys)} of the keys.",
            )

    @property
    def _totals(self) -> tuple[int, int]:
        """The number of queries and the number of keys of all documents."""
        return sum(self.query_lengths), sum(self.key_lengths)

    @property
    def cross(self) -> bool:
        """True if the lengths of the queries differ from those of the keys."""
        return self.query_lengths != self.key_lengths

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """A tensor for the queries and one for the keys, int64, (2, tokens), on the CPU; cached.

        Row 0 is the index of the document of each token, row 1 its position in the document, where the last query has
        the position of the last key. A mask is made with it, so that no compiler traces it.
        """
        first = [keys - queries for queries, keys in self._pairs]
        none = [0] * len(first)
        return _places_of(self.query_lengths, first), _places_of(self.key_lengths, none)

    @property
    def _pairs(self) -> list[tuple[int, int]]:
        """The number of queries and keys of each document, as pairs."""
        return list(zip(self.query_lengths, self.key_lengths, strict=True))

    def sizes(self) -> tuple[int, int]:
        """Return the numbers of queries and of keys of all documents."""
        return self._totals

    def check(self, extent: Extent) -> None:
        """Raise MaskError, code `mask.kv-len`, unless the call has the queries and keys of all documents."""
        query_len, kv_len = extent.query_len, extent.kv_len
        if self._totals != (query_len, kv_len):
            queries, keys = self._totals
            raise MaskError(
                "mask.kv-len",
                f"the mask {self.describe()} is for {queries} queries and {keys} keys; there are "
                f"query_len={query_len}, kv_len={kv_len}.{advice_for_rest(keys, kv_len)}",
            )

    def visible(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return a bool tensor, True for each pair of one document that the inner mask allows.

        Arguments are those of `Mask.visible`.
        """
        queries, keys = (each.to(key_index.device) for each in self.places)
        query_document, query = queries[:, query_index]
        key_document, key = keys[:, key_index]
        # Of equal lengths, so that the mask adds no offset of its own.
        return (query_document == key_document) & self.mask.visible(
            query, key, extent._replace(query_len=extent.kv_len)
        )

    def spans(self, extent: Extent) -> Spans:
        """Return the runs of the inner mask, shifted to the keys of each query's document, for all samples alike."""
        _, _, query_len, kv_len, device, _ = extent
        # Documents of the same lengths have the same runs, but for where their keys begin.
        row_of_pair: dict[tuple[int, int], int] = {}
        runs: list[Spans] = []
        for pair in self._pairs:
            if pair not in row_of_pair:
                row_of_pair[pair] = sum(each.start.shape[1] for each in runs)
                spans = self.mask.spans(extent._replace(query_len=pair[0], kv_len=pair[1]))
                # Every mask that is taken here has runs: by distance, the whole, or a prefix.
                assert spans is not None
                runs.append(spans)
        if query_len == 0:
            nothing = torch.zeros(1, 0, 1, dtype=torch.int64, device=device)
            return Spans(nothing, nothing)
        most = max(each.pieces for each in runs)
        start, stop = (
            torch.cat([pad(edge[0], (0, most - edge.shape[-1])) for edge in edges])
            for edges in ([each.start for each in runs], [each.stop for each in runs])
        )
        (document, _), _ = (each.to(device) for each in self.places)
        row = torch.tensor([row_of_pair[pair] for pair in self._pairs], device=device)
        query = (
            torch.arange(query_len, device=device) - _begins(self.query_lengths, device)[document]
        )
        row = row[document] + query
        first = _begins(self.key_lengths, device)[document, None]
        empty = stop[row] <= start[row]
        start, stop = (
            (edge[row] + first).masked_fill(empty, kv_len)[None] for edge in (start, stop)
        )
        return Spans(start, stop)

    def describe(self) -> str:
        """Return the call that makes this mask, as text; more than 8 lengths are given by their number."""
        keys, queries = (
            str(each) if len(each) <= LENGTHS_WORTH_SAYING else f"<{len(each)} numbers>"
            for each in (self.key_lengths, self.query_lengths)
        )
        queries = f", queries={queries}" if self.cross else ""
        mask = "" if isinstance(self.mask, Full) else f", mask={self.mask.describe()}"
        return f"documents(lengths={keys}{queries}{mask})"


def advice_for_rest(known: int, kv_len: int) -> str:
    """Return advice, with a leading space, for documents that end before the keys do; "" if they do not.

    Args:
        known: the number of tokens of all documents.
        kv_len: the number of keys.

    Example:
        >>> advice_for_rest(5, 8)
        ' Let what comes behind them, such as padding, be a document of its own, of length 3.'
    """
    if known >= kv_len:
        return ""
    return (
        " Let what comes behind them, such as padding, be a document of its own, of length "
        f"{kv_len - known}."
    )


def _begins(lengths: list[int], device: torch.device | str = "cpu") -> Tensor:
    """Return the index of the first token of each document, int64, (documents,)."""
    ends = torch.tensor(lengths, dtype=torch.int64, device=device).cumsum(0)
    return ends - torch.tensor(lengths, dtype=torch.int64, device=device)


def _places_of(lengths: list[int], first: list[int]) -> Tensor:
    """Return the index of the document of each token and its position there, int64, (2, tokens), on the CPU.

    `first` has the position of the first token of each document.
    """
    tokens = sum(lengths)
    counts = torch.tensor(lengths, dtype=torch.int64, device="cpu")
    documents = torch.arange(len(lengths), device="cpu").repeat_interleave(
        counts, output_size=tokens
    )
    shift = torch.tensor(first, dtype=torch.int64, device="cpu") - _begins(lengths)
    return torch.stack([documents, torch.arange(tokens, device="cpu") + shift[documents]])
