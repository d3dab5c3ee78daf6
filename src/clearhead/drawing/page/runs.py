"""The content of a page: the layers of a run, its texts, their places in the page, and the initial view."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from clearhead._common.checks import as_int
from clearhead._text import shown
from clearhead.drawing.page.texts import PageText, TextOffset, read_text
from clearhead.errors import ArgumentError, ArgumentTypeError
from clearhead.matrix.head_numbers import ROLES
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.summary import Summary
from clearhead.watching.finding import first_place
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
            "entropy": finite(row.entropy),
            "distance": None if crosses else finite(row.distance),
            "role": "" if crosses else row.role,
            "scores": {role: None if crosses else finite(getattr(row, role)) for role in ROLES},
        }
        for row in rows_of(name, [summary])
    ]


def finite(value: float | None) -> float | None:
    """Return a number as JSON has it; None if it is not finite."""
    return value if value is not None and math.isfinite(value) else None


class Start(NamedTuple):
    """The head and the pair of tokens that a page opens with.

    Attributes:
        head: layer and head, as the page numbers them, or the state of a page as it stands behind the #
            of its address, which the page reads; None is chosen by what is strong.
        pin: the query and the key, as tokens or places; None for either is none.
    """

    head: Any = None
    pin: Any = None


ANYWHERE = Start()


def start_of(
    asked: Start,
    layers: Sequence[dict[str, Any]],
    texts: Sequence[Sequence[str]],
    telling: dict[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Return the initial view of a page of these layers, as its payload has it; `telling`, or None, if none was given.

    Args:
        asked: a head, a state, a pin, or none of them.
        layers: the entries of the payload.
        texts: the tokens of each text.
        telling: layer, head, query and key of the link that opens by default.

    Raises:
        ArgumentError: codes `page.start`, for a head that the page does not have, and `page.pin`, for a token
            that the head does not have.
    """
    if asked.head is None and asked.pin is None:
        return telling
    found: dict[str, Any] = {}
    if asked.head is not None and not isinstance(asked.head, str):
        place, head = _place(asked.head, layers)
        found = {"layer": place, "head": head}
    elif telling is not None:
        found = dict(telling)
    elif asked.pin is not None and any(_sides(each) != _sides(layers[0]) for each in layers):
        # A place is that of a token of this layer, and of another one elsewhere.
        found = {"layer": 0, "head": 0}
    pin = _pin(asked.pin, layers[found.get("layer", 0)], texts)
    if isinstance(asked.head, str):
        # Only the page knows what it can show, and says what it does not have.
        fields = [asked.head.partition("#")[2] if "#" in asked.head else asked.head]
        if pin:
            fields.append(f"pin={pin.get('query', '')},{pin.get('key', '')}")
        return found | {"state": "&".join(filter(None, fields))}
    if asked.pin is None:
        return found
    return {name: each for name, each in found.items() if name not in ("query", "key")} | pin


def _pin(asked: Any, layer: dict[str, Any], texts: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return the indices of the pinned query and key by side, as far as they are given; {} for None.

    Raises ArgumentError, code `page.pin`, for what is no pair, or a token that the layer does not have.
    """
    if asked is None:
        return {}
    if not isinstance(asked, tuple | list) or len(asked) != 2:
        raise ArgumentError(
            "page.pin", f"pin must be a query and a key, such as ('it', 3); got {shown(asked)}."
        )
    found = {}
    for side, length, each in zip(("query", "key"), ("queries", "keys"), asked, strict=True):
        if each is not None:
            own = layer[side]
            tokens = None if own["text"] is None else texts[int(own["text"])][own["first"] :]
            found[side] = _token(side, each, tokens, layer[length])
    return found


def _sides(layer: dict[str, Any]) -> list[Any]:
    """Return lengths and texts of a layer; if they are equal, two layers have the same tokens at all positions."""
    return [layer[name] for name in ("queries", "keys", "query", "key")]


def _place(head: Any, layers: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Return the index of a layer in the page, and that of a head in it, for their numbers in the model.

    Raises ArgumentError, code `page.start`, if the page does not have them.
    """
    places: dict[tuple[int, ...], tuple[int, int]] = {}
    for place, layer in enumerate(layers):
        for number, each in enumerate(layer["head_numbers"] or range(layer["heads"])):
            places.setdefault((layer["number"], each), (place, number))
    wanted: Any = tuple(map(as_int, head)) if isinstance(head, tuple | list) else ()
    if wanted not in places:
        raise ArgumentError(
            "page.start",
            "start must be a layer and a head that the page has, such as "
            f"{next(iter(places), (0, 0))}; got {shown(head)}.",
        )
    return places[wanted]


def _token(side: str, wanted: Any, tokens: Sequence[str] | None, length: int) -> int:
    """Return the index of a token, given by its place or as it is written; of several equal tokens, the first.

    Raises ArgumentError, code `page.pin`, if it is none of the `length` tokens.
    """
    number = as_int(wanted)
    if number is not None and 0 <= number < length:
        return number
    if isinstance(wanted, str) and tokens is not None:
        place = first_place(wanted, tokens[:length])
        if place is not None:
            return place
    raise ArgumentError(
        "page.pin",
        f"the {side} of pin must be one of the {length} tokens, as it is written or by its place; "
        f"got {shown(wanted)}.",
    )
