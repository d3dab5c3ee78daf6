"""The page in a cell of a notebook: `view`.

The widget holds the payload of the page, as bytes, and answers for tiles of what is looked at: the
page asks {"kind": "tile", "id", "layer", "head", "rows", "columns", "cells"}, as a message of its
own, and gets {"kind": "tile", "id"} back, with the tile as the one buffer, with "done", which share
of the work is done before there is one, or with "error".
"""

import ctypes
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from torch import Tensor

from clearhead.drawing.heads import Layer, Run, heads_payload
from clearhead.drawing.page import asset
from clearhead.drawing.payload import Payload
from clearhead.drawing.steps import steps_payload
from clearhead.drawing.texts import read_text
from clearhead.drawing.tile_store import Pending, Tiles
from clearhead.drawing.tiles import Tile
from clearhead.errors import ArgumentError, ArgumentTypeError, ClearheadError, missing_extra
from clearhead.matrix import AttentionMatrix
from clearhead.seen import Seen
from clearhead.summary import Summary
from clearhead.tracing import Trace

ASKED = {"layer", "head", "rows", "columns", "cells"}


def view(
    thing: Seen[Any] | AttentionMatrix | Summary | Trace,
    *,
    tokens: Sequence[str] | Sequence[int] | Tensor | None = None,
    source_tokens: Sequence[str] | Sequence[int] | Tensor | None = None,
    sample: int = 0,
) -> Any:
    """The page of what was seen, of a matrix or of a trace, to look around in, inside a notebook.

    It is a widget of anywidget (JupyterLab, VS Code, Colab, marimo). Nothing is fetched from a
    network. While the kernel runs, zooming into a long text asks it for exact tiles; without a
    kernel, in a notebook that was saved with its widgets, the page shows what it holds.

    Args:
        thing: what to look at.
        tokens: what the queries are, as strings or ids, one for each token; those that were saved
            with it, if None. A trace has its own.
        source_tokens: what the keys are, in attention between two texts.
        sample: which row of the batch. A page of a trace has all to choose from.

    Returns:
        The widget; a cell that ends in it draws it.

    Raises:
        MissingExtraError: if anywidget is not installed.
        ArgumentTypeError: code `view.type`, for anything else; masks, summaries and reports draw
            themselves.
        ArgumentError: code `view.trace`, for tokens or a sample of a trace.
        ClearheadError: for tokens that do not fit, or nothing that attended.

    Example:
        >>> query = key = torch.randn(1, 2, 5, 4)
        >>> widget = ch.view(ch.AttentionMatrix(query, key), tokens=["to", "be", "or", "not", "to"])
        >>> widget.payload[:9]
        b'clearhead'
    """
    made = _widget()
    if isinstance(thing, Trace):
        if tokens is not None or source_tokens is not None or sample != 0:
            raise ArgumentError(
                "view.trace",
                "a trace has tokens of its own, and all of its samples; trace(…, tokens=…) takes "
                "them.",
            )
        return made(steps_payload(thing), None)
    layers = _layers(thing)
    if isinstance(thing, Seen):
        tokens = thing.tokens if tokens is None else tokens
        source_tokens = thing.source_tokens if source_tokens is None else source_tokens
    text, source = (
        None if given is None else read_text(name, given, sample)
        for name, given in (("tokens", tokens), ("source_tokens", source_tokens))
    )
    run = Run("", layers, text, source, sample)
    payload = heads_payload([run], repr(thing).splitlines()[0])
    matrices = [layer.seen for layer in layers if isinstance(layer.seen, AttentionMatrix)]
    # Layers are counted alike on both sides.
    return made(payload, Tiles(matrices, sample=sample) if len(matrices) == len(layers) else None)


