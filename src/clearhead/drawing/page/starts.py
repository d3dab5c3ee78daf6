"""The start of a page: a head, and a pair of tokens that is pinned."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from clearhead._common.checks import as_int
from clearhead._common.text import shown
from clearhead.errors import ArgumentError
from clearhead.watching.finding import first_place

HEAD = r"[AB]?\d{1,9}\.\d{1,9}"
NUMBER = r"\d{1,9}(\.\d+)?"
STATE = {
    "head": HEAD,
    "with": HEAD,
    "pin": r"\d{1,9}(,(\d{1,9})?)?|,\d{1,9}",
    "view": f"{NUMBER}(,{NUMBER}){{3}}",
    "scale": "root|linear|log",
    "order": "model|link|role|entropy|distance",
    "theme": "light|dark",
    "full": "1",
    "without": r"(first|special|punctuation)(,(first|special|punctuation))*",
    "least": r"0(\.\d+)?|1(\.0+)?",
    "heads": f"{HEAD}(,{HEAD})+|[AB]?\\d{{1,9}}",
    "mix": "mean|max",
    "links": "columns",
    "minus": "1",
    "why": "1",
    "depth": "1",
    "embed": "1",
}
"""The state of a page as its address has it: names, and the form of each value."""

SLACK = 0.01
"""Of a token: a view is written with two digits."""


class Start(NamedTuple):
    """The head and the pair of tokens that a page opens with.

    Attributes:
        head: layer and head, as the page numbers them, or the state of a page as it stands behind the #
            of its address; None is chosen by what is strong.
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
    """Return the start of a page of these layers as its payload has it; None for no wish.

    Args:
        asked: a head, a state, a pin, or none of them.
        layers: the entries of the payload.
        texts: the tokens of each text.
        telling: layer, head, query and key of the link that is taken where nothing else is asked for.

    Raises:
        ArgumentError: codes `page.start`, for a head that the page does not have, `page.state`, for what
            no address says or this page cannot show, and `page.pin`, for a token that the head does not
            have, or a pin in both.
    """
    if asked.head is None and asked.pin is None:
        return telling
    text, state = "", dict[str, str]()
    if isinstance(asked.head, str):
        text, state = _read_state(asked.head)
    if asked.pin is not None and "pin" in state:
        raise ArgumentError(
            "page.pin",
            f"pin must be given once: start={shown(asked.head)} has a pin as well as pin={shown(asked.pin)}.",
        )
    wanted = state.get("head") if isinstance(asked.head, str) else asked.head
    found: dict[str, Any] = {}
    if wanted is not None:
        place, head = _named(wanted, layers) if isinstance(wanted, str) else _place(wanted, layers)
        found = {"layer": place, "head": head}
    elif telling is not None:
        found = dict(telling)
    elif any(_sides(each) != _sides(layers[0]) for each in layers):
        # A place is that of a token of this layer, and of another one elsewhere.
        found = {"layer": 0, "head": 0}
    place = found.get("layer", 0)
    if text:
        wrong = _impossible(state, found, layers)
        if wrong is not None:
            name, there = wrong
            raise ArgumentError(
                "page.state",
                f"start must be what the page can show, where {there}; got "
                f"{shown(f'{name}={state[name]}')}.",
            )
        found["state"] = text
    if asked.pin is None and "pin" not in state:
        return found
    found = {name: each for name, each in found.items() if name not in ("query", "key")}
    if asked.pin is None:
        return found
    if not isinstance(asked.pin, tuple | list) or len(asked.pin) != 2:
        raise ArgumentError(
            "page.pin", f"pin must be a query and a key, such as ('it', 3); got {shown(asked.pin)}."
        )
    for side, length, each in zip(("query", "key"), ("queries", "keys"), asked.pin, strict=True):
        if each is not None:
            own = layers[place][side]
            tokens = None if own["text"] is None else texts[int(own["text"])][own["first"] :]
            found[side] = _token(side, each, tokens, layers[place][length])
    return found


