"""Figures at the end of a cell, in a browser that runs no script."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Page

import clearhead as ch
from clearhead import ladder
from tests.browser.conftest import DESKTOP, PHONE, Opens

NOTEBOOK = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>a notebook</title>
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
</head><body style="background: Canvas; color: CanvasText"><main>
<h1>A notebook</h1><h2>A section</h2>{cells}</main></body></html>"""


@cache
def cells() -> list[str]:
    torch.manual_seed(0)
    mask = ch.causal() & ch.sliding_window(left=3)
    weights = ch.AttentionMatrix(*torch.randn(2, 1, 2, 17, 4), mask=mask)
    model = torch.nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=2) for _ in range(3)))
    with ch.watch(model) as seen:
        model(torch.randn(1, 5, 8))
    rung = ladder.MaskedAttention(3, head_dim=2, mask=ch.causal())
    trace = ch.trace(rung, ladder.EXAMPLE_EMBEDDINGS, tokens=["<script>alert(1)</script>"] * 6)
    report = ch.check(lambda q, k, v: (q @ k.mT).softmax(-2) @ v, takes="qkv")
    things = (mask, weights, weights.summary(pool=(5, 5)), seen, trace, report)
    return [str(thing._repr_html_()) for thing in things]


@pytest.mark.parametrize(("dark", "size"), [(False, DESKTOP), (True, PHONE)], ids=["light", "dark"])
def test_everybody_can_read_it(
    opens: Opens,
    violations: Callable[[Page], list[str]],
    tmp_path: Path,
    dark: bool,
    size: dict[str, int],
) -> None:
    path = tmp_path / "notebook.html"
    path.write_text(NOTEBOOK.format(cells="".join(cells())), encoding="utf-8")
    page = opens(path.as_uri(), dark=dark, size=size)
    assert violations(page) == []
    assert page.evaluate("[...document.images].every((each) => each.naturalWidth > 0)")
    assert page.locator("img").count() == 1 + 2 + 2 + 3
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert page.locator("script").count() == 0


def test_it_is_a_plain_string() -> None:
    """Notebooks send it on; that of marimo encodes strings, not what inherits from them."""
    assert {type(each) for each in cells()} == {str}
