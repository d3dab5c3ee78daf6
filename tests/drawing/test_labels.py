"""Labels: every character visible, every width exact."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead._common.text import cell_len
from clearhead.drawing.labels import clusters, fit, label, widest


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
