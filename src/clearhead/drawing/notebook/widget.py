"""The page in a cell of a notebook: the widget of `view`.

The widget holds the payload of the page, as bytes, and answers messages of the page: {"kind": "ask", "id",
"what": "tile", "layer": 0, …} gets back {"kind": "answer", "id", "found"}, with numbers as the one buffer.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Unpack

from clearhead._common.hints import with_hints
from clearhead._common.lazy import importing
from clearhead.drawing.element.trace_page import trace_payload
from clearhead.drawing.notebook.exact_tiles import answer
from clearhead.drawing.page.head_page import heads_payload, read_run
from clearhead.drawing.page.page import asset
from clearhead.drawing.page.payload import Payload
from clearhead.drawing.page.photo import of_pictures, read_pictures, with_photos
from clearhead.drawing.page.runs import Run, layers_of
from clearhead.drawing.page.starts import Start
from clearhead.drawing.page.written import Written
from clearhead.errors import ArgumentError, ArgumentTypeError
from clearhead.matrix.matrix import AttentionMatrix, PageOptions
from clearhead.matrix.summary import Summary
from clearhead.reading.written_tokens import Writes
from clearhead.tracing.trace import Trace
from clearhead.watching.seen import Seen, with_texts


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
    known = any(matrix is not None for matrix in run.matrices)
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
            super().__init__(payload=payload.to_bytes(), exact=run is not None)
            self._title, self._run = payload.title, run
            self.on_msg(self._receive)

        def __repr__(self) -> str:
            return f"view of {self._title}"

        def _receive(self, _: object, content: object, buffers: object) -> None:
            if self._run is None or not isinstance(content, Mapping):
                return
            if content.get("kind") == "ask":
                run = self._run.layers[content["layer"]].picture or self._run
                found, numbers = answer(self._run.matrices, run.sample, content)
                self.send({"kind": "answer", "id": content["id"], "found": found}, [numbers])

    return Page
