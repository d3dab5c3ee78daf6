import clearhead as ch
from tests.masks.drawn import docstring_drawings


def test_the_docstring_is_true() -> None:
    drawn = [ch.prefix(2).draw(4, 4), (ch.causal() | ch.prefix(2)).draw(4, 4)]
    assert docstring_drawings(ch.prefix) == drawn


def test_it_says_how_it_was_made() -> None:
    assert ch.prefix(2).describe() == "prefix(2)"
    assert ch.prefix([2, 3]).describe() == "prefix([2, 3])"
