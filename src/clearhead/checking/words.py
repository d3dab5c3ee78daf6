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


def likely(code: str, way: str, values: Mapping[str, Any]) -> str:
    """The line that likely makes the mistake, and the line that is right."""
    return catalogue()["mistake"][code]["says"][way][1].format(**values)


def filled(table: str, key: str, values: Mapping[str, Any]) -> str:
    """A template of a table: tick, note, topic or measured."""
    return catalogue()[table][key].format(**values)


def unknown(why: str, values: Mapping[str, Any]) -> tuple[str, str]:
    """Why something could not be judged, and what would make it judgeable."""
    reason, helps = catalogue()["unknown"][why]
    return reason.format(**values), helps
