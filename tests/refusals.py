"""Refusals as a table: what is called, the code, and what the message fills in.

The sentences are read from the source: `…` is in the place of what is filled in.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import clearhead as ch
from clearhead.cli.explain import error_codes

SENTENCES = error_codes()


def sentences_of(code: str) -> list[tuple[str, str]]:
    """The classes and the sentences of a code, also of one that is filled in itself, such as `….type`."""
    return [
        row
        for each, rows in SENTENCES.items()
        if re.fullmatch(re.escape(each).replace("…", ".+"), code)
        for row in rows
    ]


def filled(sentence: str, values: Sequence[str]) -> str | None:
    """The sentence with these values, if it has so many places; ` // ` stands between those of one string."""
    each = " // ".join(values).split(" // ") if values else []
    first, *parts = sentence.split("…")
    if len(parts) != len(each):
        return None
    return squeezed(first + "".join(value + part for value, part in zip(each, parts, strict=True)))


def squeezed(text: str) -> str:
    """The text without white space, which the rows of codes do not keep."""
    return "".join(text.split())


def assert_refused(call: Callable[[], object], code: str, *values: str) -> ch.errors.ClearheadError:
    """The call raises the class of that code, with one of its sentences, filled with the values."""
    with pytest.raises(ch.errors.ClearheadError) as caught:
        call()
    error = caught.value
    said = (type(error).__name__, squeezed(error.message))
    assert error.code == code, error
    assert said in [(kind, filled(sentence, values)) for kind, sentence in sentences_of(code)], (
        error
    )
    return error


def refusals(call: Callable[[Any], object], *rows: tuple[Any, ...]) -> Callable[..., None]:
    """A test that `call` of the first entry of each row is refused, with the code and the values that follow it."""

    @pytest.mark.parametrize(
        "row", rows, ids=[f"{row[1]}-{number}" for number, row in enumerate(rows)]
    )
    def test(row: tuple[Any, ...]) -> None:
        given, code, *values = row
        assert_refused(lambda: call(given), code, *values)

    return test


def run(call: Callable[[], object]) -> object:
    return call()


def wrong(value: Any) -> Any:
    """The value, of whatever type an annotation asks for."""
    return value
