"""Sentences of `check` for mistakes, measurements and what it could not judge: the tables of words.toml."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any


@cache
def catalogue() -> Mapping[str, Any]:
    """Return the tables of words.toml (cached; do not modify)."""
    text = resources.files("clearhead.checking").joinpath("words.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def code_of(code: str) -> str:
    """Return the present code for a code of an earlier version; any other code is returned unchanged."""
    return catalogue()["alias"].get(code, code)


@cache
def _of_mistake(code: str, way: str) -> tuple[str, str]:
    """Return (sentence, fix) of a mistake as templates: those for this `way` if there are any, else the general ones.

    Cached. Raises KeyError for an unknown code.
    """
    mistake = catalogue()["mistake"][code_of(code)]
    for ways, (sentence, *fix) in mistake.get("when", {}).items():
        if way in ways.split():
            return sentence, fix[0] if fix else mistake["fix"]
    return mistake["says"], mistake["fix"]


def sentence(code: str, way: str, values: Mapping[str, Any]) -> str:
    """Return the sentence of a mistake, for its variant `way`: what the code does.

    Raises KeyError for an unknown code, or without a value.
    """
    return _of_mistake(code, way)[0].format(**values)


def likely(code: str, way: str, values: Mapping[str, Any]) -> str:
    """Return the fix of a mistake, for its variant `way`: the line to write. KeyError as `sentence`."""
    return _of_mistake(code, way)[1].format(**values)


def filled(table: str, key: str, values: Mapping[str, Any]) -> str:
    """Return a template of the table "tick", "note", "topic" or "measured", filled with the values.

    KeyError as `sentence`.
    """
    return catalogue()[table][key].format(**values)


def unknown(why: str, values: Mapping[str, Any]) -> tuple[str, str]:
    """Return why something could not be judged, and what would make it judgeable ("" if nothing).

    KeyError as `sentence`.
    """
    reason, helps = catalogue()["unknown"][why]
    return reason.format(**values), helps
