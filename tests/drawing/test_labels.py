"""Labels: every character visible, every width exact."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead._text import cell_len
from clearhead.drawing.labels import clusters, fit, gaps, joined, label, names, widest


@given(st.text(max_size=12), st.integers(0, 9))
def test_a_fitted_label_has_its_width(text: str, width: int) -> None:
    fitted = fit(label(text), width)
    assert cell_len(fitted) == width
    assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs") for char in fitted)


@given(st.text(max_size=12))
def test_clusters_are_the_text(text: str) -> None:
    assert "".join(clusters(text)) == text


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("", "∅"),
        (" ", "␣"),
        ("\n", "⏎"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\u202eb", r"a\u202eb"),
        ("\u200b", r"\u200b"),
        ("[red]x[/]", "[red]x[/]"),
        ("\u0301", "◌\u0301"),
        ("e\u0301", "e\u0301"),
    ],
)
def test_what_a_label_shows(token: str, shown: str) -> None:
    assert label(token) == shown


def test_wide_characters_are_not_cut_in_half() -> None:
    assert fit("日本", 4) == "日本"
    assert fit("日本", 3) == "日…"
    assert fit("日本", 2) == "… "


def test_widest() -> None:
    assert widest(["it", "猫猫"], 9) == 4
    assert widest([], 9) == 0


@pytest.mark.parametrize(
    ("tokens", "shown"),
    [
        ([" Mary", " gave", "!"], ["Mary", "gave", "!"]),
        ([" Mary", "Mary", " a"], ["␣Mary", "Mary", "a"]),
        ([" ", "   ", " " * 19], ["␣", "␣␣␣", "␣×19"]),
        ([" \n", "  a"], ["⏎", "␣␣a"]),
    ],
)
def test_the_space_before_a_word(tokens: list[str], shown: list[str]) -> None:
    assert names(tokens) == shown


@given(st.lists(st.text(alphabet=" aB'\n", max_size=4), max_size=6, unique=True))
def test_different_tokens_have_different_names(tokens: list[str]) -> None:
    assert len(set(names(tokens))) == len(tokens)


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["The", " num", "_", "heads", " =", " 2"], "The num_heads = 2"),
        (["ca", "usal", "()", " f"], "causal() f"),
        (["didn", "'", "t", "walk", "##ing", ".", "(", "a", ")"], "didn't walking. (a)"),
        (["a", "'", "quote", "'", "b"], "a ' quote ' b"),
        (["##", "x"], "## x"),
        ([], ""),
    ],
)
def test_tokens_are_joined_to_their_text(tokens: list[str], text: str) -> None:
    assert joined(tokens) == text
    assert len(gaps(tokens)) == len(tokens)
