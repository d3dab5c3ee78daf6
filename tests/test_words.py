"""Text for people: what a token may hold is shown, never obeyed."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.words import bytes_in_words, cell_len, printable


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("the", "the"),
        (" the", "␣the"),
        ("a\nb", "a⏎b"),
        ("\t", "⇥"),
        ("\r", "␍"),
        ("", "∅"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("a\u200db", "a\\u200db"),
        ("\u2028", "\\u2028"),
        ("猫", "猫"),
        ("[red]", "[red]"),
        ("<script>", "<script>"),
    ],
)
def test_shown(token: str, shown: str) -> None:
    assert printable(token) == shown


@given(st.text())
def test_nothing_is_left_that_acts(token: str) -> None:
    acting = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert not any(unicodedata.category(char) in acting for char in printable(token))
    assert printable(token)


@pytest.mark.parametrize(
    ("text", "columns"), [("cat", 3), ("猫", 2), ("e\u0301", 1), ("", 0), ("ｃ", 2)]
)
def test_columns_of_a_terminal(text: str, columns: int) -> None:
    assert cell_len(text) == columns


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (45_000, "45.0 kB"),
        (7_100_000, "7.1 MB"),
        (1.44e12, "1,440.0 GB"),
    ],
)
def test_sizes(size: float, words: str) -> None:
    assert bytes_in_words(size) == words
