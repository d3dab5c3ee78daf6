"""The start of a page: a head, and a pair of tokens that is pinned."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import torch
from torch import Tensor

from clearhead._common.checks import as_int
from clearhead._common.text import shown
from clearhead.errors import ArgumentError
from clearhead.matrix.head_numbers import ROLES
from clearhead.watching.finding import first_place

SPECIAL = re.compile(r"[\[<].*[\]>]|\W*", re.DOTALL)
"""Tokens such as [CLS], </s> and punctuation, which are no words."""

STRONG = 0.5

HEAD = r"[AB]?\d+\.\d+"
NUMBER = r"\d+(\.\d+)?"
STATE = {
    "head": HEAD,
    "with": HEAD,
    "pin": r"\d+(,\d*)?|,\d+",
    "view": f"{NUMBER}(,{NUMBER}){{3}}",
    "scale": "root|linear|log",
    "order": "model|link|role|entropy|distance",
    "role": "|".join(ROLES),
    "theme": "light|dark",
    "full": "1",
    "without": r"(first|special|punctuation)(,(first|special|punctuation))*",
    "least": NUMBER,
    "heads": f"{HEAD}(,{HEAD})+|[AB]?\\d+",
    "mix": "mean|max",
    "links": "columns",
    "minus": "1",
    "why": "1",
    "depth": "1",
    "embed": "1",
}
"""The state of a page as its address has it: names, and the form of each value."""


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


class FarLink(NamedTuple):
    """A strong link between words that are far from each other: `score` is weight · distance."""

    score: float
    head: int
    query: int
    key: int


def farthest_link(weights: Tensor, queries: Sequence[str], keys: Sequence[str]) -> FarLink | None:
    """Of the links that take more than half of a word's attention, the one that reaches farthest.

    Args:
        weights: (heads, query_len, kv_len).
        queries, keys: their tokens.

    Example:
        >>> farthest_link(torch.eye(3).flip(0)[None], ["a", "b", "c"], ["a", "b", "c"])
        FarLink(score=2.0, head=0, query=0, key=2)
    """
    if not weights.numel():
        return None
    weights = weights.float().nan_to_num(0.0)
    words = [
        torch.tensor([SPECIAL.fullmatch(each) is None for each in side], device=weights.device)
        for side in (queries, keys)
    ]
    where = [torch.arange(len(side), device=weights.device) for side in (queries, keys)]
    apart = (where[0][:, None] + len(keys) - len(queries) - where[1]).abs()
    allowed = words[0][:, None] & words[1]
    scores = torch.where((weights > STRONG) & allowed, weights * apart, 0.0)
    best = int(scores.argmax())
    head, pair = divmod(best, len(queries) * len(keys))
    score = float(scores.flatten()[best])
    return FarLink(score, head, *divmod(pair, len(keys))) if score > 0 else None


def start_of(
    asked: Start, layers: Sequence[dict[str, Any]], texts: Sequence[Sequence[str]]
) -> dict[str, Any] | None:
    """Return the start of a page of these layers as its payload has it; None for no wish.

    Raises:
        ArgumentError: codes `page.start`, for a head that the page does not have, `page.state`, for what
            no address says, and `page.pin`, for a token that the head does not have, or a pin in both.
    """
    if asked.head is None and asked.pin is None:
        return None
    place = 0
    found: dict[str, Any] = {}
    if isinstance(asked.head, str):
        found["state"] = _state(asked.head)
        place = _head_of(found["state"], layers, found)
    elif asked.head is not None:
        place, head = _place(asked.head, layers)
        found |= {"layer": place, "head": head}
    if asked.pin is None:
        return found
    if any(name == "pin" for name, _ in parse_qsl(found.get("state", ""))):
        raise ArgumentError(
            "page.pin",
            f"pin must be given once: start={shown(asked.head)} has a pin as well as pin={shown(asked.pin)}.",
        )
    if not isinstance(asked.pin, tuple | list) or len(asked.pin) != 2:
        raise ArgumentError(
            "page.pin", f"pin must be a query and a key, such as ('it', 3); got {shown(asked.pin)}."
        )
    for side, length, wanted in zip(("query", "key"), ("queries", "keys"), asked.pin, strict=True):
        if wanted is not None:
            text = layers[place][side]
            tokens = None if text["text"] is None else texts[int(text["text"])][text["first"] :]
            found[side] = _token(side, wanted, tokens, layers[place][length])
    return found


def _state(given: str) -> str:
    """The state of a page, as it stands in an address."""
    text = given.partition("#")[2] if "#" in given else given
    for name, value in parse_qsl(text, keep_blank_values=True):
        if not re.fullmatch(STATE.get(name, ""), value):
            raise ArgumentError(
                "page.state",
                f"start must be what stands behind the # of a page's address, such as "
                f"'head=5.11&without=first'; got {shown(f'{name}={value}')} in it, of which "
                f"{', '.join(STATE)} are known.",
            )
    return text


def _head_of(state: str, layers: Sequence[dict[str, Any]], found: dict[str, Any]) -> int:
    """The place of the layer that a state begins with; its head goes into what was found."""
    written = dict(parse_qsl(state)).get("head")
    if written is None:
        return 0
    run = "AB".find(written[0])
    numbers = tuple(map(int, written.lstrip("AB").split(".")))
    there = [each["run"] == max(0, run) for each in layers]
    first = there.index(True) if True in there else 0
    place, head = _place(numbers, [e for e, own in zip(layers, there, strict=True) if own])
    found |= {"layer": first + place, "head": head}
    return first + place


def _place(head: Any, layers: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """The place of a layer in the page, and that of a head in it."""
    wanted = [as_int(each) for each in head] if isinstance(head, tuple | list) else []
    for place, layer in enumerate(layers):
        heads = layer["head_numbers"] or range(layer["heads"])
        for number, each in enumerate(heads):
            if wanted == [layer["number"], each]:
                return place, number
    raise ArgumentError(
        "page.start",
        f"start must be a layer and a head that the page has, such as (0, 0); got {shown(head)}.",
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
