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
from clearhead.drawing.notebook import answer, tile_bytes
from clearhead.drawing.page import asset
from clearhead.drawing.payload import Payload
from clearhead.drawing.steps import steps_payload
from clearhead.drawing.tile_store import Pending, Tiles
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
      const [content, tile] = await window.answer(asked);
      const buffers = [];
      if (tile !== null) {
        const sent = Uint8Array.from(atob(tile), (each) => each.charCodeAt(0));
        const odd = new Uint8Array(sent.length + 3);
        odd.set(sent, 3);
        buffers.push(new DataView(odd.buffer, 3));
      }
      for (const told of [...listeners]) told(content, buffers);
    },
  };
  const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const bundle = await import(url);
  window.listeners = listeners;
  window.source = new bundle.WidgetSource(model);
  window.clear = await bundle.default.render({ model, el: document.getElementById("cell") });
}
"""
ASK = """
async (request) => {
  const tile = await window.source.tile(request);
  return tile && { ...tile, values: [...tile.values] };
}
"""


def no_answer(_: dict[str, Any]) -> tuple[dict[str, Any], None]:
    return {}, None


@pytest.fixture
def widget(opens: Opens, tmp_path: Path) -> Callable[..., Page]:
    """A page with the widget in it: `widget(payload, answers)`."""

    def show(payload: Payload, answers: Callable[[dict[str, Any]], Any] | None = None) -> Page:
        path = tmp_path / "notebook.html"
        path.write_text(HOST.format(style=asset("page.css")), encoding="utf-8")
        page = opens(path.as_uri())
        page.expose_function("answer", answers or no_answer)
        content = base64.b64encode(payload.to_bytes()).decode("ascii")
        page.evaluate(MODEL, [asset("page.js"), content, answers is not None])
        return page

    return show


def trace() -> ch.Trace:
    rung = ladder.SelfAttention(3, head_dim=2)
    return ch.trace(rung, ladder.EXAMPLE_EMBEDDINGS, tokens=ladder.EXAMPLE_TOKENS)


def test_it_is_the_page(
    widget: Callable[..., Page], violations: Callable[[Page], list[str]]
) -> None:
    page = widget(steps_payload(trace()))
    page.locator(".ch-told").wait_for()
    assert page.get_by_role("heading", name="trace of SelfAttention").is_visible()
    assert page.locator("section[data-stage=weights] tbody td").count() == 36
    # Headings and landmarks of a notebook are its own.
    assert [each for each in violations(page) if not each.startswith("region")] == []


def test_it_leaves_the_keys_of_the_notebook_alone(widget: Callable[..., Page]) -> None:
    page = widget(steps_payload(trace()))
    told = page.locator(".ch-told")
    told.wait_for()
    before = told.inner_text()
    page.keyboard.press("ArrowRight")
    assert told.inner_text() == before
    page.locator(".ch-strip").focus()
    page.keyboard.press("ArrowRight")
    assert told.inner_text() != before


def test_it_takes_itself_away(widget: Callable[..., Page]) -> None:
    page = widget(steps_payload(trace()))
    page.locator(".ch-told").wait_for()
    assert page.evaluate("listeners.size") == 2
    page.evaluate("clear()")
    page.evaluate("source.close()")
    assert page.locator("#cell").inner_html() == ""
    assert page.evaluate("listeners.size") == 0


def request(rows: list[int], columns: list[int], cells: list[int]) -> dict[str, Any]:
    return {"layer": 0, "head": 1, "rows": rows, "columns": columns, "cells": cells}


def test_tiles_come_from_the_kernel(widget: Callable[..., Page]) -> None:
    matrix = ch.AttentionMatrix(
        *torch.randn(2, 1, 2, 31, 4), mask=ch.causal() & ch.sliding_window(left=5)
    )
    tiles = Tiles([matrix])
    asked = []

    def answers(content: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
        asked.append(content)
        told, buffers = answer(tiles, content)
        tile = base64.b64encode(buffers[0]).decode("ascii") if buffers else None
        return {"kind": "tile", "id": content["id"], **told}, tile

    page = widget(steps_payload(trace()), answers)
    found = page.evaluate(ASK, request([7, 18], [3, 20], [11, 17]))
    assert asked[-1]["kind"] == "tile"
    assert (found["rows"], found["columns"], found["cells"]) == ([7, 18], [3, 20], [11, 17])
    values = torch.tensor(found["values"]).view(11, 17)
    weights = matrix[0, 1, 7:18, 3:20]
    hidden = weights == 0
    assert bool(hidden.any())
    assert bool((values[hidden] == -1).all())
    torch.testing.assert_close(values[~hidden], weights[~hidden], rtol=1e-6, atol=1e-7)
    # What the kernel refuses, the page answers from what it holds.
    assert page.evaluate(ASK, request([0, 99], [0, 9], [9, 9])) is None
    tiles.close()


def test_a_tile_that_takes_long_is_asked_for_again(widget: Callable[..., Page]) -> None:
    tiles = Tiles([ch.AttentionMatrix(*torch.randn(2, 1, 2, 5, 4))])
    asked = []

    def answers(content: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
        asked.append(content["id"])
        told = {"kind": "tile", "id": content["id"]}
        if len(asked) < 3:
            return {**told, "done": 0.5}, None
        found = tiles.tile(0, 1, (0, 5), (0, 5), (5, 5))
        assert not isinstance(found, Pending)
        return told, base64.b64encode(tile_bytes(found)).decode("ascii")

    page = widget(steps_payload(trace()), answers)
    found = page.evaluate(ASK, request([0, 5], [0, 5], [5, 5]))
    assert len(found["values"]) == 25
    assert asked == [1, 2, 3]
    tiles.close()
