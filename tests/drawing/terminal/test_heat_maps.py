"""A head as a map in a terminal: aligned, and inside the width."""

import io
import math

import pytest
import torch
from rich.cells import cell_len as rich_cell_len
from rich.console import Console

from clearhead.drawing.terminal.heat_maps import HeatMap, PooledMap
from tests.drawing.terminal.printed import drawn, hexadecimal, papers


def test_a_small_heat_map() -> None:
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.04, 0.16, 0.8]])
    lines = drawn(HeatMap(weights, ["it", "was", "because"]), 60)
    assert [line.rstrip() for line in lines] == [
        "             it     was   because",
        "0 it      █████100",
        "1 was     ▒▒▒▒▒▒50▒▒▒▒▒▒50",
        "2 because               16██████80",
        "          0     ░░░░▒▒▒▒▓▓▓▓████",
        "          100 % of a row's attention goes to a column",
    ]


def test_colours_are_parts_of_the_largest_weight() -> None:
    weights = torch.tensor([[0.5, 0.0], [0.25, 0.125]])
    lines = papers(HeatMap(weights, ["a", "b"]))
    found = [[(text.strip(), back) for text, back in line if back] for line in lines[1:3]]
    assert found == [
        [("50", hexadecimal(1.0)), ("", hexadecimal(0.0))],
        [("25", hexadecimal(0.5)), ("12", hexadecimal(0.25))],
    ]


def test_hidden_pairs_are_blank() -> None:
    weights = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    visible = torch.tensor([[True, False], [True, True]])
    lines = papers(HeatMap(weights, ["a", "b"], visible=visible))
    assert [sum(bool(back) for _, back in line) for line in lines[1:3]] == [1, 2]


def test_a_nan_is_said() -> None:
    lines = papers(HeatMap(torch.tensor([[math.nan, 1.0], [0.5, 0.5]]), ["a", "b"]))
    assert [text.strip() for text, back in lines[1] if back] == ["?", "100"]
    assert "?" in drawn(HeatMap(torch.full((2, 2), math.nan), ["a", "b"]))[1]


@pytest.mark.parametrize("tokens", [1, 2, 15, 23, 40, 66, 67, 68, 150, 512])
def test_a_heat_map_fits(tokens: int) -> None:
    weights = torch.softmax(torch.randn(tokens, tokens), dim=-1)
    for width in (40, 80, 100):
        lines = drawn(HeatMap(weights, ["token"] * tokens), width)
        assert max(map(rich_cell_len, lines)) <= width
        told = any("do not fit" in line for line in lines)
        assert told == (tokens > width - len("000 token"[: len(str(tokens - 1)) + 6]) - 1), width


@pytest.mark.parametrize(
    ("tokens", "widths"), [(15, (4, 4)), (20, (3, 3)), (30, (2, 2)), (40, (1, 1))]
)
def test_cells_are_as_wide_as_there_is_room_for(tokens: int, widths: tuple[int, int]) -> None:
    weights = torch.full((tokens, tokens), 1 / tokens)
    lines = papers(HeatMap(weights, ["because"] * tokens))
    row = next(line for line in lines if line[0][0].startswith(" 0 because"))
    cells = [len(text) for text, back in row if back]
    assert (min(cells), max(cells)) == widths
    assert len(cells) == tokens


def test_columns_are_named_across_or_downwards() -> None:
    across = drawn(HeatMap(torch.full((3, 3), 1 / 3), ["it", "was", "because"]), 40)
    assert across[0].split() == ["it", "was", "because"]
    downwards = drawn(HeatMap(torch.full((20, 20), 0.05), ["it", "was"] * 10), 60)
    assert [line.split() for line in downwards[:3]] == [
        ["w"] * 10,
        ["i", "a"] * 10,
        ["t", "s"] * 10,
    ]
    numbers = drawn(HeatMap(torch.full((40, 40), 0.05), ["猫"] * 40), 60)
    assert numbers[1].strip() == "0123456789" * 4


def test_a_pooled_map() -> None:
    """Two rows make a line, so that a cell is about as high as wide."""
    shares = torch.tensor([[1.0, 0.0], [0.28, 0.72], [0.25, 0.75], [0.0, 1.0]])
    lines = drawn(PooledMap(shares, 4_000), 40)
    assert [line.rstrip() for line in lines] == [
        "     0 3999",
        "   0 ██▓▓",
        "2000 ░░██",
        "     0     ░░░░▒▒▒▒▓▓▓▓████",
        "     88 % of a row's attention, by its",
        "     square root",
        "one cell is up to 2000 × 2000 tokens",
    ]


@pytest.mark.parametrize(("cells", "width"), [(64, 80), (64, 30), (256, 80), (7, 200), (1, 20)])
def test_a_pooled_map_fits(cells: int, width: int) -> None:
    found = drawn(PooledMap(torch.full((cells, cells), 1 / cells), 50_000), width)
    assert max(map(len, found)) <= width
    # As many lines as a square has, where a cell is twice as high as wide.
    assert len(found) <= width / 2 + 6


def test_no_color_draws_in_shades(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Console(file=io.StringIO(), width=40, force_terminal=True, color_system="truecolor")
    plain.print(HeatMap(torch.eye(2), ["a", "b"]))
    assert isinstance(plain.file, io.StringIO)
    text = plain.file.getvalue()
    assert "█100" in text
    assert "48;2" not in text
