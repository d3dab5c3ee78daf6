"""The page in a cell of a notebook: the widget of `view`.

The widget holds the payload of the page, as bytes, and answers messages of the page: {"kind": "ask", "id",
"what": "tile", "layer": 0, …} gets back {"kind": "answer", "id", "found"}, with numbers as the one buffer.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Unpack

import torch
from torch import Tensor

from clearhead._common.hints import with_hints
from clearhead._common.lazy import importing
from clearhead._common.memory import bytes_of
from clearhead.drawing.element.trace_page import trace_payload
from clearhead.drawing.page.head_page import heads_payload, read_run
from clearhead.drawing.page.page import asset
from clearhead.drawing.page.payload import Payload
from clearhead.drawing.page.photo import of_pictures, read_pictures, with_photos
from clearhead.drawing.page.runs import Run, Start, finite, layers_of
from clearhead.drawing.page.written import Written
from clearhead.errors import ArgumentError, ArgumentTypeError
from clearhead.matrix.map_tiles import cells_of, exact_tile, is_exact, stages_of_pair
from clearhead.matrix.matrix import AttentionMatrix, PageOptions
from clearhead.matrix.summary import Summary
from clearhead.reading.written_tokens import Writes
from clearhead.tracing.traced_call import Trace
from clearhead.watching.seen import Seen, with_texts

LINKS = 12
"""The strongest links of a token."""

Answer = tuple[dict[str, Any] | None, bytes]
UNKNOWN: Answer = None, b""


def answer(weights: AttentionMatrix | Summary, sample: int, request: Mapping[str, Any]) -> Answer:
    """Return the answer to a request of the page, and its numbers as bytes; (None, b"") if it cannot be answered.

    Args:
        weights: those of the layer; a summary has no query and key.
        sample: which sample of the batch.
        request: what (`tile`, `token` or `pair`), head, and what each of them takes.

    Example:
        >>> query = key = torch.randn(1, 2, 7, 4)
        >>> request = {"what": "tile", "head": 1, "rows": [0, 7], "columns": [2, 6], "cells": [4, 4]}
        >>> answer(ch.AttentionMatrix(query, key), 0, request)[0]
        {'rows': [0, 8, 4], 'columns': [2, 6, 4]}
    """
    if isinstance(weights, Summary):
        return UNKNOWN
    return ANSWERS[request["what"]](weights, sample, request)


def _tile(matrix: AttentionMatrix, sample: int, request: Mapping[str, Any]) -> Answer:
    """Return the ends and the number of rows and columns, and float32 values as bytes, −1 where everything is hidden.

    The request has `head`, (first, stop) of `rows` and `columns`, and in `cells` the most rows and columns.
    (None, b"") for a part too large to be computed exactly.
    """
    sides = request["rows"], request["columns"]
    if not is_exact(matrix.problem, *(stop - first for first, stop in sides)):
        return UNKNOWN  # the page has a map that is fine enough for so large a part
    rows, columns = (
        cells_of(first, stop, most)
        for (first, stop), most in zip(sides, request["cells"], strict=True)
    )
    head = request["head"]
    tile = exact_tile(matrix.problem, _totals(matrix)[sample, head], sample, head, rows, columns)
    ends = {
        name: [cells.start, cells.start + len(cells) * cells.step, len(cells)]
        for name, cells in (("rows", rows), ("columns", columns))
    }
    return ends, bytes_of(tile.values.masked_fill(tile.hidden, -1.0))


def _token(matrix: AttentionMatrix, sample: int, request: Mapping[str, Any]) -> Answer:
    """Return {"links": [[place, weight]]}, a token's largest weights as a query or key, and no bytes.

    The request has `head`, `token` and `side`, "query" or "key". These are at most LINKS weights, without zeros. A
    weight that is not finite is None.
    """
    head, token, as_key = request["head"], request["token"], request["side"] == "key"
    rows, columns = range(token, token + 1), range(matrix.kv_len)
    if as_key:
        rows, columns = range(matrix.query_len), rows
    tile = exact_tile(matrix.problem, _totals(matrix)[sample, head], sample, head, rows, columns)
    weights = tile.values.flatten().double()
    best = weights.topk(min(LINKS, len(weights)))
    links = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return {"links": [[place, finite(weight)] for place, weight in links if weight != 0]}, b""


def _pair(matrix: AttentionMatrix, sample: int, request: Mapping[str, Any]) -> Answer:
    """Return the stages of a pair of a query and a key by name, without those that are None; and b"".

    The request has `head`, `query` and `key`. Numbers that are not finite are None.
    """
    places = request["head"], request["query"], request["key"]
    stages = stages_of_pair(matrix.problem, sample, *places)._asdict()
    return {
        name: [finite(number) for number in value] if isinstance(value, tuple) else finite(value)
        for name, value in stages.items()
        if value is not None
    }, b""


ANSWERS: Mapping[str, Callable[[AttentionMatrix, int, Mapping[str, Any]], Answer]] = {
    "tile": _tile,
    "token": _token,
    "pair": _pair,
}


def _totals(matrix: AttentionMatrix) -> Tensor:
    """Return the logsumexp of each query, (batch, num_heads, query_len)."""
    problem = matrix.problem
    with torch.no_grad():
        return matrix.logsumexp.reshape(problem.batch, problem.num_heads, problem.query_len)


@with_hints
def view(
    thing: Seen[Any] | AttentionMatrix | Summary | Trace,
    *,
    writes: Writes | None = None,
    words: Callable[[int], str] | Sequence[str] | None = None,
    **page: Unpack[PageOptions],
) -> Any:
    """Return a widget that shows an interactive page of a record, a matrix or a trace in a notebook.

    It is a widget of anywidget, which works in JupyterLab, VS Code, Colab and marimo. Nothing is
    fetched from a network. While the kernel runs, zooming into a long text asks it for exact tiles; without a
    kernel, in a notebook that was saved with its widgets, the page shows what it holds.

    Args:
        thing: the record, matrix, summary or trace to show.
        tokens: what the queries are, as strings or ids, one for each token; those that were saved
            with it, if None. A trace has its own.
        source_tokens: what the keys are, in attention between two texts.
        sample: which row of the batch. A page of a trace has all to choose from.
        start: the layer and the head that it opens with, or the state of a page as its address has
            it, `"head=5.11&without=first"`; None takes the link that stands out most.
        pin: the query and the key that are pinned, as tokens or places: `pin=("it", "animal")`.
        writes: the tokens that each head raises and lowers, as `Seen.to_html` takes them, or None.
        words: the words of these tokens, as `Seen.to_html` takes them.
        images, grid, image_token, skip: pictures and where their patches are among the tokens, as `Seen.to_html`
            takes them.

    Returns:
        The widget; a cell that ends in it draws it.

    Raises:
        MissingExtraError: if anywidget is not installed.
        ArgumentTypeError: code `view.type`, for anything else; masks and reports draw themselves.
        ArgumentError: code `view.trace`, for tokens, a sample, a start, a picture or writes of a trace.
        ClearheadError: for tokens that do not fit, or nothing that attended.

    Example:
        >>> query = key = torch.randn(1, 2, 5, 4)
        >>> widget = ch.view(ch.AttentionMatrix(query, key), tokens=["to", "be", "or", "not", "to"])
        >>> widget.payload[:9]
        b'clearhead'
    """
    if isinstance(thing, Trace):
        given = {**page, "writes": writes, "words": words}
        counts = [given.pop(name, 0) for name in ("sample", "skip")]
        if any(each is not None for each in given.values()) or counts != [0, 0]:
            raise ArgumentError(
                "view.trace",
                "a trace has tokens of its own, and all of its samples, and no picture; "
                "trace(…, tokens=…) takes them.",
            )
        return _widget_class("trace")(trace_payload(thing), None)
    if isinstance(thing, Seen):
        thing.need_attention("view")
        page, layers = with_texts(thing, page), layers_of(thing)
    elif isinstance(thing, AttentionMatrix | Summary):
        layers = [("", thing)]
    else:
        raise ArgumentTypeError(
            "view.type",
            "view takes what a watch has seen, an AttentionMatrix, a Summary or a Trace; got "
            f"{type(thing).__name__}. A mask or a report draws itself at the end of a cell.",
        )
    written = Written.of(writes, words)
    pictured, sample = read_pictures(page), page.get("sample", 0)
    run = read_run(layers, pictured.tokens, pictured.source_tokens, sample)
    (run,), pictured = of_pictures([run], pictured)
    title, start = repr(thing).splitlines()[0], Start(page.get("start"), page.get("pin"))
    payload = with_photos(heads_payload([run], title, start=start, writes=written), pictured)
    known = any(isinstance(layer.weights, AttentionMatrix) for layer in run.layers)
    return _widget_class("heads")(payload, run if known else None)


@cache
def _widget_class(kind: str) -> Any:
    """Return the widget class for one kind of page, made once, on first use; MissingExtraError without anywidget."""
    with importing("anywidget", "traitlets", extra="notebook", purpose="a widget in a notebook"):
        import anywidget
        import traitlets

    class Page(anywidget.AnyWidget):
        """A page of clearhead as a widget."""

        _esm = asset(f"{kind}.js")
        _css = asset(f"{kind}.css")
        payload = traitlets.Bytes().tag(sync=True)
        exact = traitlets.Bool().tag(sync=True)

        def __init__(self, payload: Payload, run: Run | None) -> None:
            """Show a payload, with exact tiles from the weights of `run`; none if it is None."""
            super().__init__(payload=payload.to_bytes(), exact=run is not None)
            self._title, self._run = payload.title, run
            self.on_msg(self._receive)

        def __repr__(self) -> str:
            """Return the title of the page, after "view of"."""
            return f"view of {self._title}"

        def _receive(self, _: object, content: object, buffers: object) -> None:
            """Send the answer to a message of the kind "ask"; ignore others, and all without weights."""
            if self._run is None or not isinstance(content, Mapping):
                return
            if content.get("kind") == "ask":
                layer = self._run.layers[content["layer"]]
                sample = (layer.picture or self._run).sample
                found, numbers = answer(layer.weights, sample, content)
                self.send({"kind": "answer", "id": content["id"], "found": found}, [numbers])

    return Page
