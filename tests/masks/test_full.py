import torch

import clearhead as ch
from tests.masks.drawn import docstring_drawings


def test_the_docstring_is_true() -> None:
    assert docstring_drawings(ch.full) == [ch.full().draw(2, 3)]


def test_everybody_sees_everybody() -> None:
    assert ch.full().to_dense(2, 3).all()
    assert not (~ch.full()).to_dense(2, 3).any()
    assert ch.full().to_dense(0, 3).shape == (0, 3)
    assert (ch.full().batch, ch.full().heads, ch.full().device) == (None, None, None)


def test_it_changes_nothing_in_a_conjunction() -> None:
    assert torch.equal((ch.full() & ch.causal()).to_dense(3, 5), ch.causal().to_dense(3, 5))
    assert (ch.full() | ch.causal()).to_dense(3, 5).all()


def test_it_says_how_it_was_made() -> None:
    assert repr(ch.full()) == "full()\n" + "\n".join(["● ● ● ● ● ●"] * 6)
