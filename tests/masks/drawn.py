"""Masks drawn by hand."""

import inspect
import itertools
import textwrap

import torch
from torch import Tensor


def rows(*lines: str) -> Tensor:
    """A bool tensor from lines such as "● ● ·"."""
    return torch.tensor([[cell == "●" for cell in line.split()] for line in lines])


def columns_of(drawing: str) -> list[str]:
    """Drawings that stand side by side, each on its own; four spaces or more part them."""
    lines = textwrap.dedent(drawing).strip("\n").splitlines()
    starts = [0]
    widest = max(len(line) for line in lines)
    blank = [all(len(line) <= at or line[at] == " " for line in lines) for at in range(widest)]
    for at in range(4, widest):
        if all(blank[at - 4 : at]) and not blank[at]:
            starts.append(at)
    parts = [
        [line[low:high].rstrip() for line in lines]
        for low, high in itertools.pairwise([*starts, widest])
    ]
    return ["\n".join(line for line in part if line) for part in parts]


def docstring_drawings(documented: object) -> list[str]:
    """Every drawing below a `::` in a docstring, in the order of reading."""
    found = []
    for block in (inspect.getdoc(documented) or "").split("::\n")[1:]:
        text = "\n".join(
            line for line in block.strip("\n").split("\n\n")[0].splitlines() if line[:4] == "    "
        )
        found += columns_of(text)
    return found
