"""The tokens that heads raise and lower, packed into a page.

A page has the TOP tokens of either kind for each head and query, in WRITES_BYTES, or as many as there is room for. In
`data["writes"]` stand the words, the frequent ones first, and how many tokens of either kind there are. Of each layer

    written-most    the largest number of each head and query
    written         (queries, 2 · top): one more than the place of the word, those that are raised first; 0 for none
    above           the numbers, in 127 steps of the largest, of either sign, and 128 for 0
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from clearhead._text import format_bytes, shown
from clearhead.drawing.page.head_arrays import Arrays, size_of
from clearhead.drawing.page.runs import Located
from clearhead.errors import ArgumentError, ArgumentTypeError
from clearhead.matrix.head_numbers import numbers_of_heads
from clearhead.reading.written_tokens import Writes

TOP = 10
"""Tokens of either kind that a page has of a head and a query, at most."""

WRITES_BYTES = 3_000_000
"""All of them, deflated, before base64."""

STEPS = 127
SIDES = "raised", "lowered"


class Written:
    """The tokens and words given by `writes=` and `words=` of a page.

    Args:
        given: `Writes`.
        words: a function of a token's number that gives its word, or a sequence of words; None for numbers.

    Raises:
        ArgumentTypeError: codes `page.writes-type` and `page.words`.

    Example:
        >>> from clearhead.reading.written_tokens import WrittenToken
        >>> rows = [WrittenToken("0", 0, 0, 4, 1, 0, 2.5, 2.0), WrittenToken("0", 0, 0, 4, 0, 2, -1.5, -2.0)]
        >>> written = Written(Writes(rows, 3), ["to", "be", "or"])
        >>> written.word(1), written.rows()[0]["raised"]
        ('be', [(1, 2.0)])
    """

    def __init__(self, given: Any, words: Any) -> None:
        """Check the type of both, and store them; raises ArgumentTypeError."""
        if not isinstance(given, Writes):
            raise ArgumentTypeError(
                "page.writes-type",
                "writes must be what ch.reading.writes(model, inputs, query=None) returns; got "
                f"{type(given).__name__}.",
            )
        listed = isinstance(words, Sequence) and not isinstance(words, str | bytes)
        if words is not None and not callable(words) and not listed:
            raise ArgumentTypeError(
                "page.words",
                "words must be a function of a token's number, such as tokenizer.decode, or a sequence of words; got "
                f"{type(words).__name__}.",
            )
        self._given = given
        self._words: Any = cast(Any, words).__getitem__ if listed else words

    @classmethod
    def of(cls, given: Any, words: Any) -> "Written | None":
        """Return the given writes with their words; None if none were given.

        Raises:
            ArgumentError: code `page.words`, for words of nothing.
            ArgumentTypeError: as the class does.
        """
        if given is not None:
            return cls(given, words)
        if words is not None:
            raise ArgumentError("page.words", "words are those of writes=…, which is not given.")
        return None

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each layer, head, sample and query, with the tokens that are raised and lowered.

        `raised` and `lowered` are lists of at most TOP pairs (token, effect), the strongest first.
        """
        lists = self._given.lists()
        for each in lists:
            for side, order in zip(SIDES, (-1, 1), strict=True):
                each[side].sort(key=lambda pair: order * pair[1])
                del each[side][TOP:]
        return lists

    def word(self, token: int) -> str:
        """Return the word of a token; its number if there are no words.

        Raises:
            ArgumentTypeError: code `page.words`, for what is no string, and for a token without a word.
        """
        try:
            found = f"#{token}" if self._words is None else self._words(token)
        except (LookupError, OverflowError) as error:
            raise ArgumentTypeError(
                "page.words", f"words must have one for every token; got none for {token}."
            ) from error
        if not isinstance(found, str):
            raise ArgumentTypeError(
                "page.words", f"words must give strings; got {type(found).__name__} for {token}."
            )
        return found

    def packed(self, layers: Sequence[Located]) -> tuple[dict[str, Any], dict[int, Arrays]]:
        """Return the entry of the page, and the arrays of each layer of the first run that has any, by its index.

        Raises:
            ArgumentError: code `page.writes`, for what is not of these layers, or too large.
            ArgumentTypeError: as `rows` and `word` do.
        """
        known = {each.layer.name: place for place, each in enumerate(layers) if each.number == 0}
        of_layers: dict[int, list[dict[str, Any]]] = {}
        for each in self.rows():
            place = known.get(each["layer"])
            if place is not None and each["sample"] == layers[place].run.sample:
                of_layers.setdefault(place, []).append(each)
        if not of_layers:
            raise ArgumentError(
                "page.writes",
                f"writes must be of a layer and the sample that the page shows, {shown(list(known)[:8])}; "
                "there is nothing of them.",
            )
        tables = {place: _table(rows, layers[place]) for place, rows in of_layers.items()}
        top = TOP
        while True:
            tokens, arrays = _arrays(tables, top)
            size = size_of({n: a for every in arrays.values() for n, a in every.arrays.items()})
            if size <= WRITES_BYTES:
                words = [self.word(token) for token in tokens]
                return {"words": words, "top": top}, arrays
            if top == 1:
                raise ArgumentError(
                    "page.writes",
                    f"writes takes {format_bytes(size)} for one token of either kind; a page has room "
                    f"for {format_bytes(WRITES_BYTES)}. Watch fewer layers, or take one query: "
                    "ch.reading.writes(…, query=-1).",
                )
            top = max(1, min(top - 1, int(top * WRITES_BYTES / size)))


