"""Heads, links and traces in a terminal: inside the width, and no token is obeyed."""

from itertools import takewhile, zip_longest

import pytest
import torch
from rich.cells import cell_len as rich_cell_len
from torch import Tensor

import clearhead as ch
from clearhead.drawing.terminal.heat_maps import HeatMap, PooledMap
from clearhead.drawing.terminal.terminal import Links, Overview, Traced
from clearhead.drawing.terminal.word_links import LayerHeads, Link, heads_of
from clearhead.ladder import EXAMPLE_EMBEDDINGS, EXAMPLE_TOKENS, SimpleAttention
from tests.drawing.terminal.printed import HOSTILE, drawn, papers


def test_what_tokens_hold_is_shown_and_not_obeyed() -> None:
    size = len(HOSTILE)
    weights = torch.full((size, size), 1 / size)
    for what in (
        HeatMap(weights, HOSTILE),
        Links([Link(0, query, 3, 0.5) for query in range(size)], HOSTILE, [0] * size),
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


def layer_with(weights: Tensor) -> LayerHeads:
    tokens = weights.shape[-1]
    matrix = ch.AttentionMatrix(
        weights.log().expand(1, 1, -1, -1), torch.eye(tokens)[None, None], scale=1.0
    )
    return heads_of(matrix, [False] * tokens, [True] * tokens)


def layer_of(heads: int, tokens: int = 4) -> LayerHeads:
    scores = torch.randn(1, heads, tokens, tokens)
    matrix = ch.AttentionMatrix(scores, torch.eye(tokens).expand_as(scores), scale=1.0)
    return heads_of(matrix, [True] + [False] * (tokens - 1), [False] + [True] * (tokens - 1))


@pytest.mark.parametrize("heads", [1, 4, 12, 16, 32, 64, 128])
def test_an_overview_fits(heads: int) -> None:
    layer = layer_of(heads)
    for width in (40, 80, 100):
        lines = papers(Overview([layer, layer]), width)
        assert max(sum(rich_cell_len(text) for text, _ in line) for line in lines) <= width
        legend = max(i for i, line in enumerate(lines) if line[0][0].strip() == "0")
        assert sum(bool(back) for line in lines[:legend] for _, back in line) == 2 * heads, width


def test_an_overview_says_what_it_shows() -> None:
    layer = layer_of(heads=2)
    lines = drawn(Overview([layer]))
    assert lines[0].split() == ["layer", "0", "1", "entropy", "distance", "special"]
    assert f"{sum(row.entropy or 0.0 for row in layer.rows) / 2:.2f}" in lines[1]
    assert f"{sum(row.distance or 0.0 for row in layer.rows) / 2:.1f}" in lines[1]
    assert f"{sum(layer.special) / 2 * 100:.0f} %" in lines[1]
    for focus in layer.focus:
        assert f"{focus * 100:.0f}" in lines[1]
    assert "100 %: one token only; 0: all tokens alike" in lines[2]
    assert "entropy in nats, distance in tokens" in lines[3]


WORDS = "[CLS] the animal didn't cross the street because it was too tired today [SEP]"
SENTENCE = WORDS.split()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_nothing_is_cut(width: int) -> None:
    size = len(SENTENCE)
    weights = torch.softmax(9 * torch.eye(size).roll(1, 0), dim=-1)
    layer = layer_with(weights)
    links = [Link(0, query, 6, 0.5) for query in range(size)]
    words = {
        Overview([layer] * 3): ["one token only; 0: all tokens alike", "share on special tokens"],
        Links(links, SENTENCE, [11] * size): [*SENTENCE, "tokens ahead", "tokens back"],
        Links(links, SENTENCE): [*SENTENCE, "tokens ahead", "tokens back", "━━━━━"],
        HeatMap(weights, SENTENCE): [*SENTENCE, "100 % of a row's attention goes to a column"],
        PooledMap(weights, 10_000): ["of a row's attention, by its square root"],
    }
    for what, expected in words.items():
        lines = drawn(what, width)
        assert max(map(rich_cell_len, lines)) <= width
        across = " ".join(" ".join(lines).split())
        assert not {"…", "⋮"} & set(across)
        assert all(each in across for each in expected), what
    above = takewhile(
        lambda line: not line.startswith(" 0 "), drawn(HeatMap(weights, SENTENCE), width)
    )
    columns = "\n".join(map("".join, zip_longest(*above, fillvalue=" ")))
    assert columns.replace(" ", "").split() == SENTENCE


def test_layers_may_differ_in_their_heads() -> None:
    lines = papers(Overview([layer_of(heads=3), layer_of(heads=2)]))
    assert [sum(bool(back) for _, back in line) for line in lines[1:3]] == [3, 2]


def test_links() -> None:
    links = [Link(1, 3, 1, 0.75), Link(2, 0, 1, 0.5), Link(0, 2, 2, 0.25)]
    lines = drawn(Links(links, ["a", "street", "c", "because"], [0, 10, 2]))
    assert lines == [
        "layer  0 head  1   because → street  0.75 ━━━━━━━━    2 tokens back",
        "layer 10 head  2   a       → street  0.50 ━━━━━       1 token ahead",
        "layer  2 head  0   c       → c       0.25 ━━          itself",
    ]


def test_a_trace_is_printed_whole() -> None:
    steps = ch.trace(SimpleAttention(), EXAMPLE_EMBEDDINGS, tokens=EXAMPLE_TOKENS)
    shown = "\n".join(line.rstrip() for line in drawn(Traced(steps, 1), 200))
    expected = "\n".join(line.rstrip() for line in f"{steps}\n\n{steps.explain(1)}".splitlines())
    assert shown == expected
