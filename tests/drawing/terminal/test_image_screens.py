"""The patches of a picture in a terminal."""

import io

import torch
from rich.console import Console

from clearhead.drawing.terminal.image_screens import PatchMap


def printed(shares: torch.Tensor, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(PatchMap(shares, "[CLS]"))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_patches_that_have_no_room_are_summed() -> None:
    shares = torch.zeros(5, 60)
    shares[2:4, :2] = 0.1
    whole, folded = printed(shares, 120), printed(shares, 80)
    assert len(whole) == 5 + 1
    assert whole[2].rstrip() == whole[3].rstrip() == 4 * "█"
    assert "10 % of the attention of [CLS]" in whole[-1]
    assert [line.rstrip() for line in folded[:3]] == ["", "██", ""]
    assert "40 % of the attention of [CLS]" in folded[3]
    assert folded[4] == "a cell is 2 × 2 patches"
