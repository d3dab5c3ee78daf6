"""The catalogue of what `check` says: a template for each way to make a mistake."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any


@cache
def catalogue() -> Mapping[str, Any]:
    """The tables of words.toml."""
    text = resources.files("clearhead.checking").joinpath("words.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def sentence(code: str, way: str, values: Mapping[str, Any]) -> str:
    """The sentence of a mistake: what it does."""
    return catalogue()["mistake"][code]["says"][way][0].format(**values)


def plain(code: str, way: str, values: Mapping[str, Any]) -> str:
    """The sentence of a mistake in a lesson: in the words of a beginner, where it has such."""
    said = catalogue()["mistake"][code].get("plain", {}).get(way)
    size = values.get("size")
    values = (
        {**values, "size": catalogue()["sizes"].get(size, size)}
        if isinstance(size, str)
        else values
    )
    return sentence(code, way, values) if said is None else said.format(**values)


def early(code: str, way: str, values: Mapping[str, Any]) -> str:
    """The sentence of a mistake in a lesson before those that speak of it; "" where it has none of its own."""
    said = catalogue()["early"].get(code.partition(".")[0], {}).get("way", {})
    found = said.get(way, said.get("any", "") if not way.startswith("part") else "")
    return found.format(**values)


def broke(operation: str) -> str:
    """The sentence for the first operation that gave NaN; "" for one that says nothing."""
    return catalogue()["broke"].get(operation, "")


def likely(code: str, way: str, values: Mapping[str, Any]) -> str:
    """The line that likely makes the mistake, and the line that is right."""
    return catalogue()["mistake"][code]["says"][way][1].format(**values)


def filled(table: str, key: str, values: Mapping[str, Any]) -> str:
    """A template of a table: tick, note, topic, slip, or measured, which is plain for a beginner, and early for one
    before the lesson that speaks of it."""
    tables = catalogue()
    order = {"plain": ("plain", "measured"), "early": ("early-measured", "plain", "measured")}
    found = (tables[each].get(key) for each in order.get(table, (table,)))
    return next(filter(None, found)).format(**values)


def unknown(why: str, values: Mapping[str, Any]) -> tuple[str, str]:
    """Why something could not be judged, and what would make it judgeable."""
    reason, helps = catalogue()["unknown"][why]
    return reason.format(**values), helps