def _table(rows: Sequence[dict[str, Any]], located: Located) -> tuple[Tensor, Tensor]:
    """Return the tokens of a layer, −1 for none, and their numbers, each (heads, queries, 2 sides, TOP).

    Raises ArgumentError, code `page.writes`, for a head or query that the layer does not have.
    """
    weights = located.layer.weights
    numbers, queries = numbers_of_heads(weights), weights.query_len
    for each in rows:
        if each["head"] not in numbers or not 0 <= each["query"] < queries:
            raise ArgumentError(
                "page.writes",
                f"writes must be of this run, of {queries} queries and the heads {shown(list(numbers)[:16])} in "
                f"{shown(each['layer'])}; got head {each['head']} at query {each['query']}.",
            )
    shape = len(numbers), queries, len(SIDES), TOP
    at = [numbers.index(each["head"]) for each in rows], [each["query"] for each in rows]
    tables = torch.full(shape, -1), torch.zeros(shape, dtype=torch.float64)
    for part, table in enumerate(tables):
        nothing = (-1, 0.0)[part]
        flat = [
            [*(pair[part] for pair in each[side]), *[nothing] * (TOP - len(each[side]))]
            for each in rows
            for side in SIDES
        ]
        table[at] = torch.tensor(flat, dtype=table.dtype).view(-1, len(SIDES), TOP)
    return tables


def _arrays(
    tables: Mapping[int, tuple[Tensor, Tensor]], top: int
) -> tuple[list[int], dict[int, Arrays]]:
    """Return the tokens among the `top` of each side, frequent ones first, and the arrays of each layer.

    In the arrays a token is its place in that list plus 1, and 0 stands for none.
    """
    every = torch.cat([tokens[..., :top].flatten() for tokens, _ in tables.values()])
    known, counts = every[every >= 0].unique(return_counts=True)
    order = counts.argsort(descending=True, stable=True)
    size = int(known.max()) + 1 if len(known) else 0
    place_of = torch.zeros(size + 1, dtype=torch.int64)  # −1 is the last, and stays 0
    place_of[known[order]] = torch.arange(1, len(known) + 1)
    # Of few words in a byte less.
    kind = torch.uint16 if len(known) < 1 << 16 else torch.int32
    found: dict[int, Arrays] = {}
    for place, (tokens, above) in tables.items():
        most = above[..., :top].abs().amax(dim=(-2, -1))
        scale = STEPS / torch.where(most > 0, most, 1.0)
        codes = (above[..., :top] * scale[..., None, None]).round().add(STEPS + 1).to(torch.uint8)
        words = place_of[tokens[..., :top]].to(cast(Any, kind))
        arrays: dict[str, Any] = {f"{place}/written-most": most.float()}
        for head, (word, code) in enumerate(zip(words, codes, strict=True)):
            arrays[f"{place}/{head}/written"] = word.flatten(1)
            arrays[f"{place}/{head}/above"] = code.flatten(1)
        found[place] = Arrays({}, arrays)
    return known[order].tolist(), found
