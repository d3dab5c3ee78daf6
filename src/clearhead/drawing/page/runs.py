"""The content of a page: the layers of a run, the texts that it read, and where a layer is in the texts of the page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from clearhead._text import shown
from clearhead.drawing.page.texts import PageText, TextOffset, read_text
from clearhead.errors import ArgumentError, ArgumentTypeError
from clearhead.matrix.head_numbers import ROLES
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.summary import Summary
from clearhead.watching.seen import Seen
from clearhead.watching.table import rows_of

NAMES = ("A", "B")
"""Of two runs that nobody named."""


class Layer(NamedTuple):
    """The attention of a layer.

    Attributes:
        name: its path, and the number of the call.
        weights: its matrix or its summary, of any leading dimensions.
        number: its number in the model; None is its place in the run.
        call: which of several calls, or pictures of a vision tower; None for all of them.
        picture: of a layer of a vision tower, the run of one picture: its patches and its row of the batch; else None.
    """

    name: str
    weights: AttentionMatrix | Summary
    number: int | None = None
    call: int | None = None
    picture: "Run | None" = None


@dataclass(frozen=True, eq=False)
class Run:
    """The attention of a model in one run.

    Attributes:
        name: of the run, next to another one.
        layers: in order.
        text, source: the tokens that it read, if they are known; the source in cross-attention.
        sample: the row of the batch.
    """

    name: str
    layers: Sequence[Layer]
    text: PageText | None = None
    source: PageText | None = None
    sample: int = 0


def layers_of(seen: Seen[Any], layers: Sequence[str | int] | None = None) -> list[Layer]:
    """Return the layers of a record with their numbers in it; several for one that was not stitched.

    Only `layers`, by path or number; None is all. They come in the order of the record.

    Raises:
        SelectionError: code `watch.layer`, for a layer that did not attend.
        ArgumentTypeError: code `layers.list`.
    """
    wanted = seen._paths(layers)
    each_of = {path: seen.parts([path]) for path in seen.layers if path in wanted}
    return [
        Layer(name, weights, seen.number(path), call if len(parts) > 1 else None)
        for path, parts in each_of.items()
        for call, (name, weights) in enumerate(parts)
    ]


def read_run(
    layers: Sequence[tuple[str, AttentionMatrix | Summary] | Layer],
    tokens: Any = None,
    source_tokens: Any = None,
    sample: int = 0,
    *,
    name: str = "",
) -> Run:
    """Return a run of layers with their paths, and with tokens as strings or ids if they are known.

    Raises:
        ArgumentTypeError: code `page.tokens`, for other tokens.
    """
    text, source = (
        None if given is None else read_text(of, given, sample)
        for of, given in (("tokens", tokens), ("source_tokens", source_tokens))
    )
    every = [each if isinstance(each, Layer) else Layer(*each) for each in layers]
    return Run(name, every, text, source, sample)


def names_of(count: int, names: Any) -> tuple[str, ...]:
    """Return the names of two runs; ("",) for a single run.

    Raises:
        ArgumentTypeError: code `page.names`, for names that are not two strings.
        ArgumentError: code `page.one-run`, for names of one run, which would not be read.
    """
    pair = tuple(names) if isinstance(names, tuple | list) else ()
    if len(pair) != 2 or not all(isinstance(each, str) and each for each in pair):
        raise ArgumentTypeError(
            "page.names", f"names must be what each of the two runs is called; got {shown(names)}."
        )
    if count < 2 and pair != NAMES:
        raise ArgumentError(
            "page.one-run",
            f"names are those of two runs, the second of them other=; got {shown(pair)}.",
        )
    return pair if count > 1 else ("",)


LONG, LONGEST = 1024, 4096
"""A text of more tokens than LONG is long: its heads are pooled, and no matrix of weights is formed. Of two texts
one may have up to LONGEST, where the other is as much shorter."""


class Located(NamedTuple):
    """A layer, the number of its run, and where its queries and keys are in the page's texts."""

    number: int
    run: Run
    layer: Layer
    query: TextOffset
    key: TextOffset

    @property
    def crosses(self) -> bool:
        """True if queries and keys are of two texts."""
        return self.query.text != self.key.text or self.layer.weights.cross

    @property
    def short(self) -> AttentionMatrix | None:
        """The matrix if the page has all of its weights; None for a summary, and for a long text."""
        weights = self.layer.weights
        if isinstance(weights, Summary):
            return None
        lengths = weights.query_len, weights.kv_len
        return weights if math.prod(lengths) <= LONG**2 and max(lengths) <= LONGEST else None


def rows_of_heads(name: str, summary: Summary, *, crosses: bool) -> list[dict[str, Any]]:
    """Return a dict for each head of a layer: entropy, distance, role, and the score in each role.

    None for scores without roles. Between two texts (`crosses`) distance and scores are None, and the role is "".
    """
    return [
        {
            "entropy": _plain(row.entropy),
            "distance": None if crosses else _plain(row.distance),
            "role": "" if crosses else row.role,
            "scores": {role: None if crosses else _plain(getattr(row, role)) for role in ROLES},
        }
        for row in rows_of(name, [summary])
    ]


def _plain(value: float | None) -> float | None:
    """Return a number as JSON has it; None if it is not finite."""
    return value if value is not None and math.isfinite(value) else None