def _read_state(given: str) -> tuple[str, dict[str, str]]:
    """The state of a page, as it stands in an address, and each value by its name."""
    text = given.partition("#")[2] if "#" in given else given
    state: dict[str, str] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name in state or not re.fullmatch(STATE.get(name, ""), value, re.ASCII):
            raise ArgumentError(
                "page.state",
                f"start must be what stands behind the # of a page's address, such as "
                f"'head=5.11&without=first'; got {shown(f'{name}={value}')} in it, of which "
                f"{', '.join(STATE)} are known, each once.",
            )
        state[name] = value
    return text, state


def _impossible(
    state: dict[str, str], found: dict[str, Any], layers: Sequence[dict[str, Any]]
) -> tuple[str, str] | None:
    """The part of a state that this page cannot show, and what it has instead; `state.ts` says so of an address."""
    first = layers[found.get("layer", 0)]
    second = _named(state["with"], layers) if "with" in state else None
    if second is None and "minus" in state:
        return "minus", "minus needs with, the head that is subtracted"
    if second is not None and (
        "heads" in state or second == (found.get("layer"), found.get("head"))
    ):
        return "with", "with is another head, beside one"
    if "heads" in state and not _may_mix(state["heads"], first, layers):
        return (
            "heads",
            "heads are different ones of the same tokens, with all of their weights at hand",
        )
    if "pin" in state:
        query, _, key = state["pin"].partition(",")
        if int(query or 0) >= first["queries"] or int(key or 0) >= first["keys"]:
            return (
                "pin",
                f"a pin is one of {first['queries']} queries and one of {first['keys']} keys",
            )
    if "view" in state:
        both = [first] if second is None else [first, layers[second[0]]]
        queries, keys = (max(each[name] for each in both) for name in ("queries", "keys"))
        row, rows, column, columns = map(float, state["view"].split(","))
        if not (0 < rows <= queries - row + SLACK and 0 < columns <= keys - column + SLACK):
            order = "row, rows, column and columns"
            return "view", f"a view is {order} within {queries} queries and {keys} keys"
    return None


def _may_mix(names: str, about: dict[str, Any], layers: Sequence[dict[str, Any]]) -> bool:
    """True for heads, or all of a layer, whose weights are between the same tokens as those of a layer."""
    if "." in names:
        heads = [_named(each, layers) for each in names.split(",")]
    else:
        place = next((at for at, each in enumerate(layers) if names in _names(each)), None)
        heads = [] if place is None else [(place, n) for n in range(layers[place]["heads"])]
    mixed = [layers[place] for place, _ in heads]
    there = all("weights" in each and _sides(each) == _sides(about) for each in mixed)
    return there and len(set(heads)) == len(heads) > 1


def _sides(layer: dict[str, Any]) -> list[Any]:
    """The tokens of a layer: equal for layers whose places are the same tokens."""
    return [layer[name] for name in ("queries", "keys", "query", "key")]


def _names(layer: dict[str, Any]) -> tuple[str, ...]:
    """The names of a layer in an address: with the letter of its run, which the first may leave out."""
    number = str(layer["number"])
    return (f"A{number}", number) if layer["run"] == 0 else (f"B{number}",)


def _named(written: str, layers: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """The place of a layer in the page, and that of a head in it, by how an address writes them."""
    name, _, wanted = written.partition(".")
    for place, layer in enumerate(layers):
        for number, each in enumerate(layer["head_numbers"] or range(layer["heads"])):
            if name in _names(layer) and wanted == str(each):
                return place, number
    raise _no_head(written)


def _place(head: Any, layers: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """The place of a layer in the page, and that of a head in it."""
    wanted = [as_int(each) for each in head] if isinstance(head, tuple | list) else []
    for place, layer in enumerate(layers):
        heads = layer["head_numbers"] or range(layer["heads"])
        for number, each in enumerate(heads):
            if wanted == [layer["number"], each]:
                return place, number
    raise _no_head(head)


def _no_head(got: Any) -> ArgumentError:
    return ArgumentError(
        "page.start",
        f"start must be a layer and a head that the page has, such as (0, 0); got {shown(got)}.",
    )


def _token(side: str, wanted: Any, tokens: Sequence[str] | None, length: int) -> int:
    """The place of a token: of a text the first that reads so."""
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