def _layers(thing: object) -> list[Layer]:
    if isinstance(thing, AttentionMatrix | Summary):
        return [Layer("", thing)]
    if not isinstance(thing, Seen):
        raise ArgumentTypeError(
            "view.type",
            "view takes what a watch has seen, an AttentionMatrix, a Summary or a Trace; got "
            f"{type(thing).__name__}. A mask or a report draws itself at the end of a cell.",
        )
    found = []
    for name in thing.layers:
        whole = thing._modules[name].whole()
        calls = thing.calls(name) if whole is None else (whole,)
        for number, call in enumerate(calls):
            found.append(Layer(name if len(calls) == 1 else f"{name} call {number}", call))
    return found


@cache
def _widget() -> Any:
    """The class of the widget, which is made when somebody wants one."""
    try:
        import anywidget
        import traitlets
    except ModuleNotFoundError as error:
        if error.name not in ("anywidget", "traitlets"):
            raise
        raise missing_extra("anywidget", "notebook", "a widget in a notebook") from error

    class Page(anywidget.AnyWidget):
        """A page of clearhead as a widget."""

        _esm = asset("page.js")
        _css = asset("page.css")
        payload = traitlets.Bytes().tag(sync=True)
        exact = traitlets.Bool().tag(sync=True)

        def __init__(self, payload: Payload, tiles: Tiles | None) -> None:
            super().__init__(payload=payload.to_bytes(), exact=tiles is not None)
            self._title = payload.title
            self._tiles = tiles
            self.on_msg(self._receive)

        def __repr__(self) -> str:
            return f"view of {self._title}"

        def close(self) -> None:
            """Take it away, and end what is worked out for it."""
            if self._tiles is not None:
                self._tiles.close()
            super().close()

        def _receive(self, _: object, content: object, buffers: object) -> None:
            if self._tiles is None or not isinstance(content, Mapping):
                return
            if content.get("kind") == "tile":
                told, tile = answer(self._tiles, content)
                self.send({"kind": "tile", "id": content.get("id"), **told}, tile)

    return Page


def answer(tiles: Tiles, asked: Mapping[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    """What is sent back for a tile that was asked for: what to say, and buffers.

    Example:
        >>> tiles = Tiles([AttentionMatrix(torch.eye(3), torch.eye(3))])
        >>> whole = {"layer": 0, "head": 0, "rows": [0, 3], "columns": [0, 3], "cells": [3, 3]}
        >>> told, (tile,) = answer(tiles, whole)
        >>> told, len(tile)
        ({}, 60)
        >>> answer(tiles, {**whole, "head": 7})[0]
        {'error': '[tile.head] layer 0 has 1 heads; got number 7.'}
        >>> tiles.close()
    """
    try:
        given = {name: asked[name] for name in ASKED}
        pairs = [given[name] for name in ("rows", "columns", "cells")]
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
            return {"error": "rows, columns and cells must be pairs."}, []
        rows, columns, cells = (tuple(pair) for pair in pairs)
        found = tiles.tile(given["layer"], given["head"], rows, columns, cells)
    except (ClearheadError, TypeError) as error:
        return {"error": str(error)}, []
    except KeyError as error:
        return {"error": f"{error.args[0]} is missing."}, []
    if isinstance(found, Pending):
        return {"done": found.done}, []
    return {}, [tile_bytes(found)]


def tile_bytes(tile: Tile) -> bytes:
    """A tile as it is sent, little-endian.

        uint32 × 6: first query, one past the last, rows; the same for keys and columns
        float32 × rows × columns: the values; −1 where everything is hidden

    The last row and column may reach beyond the last token, so that all are of one size.

    Example:
        >>> tile = Tile(torch.ones(1, 2), torch.eye(2).bool()[:1], range(0, 3, 4), range(2))
        >>> struct.unpack("<6I2f", tile_bytes(tile))
        (0, 4, 1, 0, 2, 2, -1.0, 1.0)
    """
    ends: list[int] = []
    for cells in (tile.rows, tile.columns):
        ends += [cells.start, cells.start + len(cells) * cells.step, len(cells)]
    values = tile.values.masked_fill(tile.hidden, -1.0).cpu().contiguous()
    return struct.pack("<6I", *ends) + ctypes.string_at(values.data_ptr(), values.nbytes)
