"""The initial view of a page: a head, and a pinned pair of tokens."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from clearhead._common.checks import as_int
from clearhead._text import shown
from clearhead.errors import ArgumentError
from clearhead.watching.finding import first_place


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
