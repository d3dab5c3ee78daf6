"""The bundle as a widget: mounted by `render({model, el})`, with a model that is not anywidget's."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Page

import clearhead as ch
from clearhead import ladder
from clearhead.drawing.element.trace_page import trace_payload
from clearhead.drawing.notebook.widget import answer
from clearhead.drawing.page.head_page import Layer, Run, heads_payload
from clearhead.drawing.page.page import asset
from clearhead.drawing.page.payload import Payload
from tests.browser.conftest import Opens

HOST = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>a notebook</title><style>{style}</style></head>
<body><p>What stands in the notebook.</p><div id="cell"></div></body></html>"""

MODEL = """
async ([script, payload, exact]) => {
  // As anywidget loads a module; numbers of a message begin anywhere in its buffer.
  const bytes = Uint8Array.from(atob(payload), (each) => each.charCodeAt(0));
  const shifted = new Uint8Array(bytes.length + 5);
  shifted.set(bytes, 5);
  const listeners = new Set();
  const values = { payload: new DataView(shifted.buffer, 5), exact };
  const model = {
    get: (name) => values[name],
    on: (event, told) => event === "msg:custom" && listeners.add(told),
    off: (event, told) => listeners.delete(told),
    send: async (asked) => {
      const found = await window.answer(asked);
      if (found === null) return;
      const [content, told] = found;
      const sent = Uint8Array.from(atob(told), (each) => each.charCodeAt(0));
      const odd = new Uint8Array(sent.length + 3);
      odd.set(sent, 3);
      for (const each of [...listeners]) each(content, [new DataView(odd.buffer, 3)]);
    },
  };
  const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const bundle = await import(url);
  window.listeners = listeners;
  if (bundle.kernelSource) [window.source, window.end] = bundle.kernelSource(model);
  window.clear = await bundle.default.render({ model, el: document.getElementById("cell") });
}
"""
ASK = """
async (request) => {
  const tile = await window.source.tile(request);
  return tile && { ...tile, values: [...tile.values] };
}
"""


Answers = Callable[[dict[str, Any]], Any]


def no_answer(_: dict[str, Any]) -> None:
    """A kernel that is busy, or gone."""


def answers_of(matrix: ch.AttentionMatrix, asked: list[dict[str, Any]]) -> Answers:
    """Answer like the kernel, on the other side of the messages; record each request."""

    def answers(content: dict[str, Any]) -> tuple[dict[str, Any], str]:
        asked.append(content)
        found, numbers = answer(matrix, 0, content)
        about = {"kind": "answer", "id": content["id"], "found": found}
        return about, base64.b64encode(numbers).decode("ascii")

    return answers


@pytest.fixture
def widget(opens: Opens, tmp_path: Path) -> Callable[..., Page]:
    """A page with the widget in it: `widget(payload, answers)`."""

    def show(payload: Payload, answers: Answers | None = None) -> Page:
        path = tmp_path / "notebook.html"
        path.write_text(HOST.format(style=asset(f"{payload.kind}.css")), encoding="utf-8")
        page = opens(path.as_uri())
        page.expose_function("answer", answers or no_answer)
        content = base64.b64encode(payload.to_bytes()).decode("ascii")
        page.evaluate(MODEL, [asset(f"{payload.kind}.js"), content, answers is not None])
        return page

    return show


def trace() -> ch.types.Trace:
    rung = ladder.SelfAttention(3, head_dim=2)
    return ch.trace(rung, ladder.EXAMPLE_EMBEDDINGS, tokens=ladder.EXAMPLE_TOKENS)


def test_it_is_the_page(
    widget: Callable[..., Page], violations: Callable[[Page], list[str]]
) -> None:
    page = widget(trace_payload(trace()))
    told = page.locator(".reading")
    told.wait_for()
    assert page.get_by_role("heading", name="Your journey starts with one step").is_visible()
    assert page.locator("section[data-stage=scores] tbody td").count() == 36
    # Headings and landmarks of a notebook are its own, and its keys.
    assert [each for each in violations(page) if not each.startswith("region")] == []
    before = told.inner_text()
    page.keyboard.press("ArrowRight")
    assert told.inner_text() == before
    page.locator(".words button").first.focus()
    page.keyboard.press("ArrowRight")
    assert told.inner_text() != before
    page.evaluate("clear()")
    assert page.locator("#cell").inner_html() == ""


def request(rows: list[int], columns: list[int], cells: list[int]) -> dict[str, Any]:
    return {"layer": 0, "head": 1, "rows": rows, "columns": columns, "cells": cells}


def long_matrix() -> tuple[ch.AttentionMatrix, Payload]:
    """One that a page holds as a map only."""
    mask = ch.causal() & ch.sliding_window(left=500)
    matrix = ch.AttentionMatrix(*torch.randn(2, 1, 2, 1531, 4), mask=mask)
    return matrix, heads_payload([Run("", [Layer("", matrix)])], "a long text")


def test_tiles_come_from_the_kernel(widget: Callable[..., Page]) -> None:
    matrix, payload = long_matrix()
    asked: list[dict[str, Any]] = []
    page = widget(payload, answers_of(matrix, asked))
    page.get_by_role("heading", name="a long text").wait_for()
    wished = request([1000, 1011], [993, 1010], [11, 17])
    found = page.evaluate(ASK, wished)
    assert any(each.items() >= wished.items() for each in asked)  # the page asks for more by itself
    assert (found["rows"], found["columns"], found["cells"]) == (
        [1000, 1011],
        [993, 1010],
        [11, 17],
    )
    values = torch.tensor(found["values"]).view(11, 17)
    weights = matrix[0, 1, 1000:1011, 993:1010]
    hidden = weights == 0
    assert bool(hidden.any())
    assert bool((values[hidden] == -1).all())
    torch.testing.assert_close(values[~hidden], weights[~hidden], rtol=1e-5, atol=1e-7)
    numbers = page.evaluate("source.token(0, 1, 1234, 'query', new AbortController().signal)")
    place, weight = numbers["links"][0]
    row = matrix[0, 1, 1234]
    assert place == int(row.argmax())
    assert abs(weight - float(row.max())) <= 1e-6
    pair = page.evaluate(f"source.pair(0, 1, 1234, {place}, new AbortController().signal)")
    assert abs(pair["weight"] - weight) <= 1e-6


def test_without_a_kernel_the_page_shows_what_it_holds(widget: Callable[..., Page]) -> None:
    _, payload = long_matrix()
    page = widget(payload, no_answer)
    assert page.evaluate("listeners.size") == 2
    page.clock.install()  # nobody needs to sit through the wait
    asked = "(request) => { window.asked = window.source.tile(request); }"
    page.evaluate(asked, request([1000, 1011], [993, 1010], [11, 17]))
    page.clock.fast_forward(60_000)
    found = page.evaluate("window.asked")
    assert not found.get("exact")
    assert found["silent"] is True
    # It waits for the kernel once.
    quick = "async (request) => { const from = performance.now(); await source.tile(request);"
    quick += " return performance.now() - from < 2000; }"
    assert page.evaluate(quick, request([0, 11], [0, 17], [11, 17]))
    page.evaluate("clear()")
    page.evaluate("end()")
    assert page.evaluate("listeners.size") == 0
