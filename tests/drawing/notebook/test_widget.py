"""The widget, on the side of Python: what it holds, and what it answers."""

import sys
import zlib
from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead import ladder
from clearhead.drawing.element.trace_page import trace_payload
from clearhead.drawing.notebook import widget as notebook
from clearhead.drawing.notebook.widget import answer
from clearhead.drawing.page.payload import MAGIC
from clearhead.errors import MissingExtraError
from tests.refusals import refusals

QUERIES, KEYS = 5, 7


def matrix() -> ch.AttentionMatrix:
    return ch.AttentionMatrix(torch.randn(2, 3, QUERIES, 4), torch.randn(2, 3, KEYS, 4))


def asked(what: str, layer: int = 0, head: int = 1, **places: Any) -> dict[str, Any]:
    return {"kind": "ask", "id": 41, "what": what, "layer": layer, "head": head, **places}


WHOLE = asked("tile", rows=[0, QUERIES], columns=[0, KEYS], cells=[QUERIES, KEYS])


def values_of(found: dict[str, Any], numbers: bytes) -> Tensor:
    cells = found["rows"][2], found["columns"][2]
    return torch.frombuffer(bytearray(numbers), dtype=torch.float32).view(*cells)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """The messages that widgets send."""
    messages: list[tuple[Any, Any]] = []
    monkeypatch.setattr(
        notebook._widget_class("heads"),
        "send",
        lambda _, content, buffers=None: messages.append((content, buffers)),
    )
    return messages


def test_a_trace_is_the_payload_of_its_page() -> None:
    trace = ch.trace(ladder.SimpleAttention(), ladder.EXAMPLE_EMBEDDINGS)
    widget = ch.view(trace)
    assert widget.payload == trace_payload(trace).to_bytes()
    assert not widget.exact
    assert repr(widget) == "view of trace of SimpleAttention"
    for each, kind in ((widget, "trace"), (ch.view(matrix()), "heads")):
        assert each._esm == notebook.asset(f"{kind}.js")
        assert each._css == notebook.asset(f"{kind}.css")
        each.close()


def test_a_tile_is_exact(sent: list[tuple[Any, Any]]) -> None:
    weights = matrix()
    widget = ch.view(weights, sample=1)
    assert widget.exact
    request = WHOLE | {"rows": [1, 4], "cells": [3, 7]}
    widget._receive(widget, request, [])
    ((content, (numbers,)),) = sent
    found = {"rows": [1, 4, 3], "columns": [0, 7, 7]}
    assert content == {"kind": "answer", "id": 41, "found": found}
    values = values_of(found, numbers)
    # The kernel of the whole row and that of a tile add up in another order.
    expected = weights[1, 1, 1:4].double()
    torch.testing.assert_close(values.double(), expected, rtol=1e-6, atol=1e-7)
    widget.close()


def test_layers_that_attended_are_counted_alike(sent: list[tuple[Any, Any]]) -> None:
    model = torch.nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=2) for _ in range(2)))
    with ch.watch(model) as seen:
        model(torch.randn(1, QUERIES, 8))
    widget = ch.view(seen)
    request = WHOLE | {"layer": 1, "columns": [0, 5], "cells": [5, 5]}
    widget._receive(widget, request, [])
    ((content, (numbers,)),) = sent
    values = values_of(content["found"], numbers)
    torch.testing.assert_close(values, seen[1][0, 1], rtol=1e-6, atol=1e-7)
    widget.close()


def test_words_of_a_text_that_is_looked_at() -> None:
    decoder = torch.nn.TransformerDecoderLayer(8, nhead=2, batch_first=True)
    with ch.watch(decoder, layers="multihead_attn") as seen:
        decoder(torch.randn(1, 2, 8), torch.randn(1, 2, 8))
    widget = ch.view(seen, source_tokens=["hello", "again"])
    assert b'"again"' in zlib.decompressobj().decompress(widget.payload[len(MAGIC) + 4 :])
    widget.close()


@pytest.mark.parametrize("content", [None, "ask", {}, {"kind": "other"}, WHOLE])
def test_other_messages_are_not_answered(sent: list[tuple[Any, Any]], content: Any) -> None:
    """Nor is any for a summary, which has no tiles."""
    widget = ch.view(matrix().summary() if content == WHOLE else matrix())
    assert widget.exact == (content != WHOLE)
    widget._receive(widget, content, [])
    assert sent == []
    widget.close()


def test_what_the_kernel_does_not_compute_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    known = matrix()
    assert answer(known.summary(), 0, WHOLE) == (None, b"")
    monkeypatch.setattr("clearhead.matrix.map_tiles.EXACT_PAIRS", QUERIES * KEYS - 1)
    assert answer(known, 0, WHOLE) == (None, b"")
    assert answer(known, 0, WHOLE | {"rows": [0, 2]})[0] is not None


def test_what_is_no_number_is_none() -> None:
    query = torch.full((3, 2), torch.nan)
    known = ch.AttentionMatrix(query, query)
    found, _ = answer(known, 0, asked("pair", head=0, query=1, key=0))
    assert found is not None
    assert (found["score"], found["weight"]) == (None, None)


def test_the_numbers_of_a_token(sent: list[tuple[Any, Any]]) -> None:
    weights = matrix()
    widget = ch.view(weights)
    widget._receive(widget, asked("token", head=2, token=3, side="query"), [])
    ((content, _),) = sent
    links = content["found"]["links"]
    best = weights[0, 2, 3].topk(2)
    assert [place for place, _ in links[:2]] == best.indices.tolist()
    found, _ = answer(weights, 0, asked("token", head=2, token=4, side="key"))
    assert found is not None
    assert found["links"][0][0] == int(weights[0, 2, :, 4].argmax())
    found, _ = answer(weights, 0, asked("pair", head=2, query=3, key=4))
    assert found is not None
    assert found["weight"] == pytest.approx(float(weights[0, 2, 3, 4]), rel=1e-5)
    widget.close()


TRACE = ch.trace(ladder.SimpleAttention(), ladder.EXAMPLE_EMBEDDINGS)
test_what_has_no_view = refusals(
    lambda given: ch.view(given[0], **given[1]),
    ((ch.causal(), {}), "view.type", "Causal"),
    ((torch.eye(2), {}), "view.type", "Tensor"),
    *(
        ((TRACE, {name: value}), "view.trace", "… // …")
        for name, value in (("tokens", ["a"] * 6), ("sample", 1), ("grid", (2, 3)), ("skip", 1))
    ),
)


def test_without_anywidget_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    notebook._widget_class.cache_clear()
    # What is None there is not found, and has no name that says so.
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[notebook\]'"):
        ch.view(matrix())
    notebook._widget_class.cache_clear()
