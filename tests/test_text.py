"""Text for people: what a token may hold is shown, never obeyed."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead._text import bounded, cell_len, format_bytes, printable, readable, shown


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


def test_a_message_keeps_its_spaces_and_lines() -> None:
    assert readable("a b.html\n\x1b[31m\u202e") == "a b.html\n\\x1b[31m\\u202e"


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
    assert format_bytes(size) == words


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("a\u00a0b", "a\\xa0b"),
        ("\u3000", "\\u3000"),
        ("\U000e0041", "\\U000e0041"),
        ("\ue000", "\\ue000"),
        ("e\u0301", "e\u0301"),
    ],
)
def test_blanks_of_other_kinds_and_characters_beyond_the_first_plane(
    token: str, shown: str
) -> None:
    assert printable(token) == shown


@pytest.mark.parametrize(
    ("mark", "columns"), [("\u0301", 0), ("\u0941", 0), ("\ufe0f", 0), ("\u20e3", 0), ("\u0903", 1)]
)
def test_marks_that_stand_on_others_take_no_column(mark: str, columns: int) -> None:
    assert cell_len(f"a{mark}") == 1 + columns


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (999.4, "999 bytes"),
        (999.6, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_960, "1.0 MB"),
        (999_960_000, "1.0 GB"),
        (12_345_678_901, "12.3 GB"),
    ],
)
def test_sizes_that_are_rounded_up_change_their_unit(size: float, words: str) -> None:
    assert format_bytes(size) == words


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(ANYTHING)
def test_whatever_it_is_it_is_shown_in_a_line(value: object) -> None:
    said = shown(value)
    assert said
    assert len(said) <= 1000
    assert "\n" not in said


@given(st.text(st.characters(categories=["L", "N", "P"])), st.integers(8, 60))
def test_what_is_bounded_is_as_long_as_that_at_most(text: str, most: int) -> None:
    found = bounded(text, most)
    assert len(found) <= most
    assert found == text or len(text) > most


@given(st.integers(0, 10**16), st.integers(0, 10**16))
def test_sizes_in_words_are_in_the_order_of_the_sizes(one: int, two: int) -> None:
    def number(size: int) -> float:
        digits, unit = format_bytes(size).split()
        return float(digits.replace(",", "")) * {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]

    assert (number(one) <= number(two)) or one > two
    assert abs(number(one) - one) <= max(
        0.5, 0.05 * 10 ** (3 * min(3, (len(str(one)) - 1) // 3) + 0.01)
    )
