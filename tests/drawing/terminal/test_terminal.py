"""Drawings in a terminal: aligned, inside the width, and what is shown is never obeyed."""

import io
import math

import pytest
import torch
from rich.cells import cell_len as rich_cell_len
from rich.console import Console
from rich.segment import Segment
from torch import Tensor

import clearhead as ch
from clearhead.drawing.colours import colour
from clearhead.drawing.terminal.summary import LayerSummary, Link, summarise
from clearhead.drawing.terminal.terminal import (
    HeadTable,
    HeatMap,
    Links,
    Overview,
    PooledMap,
    Traced,
    pooled,
)
from clearhead.ladder import EXAMPLE_EMBEDDINGS, EXAMPLE_TOKENS, SimpleAttention

HOSTILE = [
    "[red]x[/]",
    "\x1b[31m",
    "\u202eabc",
    "😀",
    "猫猫",
    "\n",
    "",
    "e\u0301",
    "\u0301",
    "\r\t",
]


def console(width: int = 80, *, colours: bool = False) -> Console:
    return Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colours,
        color_system="truecolor" if colours else None,
        legacy_windows=False,
    )


def drawn(what: object, width: int = 80) -> list[str]:
    """The lines of a drawing without colours."""
    plain = console(width)
    plain.print(what)
    assert isinstance(plain.file, io.StringIO)
    return plain.file.getvalue().splitlines()


def papers(what: object, width: int = 80) -> list[list[tuple[str, str]]]:
    """For each line of a coloured drawing its texts with their background."""
    coloured = console(width, colours=True)
    lines = coloured.render_lines(what, pad=False)  # type: ignore[arg-type]
    return [[(segment.text, paper(segment)) for segment in line] for line in lines]


def paper(segment: Segment) -> str:
    background = segment.style.bgcolor if segment.style else None
    return background.name if background else ""


def hexadecimal(share: float) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour(share))


