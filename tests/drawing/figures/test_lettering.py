"""Text in figures: as it is, in letters that there are, as much as there is room for."""

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from clearhead.drawing.figures.lettering import even_step, families, short_paths, tick, wrapped
from tests.drawing.figures.drawn import words


def test_the_space_before_a_word_is_written_only_where_two_labels_differ_by_it() -> None:
    axes = Figure(figsize=(4, 4)).subplots()
    tick(axes, "x", 3, [" Mary", " gave", " a"])
    tick(axes, "y", 3, [" Mary", "Mary", " a"])
    assert words(axes, "x") == ["Mary", "gave", "a"]
    assert words(axes, "y") == ["␣Mary", "Mary", "a"]


def test_the_font_of_the_user_comes_first() -> None:
    with mpl.rc_context({"font.family": ["serif"], "font.serif": ["No Such", "STIXGeneral"]}):
        assert families()[:2] == ("STIXGeneral", "DejaVu Sans")
    with mpl.rc_context({"font.family": ["No Such"]}):
        assert families()[0] == "DejaVu Sans"


@pytest.mark.parametrize(("high", "every"), [(12.0, 1), (3.0, 5), (0.5, 20), (0.02, 100)])
def test_as_many_labels_as_there_is_room_for(high: float, every: int) -> None:
    figure = Figure(figsize=(4, high / 0.77))  # a subplot takes that share of the height
    axes = figure.subplots()
    tick(axes, "y", 60, [f"t{place}" for place in range(60)])
    found = words(axes, "y")
    places = range(0, 60, every)
    assert found == [f"t{i}" if every == 1 else f"{i} t{i}" for i in places]


def test_places_are_whole_numbers() -> None:
    axes = Figure().subplots()
    axes.set_xlim(-0.5, 2.5)
    tick(axes, "x", 3, None)
    assert all(float(place).is_integer() for place in axes.get_xticks())


@pytest.mark.parametrize("count", [1, 7, 64, 65, 999, 100_003])
@pytest.mark.parametrize("most", [1, 3, 20])
def test_steps_are_round_and_large_enough(count: int, most: int) -> None:
    step = even_step(count, most)
    assert -(-count // step) <= most
    assert str(step).rstrip("0") in ("1", "2", "5")


def test_long_text_is_broken_at_words() -> None:
    assert wrapped("a word and a word", 0.8, 10) == "a word and\na word"
    assert wrapped("one; two", 5, 10) == "one; two"
    assert wrapped("first thing; second", 1.2, 10) == "first thing\nsecond"


def test_paths_without_what_they_share() -> None:
    names = [f"model.layers.{i}.self_attn" for i in range(3)]
    assert short_paths(names) == ["layer 0", "layer 1", "layer 2"]
    assert short_paths(["encoder.attention"]) == ["encoder.attention"]
    assert short_paths([""]) == ["the model"]
    long = short_paths(["a" * 30, "b" * 30 + "c"])
    assert long == ["…" + "a" * 19, "…" + "b" * 18 + "c"]
    # Nothing is left out that tells them apart.
    mixed = ["encoder.0.attn", "decoder.0.attn", "decoder.0.cross"]
    assert len(set(short_paths(mixed))) == 3
