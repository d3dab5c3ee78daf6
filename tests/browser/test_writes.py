"""Tokens that a head raises and lowers, on the page of heads: in a file, in a notebook; names of two runs."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Page, expect
from torch import nn

import clearhead as ch
from clearhead.drawing.page.head_page import Layer, Run, heads_payload
from clearhead.drawing.page.payload import Payload
from clearhead.drawing.page.runs import Start
from clearhead.drawing.page.texts import read_text
from clearhead.reading.written_tokens import Writes
from tests.browser.conftest import DESKTOP, PHONE, Opens
from tests.drawing.page.test_written import VOCABULARY, Block

WORDS = ["the", "cat", "sat", "on", "the", "mat", "because", "it", "was", "tired", "."]
NAMES = [f" w{number}" for number in range(VOCABULARY)]
IDS = torch.arange(len(WORDS))[None]
PANEL = ".ch-writes"


def model() -> nn.Module:
    torch.manual_seed(0)
    parts = nn.Embedding(VOCABULARY, 8), Block(), Block(), nn.LayerNorm(8), nn.Linear(8, VOCABULARY)
    return nn.Sequential(*parts).requires_grad_(False)


def seen_by(of: nn.Module) -> ch.types.Seen[Any]:
    with ch.watch(of) as seen:
        of(IDS)
    return seen


def lists(page: Page) -> list[list[str]]:
    """The words of either list; a number with its sign is beside each."""
    page.locator(f"{PANEL} .ch-bars").nth(1).wait_for()
    found = []
    for each in page.locator(f"{PANEL} .ch-bars").all():
        rows = [row.split("\n") for row in each.locator("li").all_inner_texts()]
        assert all(re.fullmatch(r"[+−]\d+(\.\d+)?", row[-1]) for row in rows)
        found.append([row[0] for row in rows])
    return found


def expected(found: Writes, layer: str, head: int, query: int) -> list[list[str]]:
    each = next(each for each in found.of(layer, head=head).lists() if each["query"] == query)
    return [[NAMES[token].strip() for token, _ in each[side]] for side in ("raised", "lowered")]


def test_a_pinned_query_shows_what_the_head_writes(opens: Opens, tmp_path: Path) -> None:
    of = model()
    found = ch.reading.writes(of, IDS, query=None, top=5)
    path = seen_by(of).to_html(
        tmp_path / "page.html", tokens=WORDS, writes=found, words=NAMES, start="head=1.1&pin=7,1"
    )
    page = opens(path.as_uri())
    panel = page.locator(PANEL)
    expect(panel.locator("summary")).to_have_text("What it writes at it")
    assert panel.locator(".ch-bars").count() == 0
    panel.locator("summary").click()
    assert lists(page) == expected(found, "2.attention", 1, 7)
    page.wait_for_function("() => location.hash.endsWith('&writes=1')")
    # It goes with the head and with the query, and away without one.
    page.locator('[data-head="0/0"]').click()
    expect(page.locator(".ch-panel h2")).to_have_text("Layer 0, head 0")
    assert lists(page) == expected(found, "1.attention", 0, 7)
    page.evaluate("location.hash = 'head=0.0&pin=10,2&writes=1'")
    expect(panel.locator("summary")).to_have_text("What it writes at .")
    assert lists(page) == expected(found, "1.attention", 0, 10)
    for size in (DESKTOP, PHONE):
        page.set_viewport_size({"width": size["width"], "height": size["height"]})
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        for words in panel.locator(".ch-bar-words, .ch-bar-name").all():
            assert words.evaluate("each => each.scrollWidth <= each.clientWidth")
    page.keyboard.press("Escape")
    expect(panel).to_have_count(0)


def test_a_query_of_which_nothing_was_written_says_so(opens: Opens, tmp_path: Path) -> None:
    of = model()
    found = ch.reading.writes(of, IDS)
    start = "head=1.1&pin=7,1&writes=1"
    path = seen_by(of).to_html(tmp_path / "page.html", tokens=WORDS, writes=found, start=start)
    page = opens(path.as_uri())
    expect(page.locator(f"{PANEL} .ch-remark")).to_have_text("It is not known for this query.")
    page.evaluate("location.hash = 'head=1.1&pin=10,1&writes=1'")
    assert all(row.startswith("#") for side in lists(page) for row in side)
    assert [len(side) for side in lists(page)] == [10, 10]


def two_runs(names: tuple[str, str], start: str) -> Payload:
    runs = []
    for run, name in enumerate(names):
        generator = torch.Generator().manual_seed(run)
        layers = []
        for layer in range(2):
            query, key = 2 * torch.randn(2, 1, 3, len(WORDS), 5, generator=generator)
            matrix = ch.AttentionMatrix(query, key, mask=ch.causal())
            layers.append(Layer(f"layers.{layer}", matrix))
        runs.append(Run(name, layers, read_text("tokens", WORDS)))
    return heads_payload(runs, "two runs", start=Start(start))


LONG_NAME = "the animal was too tired to cross the street at night"


@pytest.mark.parametrize("minus", ["", "&minus=1"])
def test_runs_are_named_wherever_their_letters_are_read(minus: str, opens: Opens) -> None:
    start = f"head=A1.1&with=B1.1&pin=7,1{minus}"
    page = opens(two_runs((LONG_NAME, "wide"), start))
    page.locator(".ch-answers .ch-bars").first.wait_for()
    heads = page.locator(".ch-panel-head").all_inner_texts()
    assert len(heads) == (1 if minus else 2)
    assert LONG_NAME in heads[0]
    assert "wide" in heads[-1]
    assert LONG_NAME in page.locator(".ch-answers").first.inner_text()
    groups = page.locator(".ch-line-run").all_inner_texts()
    assert groups == [f"A {LONG_NAME}", "B wide"]
    for width in (390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_runs_without_names_are_their_letters(opens: Opens) -> None:
    page = opens(two_runs(("A", "B"), "head=A1.1&with=B1.1&pin=7,1"))
    page.locator(".ch-answers .ch-bars").first.wait_for()
    assert page.locator(".ch-run").count() == 0


def test_six_layers_of_six_heads_are_all_in_sight_on_a_phone(opens: Opens) -> None:
    layers = [
        Layer(
            f"layers.{layer}",
            ch.AttentionMatrix(*torch.randn(2, 1, 6, len(WORDS), 5), mask=ch.causal()),
        )
        for layer in range(6)
    ]
    run = Run("", layers, read_text("tokens", WORDS))
    page = opens(heads_payload([run], "six", start=Start("head=0.0&pin=7,1")), size=PHONE)
    page.locator(".ch-answer").first.wait_for()
    grid = page.locator(".ch-grid")
    assert grid.evaluate("each => each.scrollHeight <= each.clientHeight")
