import clearhead as ch
from tests.masks.drawn import docstring_drawings


def test_the_docstring_is_true() -> None:
    assert docstring_drawings(ch.full) == [ch.full().draw(2, 3)]


def test_it_says_how_it_was_made() -> None:
    assert repr(ch.full()) == "full()\n" + "\n".join(["● ● ● ● ● ●"] * 6)
