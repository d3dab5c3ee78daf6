import torch

import clearhead as ch
from clearhead.masks.drawing import draw_dense
from tests.masks.drawn import rows


def test_a_row_for_each_query() -> None:
    assert draw_dense(rows("● · ·", "● ● ·")) == "● · ·\n● ● ·"


def test_samples_one_after_the_other() -> None:
    tensor = torch.stack([rows("● ·"), rows("● ●")])[:, None]
    assert draw_dense(tensor) == "batch 0\n● ·\nbatch 1\n● ●"


def test_heads_one_after_the_other() -> None:
    tensor = torch.stack([rows("● ·"), rows("● ●")])[None]
    assert draw_dense(tensor) == "batch 0, head 0\n● ·\nbatch 0, head 1\n● ●"


def test_nothing_to_draw() -> None:
    assert ch.causal().draw(0, 3) == ""
    assert ch.causal().draw(2, 0) == "\n"
    assert ch.padding([]).draw(2, 2) == ""


def test_a_picture_has_as_many_characters_as_it_says() -> None:
    lines = ch.causal().draw(200, 200).splitlines()
    assert len(lines) == 200
    assert {len(line) for line in lines} == {399}
    assert lines[-1] == " ".join("●" * 200)