def test_a_small_heat_map() -> None:
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.04, 0.16, 0.8]])
    lines = drawn(HeatMap(weights, ["it", "was", "because"]), 60)
    assert [line.rstrip() for line in lines] == [
        "             it     was   because",
        "0 it      █████100",
        "1 was     ▒▒▒▒▒▒50▒▒▒▒▒▒50",
        "2 because               16██████80",
        "          0     ░░░░▒▒▒▒▓▓▓▓████ 100 % of a row's attention",
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
@pytest.mark.parametrize("width", [40, 80, 100])
def test_a_heat_map_fits(tokens: int, width: int) -> None:
    weights = torch.softmax(torch.randn(tokens, tokens), dim=-1)
    lines = drawn(HeatMap(weights, ["token"] * tokens), width)
    assert max(map(rich_cell_len, lines)) <= width
    told = any("do not fit" in line for line in lines)
    assert told == (tokens > width - len("000 token"[: len(str(tokens - 1)) + 6]) - 1)


@pytest.mark.parametrize(
    ("tokens", "widths"), [(15, (4, 4)), (20, (3, 3)), (30, (2, 2)), (40, (1, 1))]
)
def test_cells_are_as_wide_as_there_is_room_for(tokens: int, widths: tuple[int, int]) -> None:
    weights = torch.full((tokens, tokens), 1 / tokens)
    lines = papers(HeatMap(weights, ["because"] * tokens))
    cells = [len(text) for text, back in lines[-2] if back]
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


def test_what_tokens_hold_is_shown_and_not_obeyed() -> None:
    size = len(HOSTILE)
    weights = torch.full((size, size), 1 / size)
    for what in (
        HeatMap(weights, HOSTILE),
        Links([Link(0, query, 3, 0.5) for query in range(size)], HOSTILE, [0] * size),
        HeadTable(summary_of(weights), HOSTILE),
    ):
        for width in (50, 80, 120):
            lines = drawn(what, width)
            text = "\n".join(lines)
            assert not {"\x1b", "\u202e", "\r", "\t"} & set(text)
            assert max(map(rich_cell_len, lines)) <= width
    rows = drawn(HeatMap(weights, HOSTILE))[-size - 1 : -1]
    assert len({rich_cell_len(line) for line in rows}) == 1
    assert rows[0].startswith("0 [red]x[/] ")
    assert rows[1].startswith(r"1 \x1b[31m ")


def summary_of(weights: Tensor) -> LayerSummary:
    tokens = weights.shape[-1]
    matrix = ch.AttentionMatrix(
        weights.log().expand(1, 1, -1, -1), torch.eye(tokens)[None, None], scale=1.0
    )
    return summarise(matrix, [False] * tokens, [True] * tokens)


def test_a_pooled_map() -> None:
    """Two rows make a line, so that a cell is about as high as wide."""
    shares = torch.tensor([[1.0, 0.0], [0.28, 0.72], [0.25, 0.75], [0.0, 1.0]])
    lines = drawn(PooledMap(shares, 4_000), 40)
    assert [line.rstrip() for line in lines] == [
        "     0 3999",
        "   0 ██▓▓",
        "2000 ░░██",
        "     0     ░░░░▒▒▒▒▓▓▓▓████ 88 % of a ro",
        "one cell is up to 2000 × 2000 tokens",
    ]


@pytest.mark.parametrize(("cells", "width"), [(64, 80), (64, 30), (256, 80), (7, 200), (1, 20)])
def test_a_pooled_map_fits(cells: int, width: int) -> None:
    found = drawn(PooledMap(torch.full((cells, cells), 1 / cells), 50_000), width)
    assert max(map(len, found)) <= width
    # As many lines as a square has, where a cell is twice as high as wide.
    assert len(found) <= width / 2 + 4


def test_pooling_keeps_shares() -> None:
    weights = torch.softmax(torch.randn(7, 7), dim=-1)
    small = pooled(weights, 3)
    assert small.shape == (3, 3)
    torch.testing.assert_close(small.sum(dim=-1), torch.ones(3))
    torch.testing.assert_close(small[0, 1], weights[:3, 3:6].sum() / 3)
    assert pooled(weights, 1) is weights


def layer_of(heads: int, tokens: int = 4) -> LayerSummary:
    scores = torch.randn(1, heads, tokens, tokens)
    matrix = ch.AttentionMatrix(scores, torch.eye(tokens).expand_as(scores), scale=1.0)
    return summarise(matrix, [True] + [False] * (tokens - 1), [False] + [True] * (tokens - 1))


@pytest.mark.parametrize("heads", [1, 4, 12, 16, 32, 64, 128])
@pytest.mark.parametrize("width", [40, 80, 100])
def test_an_overview_fits(heads: int, width: int) -> None:
    layers = [layer_of(heads), layer_of(heads)]
    lines = papers(Overview(layers), width)
    assert max(sum(rich_cell_len(text) for text, _ in line) for line in lines) <= width
    legend = next(i for i, line in enumerate(lines) if "all tokens alike" in line[0][0])
    assert sum(bool(back) for line in lines[:legend] for _, back in line) == 2 * heads


def test_an_overview_says_what_it_shows() -> None:
    layer = layer_of(heads=2)
    lines = drawn(Overview([layer]))
    assert lines[0].split() == ["layer", "0", "1", "entropy", "distance", "special"]
    assert f"{float(layer.entropy.mean()):.2f}" in lines[1]
    assert f"{float(layer.distance.mean()):.1f}" in lines[1]
    assert f"{float(layer.special.mean()) * 100:.0f} %" in lines[1]
    for head in range(2):
        assert f"{float(layer.focus[head]) * 100:.0f}" in lines[1]
    assert "all tokens alike 0 %" in lines[2]
    assert "entropy in nats, distance in tokens" in lines[3]


def test_layers_may_differ_in_their_heads() -> None:
    lines = papers(Overview([layer_of(heads=3), layer_of(heads=2)]))
    assert [sum(bool(back) for _, back in line) for line in lines[1:3]] == [3, 2]


def test_a_head_table() -> None:
    weights = torch.tensor([[0.9, 0.1], [0.3, 0.7]])
    lines = drawn(HeadTable(summary_of(weights), ["cross", "street"]))
    assert lines[0].split()[:4] == ["head", "focus", "entropy", "distance"]
    expected = ["0", "32", "0.47", "0.2", "60", "80", "30", "0", "cross", "→", "street", "0.10"]
    assert lines[2].replace("░", " ").replace("▒", " ").split() == expected


def test_links() -> None:
    links = [Link(1, 3, 1, 0.75), Link(2, 0, 1, 0.5), Link(0, 2, 2, 0.25)]
    lines = drawn(Links(links, ["a", "street", "c", "because"], [0, 10, 2]))
    assert lines == [
        "layer  0 head  1   because → street  0.75 ━━━━━━━━    2 tokens back",
        "layer 10 head  2   a       → street  0.50 ━━━━━       1 token ahead",
        "layer  2 head  0   c       → c       0.25 ━━          itself",
    ]


def test_no_color_draws_in_shades(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Console(file=io.StringIO(), width=40, force_terminal=True, color_system="truecolor")
    plain.print(HeatMap(torch.eye(2), ["a", "b"]))
    assert isinstance(plain.file, io.StringIO)
    text = plain.file.getvalue()
    assert "█100" in text
    assert "48;2" not in text


def test_a_trace_is_printed_whole() -> None:
    steps = ch.trace(SimpleAttention(), EXAMPLE_EMBEDDINGS, tokens=EXAMPLE_TOKENS)
    shown = "\n".join(line.rstrip() for line in drawn(Traced(steps, 1), 200))
    expected = "\n".join(line.rstrip() for line in f"{steps}\n\n{steps.explain(1)}".splitlines())
    assert shown == expected
