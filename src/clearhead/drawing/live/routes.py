"""The routes to tiles, and what each answers to whoever asks: a browser, or a notebook's widget."""

import json
import math
import re
import struct
import sys
from collections.abc import Callable
from functools import partial
from urllib.parse import parse_qs

from clearhead._common.memory import bytes_of
from clearhead._text import raised_words, shown
from clearhead.drawing.live.tile_store import Pending, Tiles
from clearhead.drawing.page.written import AskedWrites
from clearhead.errors import ArgumentError, ClearheadError
from clearhead.matrix.tiles import MapTile

MOST_QUERY = 1024
"""Characters after the question mark."""

TEXT, JSON = "text/plain; charset=utf-8", "application/json"
HTML, BYTES = "text/html; charset=utf-8", "application/octet-stream"

Answer = tuple[int, str, bytes]
Routes = dict[str, Callable[[dict[str, str]], Answer]]

NOTHING: Answer = 204, TEXT, b""
"""For a layer whose query and key are not known."""


def routes_to(tiles: Tiles, writes: AskedWrites | None = None) -> Routes:
    """Return the routes to tiles, `tile`, `token` and `pair`, and `writes` to what heads write, if it can be asked.

    Example:
        >>> tiles = Tiles([ch.AttentionMatrix(torch.eye(3), torch.eye(3))])
        >>> answer(routes_to(tiles), "token", "layer=0&head=0&token=9")[:2]
        (400, 'text/plain; charset=utf-8')
        >>> tiles.close()
    """
    return {
        "tile": partial(_tile, tiles),
        "token": partial(_token, tiles),
        "pair": partial(_pair_stages, tiles),
    } | ({} if writes is None else {"writes": partial(_writes, writes)})


def answer(routes: Routes, route: str, query: str) -> Answer:
    """Answer a request for a route, with the part behind the question mark."""
    if len(query) > MOST_QUERY:
        return refusal(400, f"A query has up to {MOST_QUERY} characters; got {len(query)}.")
    send = routes.get(route)
    if send is None:
        return refusal(404, "There is nothing here.")
    try:
        return send(_fields(query))
    except ClearheadError as error:
        return refusal(400, str(error))
    except MemoryError:
        return refusal(503, "There is not enough memory for this now.")
    except Exception as error:
        # The page says that something went wrong; what, is for the terminal.
        print(f"clearhead: {raised_words(error)}", file=sys.stderr)
        return refusal(500, "Something went wrong; the terminal says what.")


def _tile(tiles: Tiles, query: dict[str, str]) -> Answer:
    (layer,), (head,), rows, columns, cells = fields_of(
        query, layer=1, head=1, rows=2, columns=2, cells=2
    )
    tile = tiles.tile(layer, head, _pair(rows), _pair(columns), _pair(cells))
    if tile is None:
        return NOTHING
    if isinstance(tile, Pending):
        # Accepted, not done: whoever asks again gets the tile, or how far it is.
        return _json(202, {"done": tile.done})
    return 200, BYTES, tile_bytes(tile)


def _token(tiles: Tiles, query: dict[str, str]) -> Answer:
    side = query.pop("side", "query")
    if side not in ("query", "key"):
        raise ArgumentError("serve.query", f"side must be query or key; got {shown(side)}.")
    (layer,), (head,), (place,) = fields_of(query, layer=1, head=1, token=1)
    found = tiles.token(layer, head, place, as_key=side == "key")
    if found is None:
        return NOTHING
    return _json(
        200,
        {
            "links": [[place, _number(weight)] for place, weight in found.links],
            "total": _number(found.total),
            "entropy": None if found.entropy is None else _number(found.entropy),
        },
    )


def _pair_stages(tiles: Tiles, query: dict[str, str]) -> Answer:
    (layer,), (head,), (row,), (column,) = fields_of(query, layer=1, head=1, query=1, key=1)
    found = tiles.pair(layer, head, row, column)
    if found is None:
        return NOTHING
    content = {
        name: [_number(each) for each in value] if isinstance(value, tuple) else _number(value)
        for name, value in found._asdict().items()
        if value is not None
    }
    return _json(200, content)


def _writes(writes: AskedWrites, query: dict[str, str]) -> Answer:
    (layer,), (head,), (row,) = fields_of(query, layer=1, head=1, query=1)
    found = writes.at(layer, head, row)
    if found is None:
        return NOTHING
    content = {side: [[word, _number(by)] for word, by in every] for side, every in found.items()}
    return _json(200, content)


def tile_bytes(tile: MapTile) -> bytes:
    """Encode a tile as it is sent, little-endian.

        uint32 × 6: first query, one past the last, rows; the same for keys and columns
        float32 × rows × columns: the values; −1 where everything is hidden

    The last row and column may reach beyond the last token, so that all are of one size.

    Example:
        >>> import torch
        >>> tile = MapTile(torch.ones(1, 2), torch.eye(2).bool()[:1], range(0, 3, 4), range(2))
        >>> struct.unpack("<6I2f", tile_bytes(tile))
        (0, 4, 1, 0, 2, 2, -1.0, 1.0)
    """
    ends = []
    for cells in (tile.rows, tile.columns):
        ends += [cells.start, cells.start + len(cells) * cells.step, len(cells)]
    values = tile.values.masked_fill(tile.hidden, -1.0)
    return struct.pack("<6I", *ends) + bytes_of(values)


def refusal(status: int, words: str) -> Answer:
    return status, TEXT, f"{words}\n".encode("utf-8", "backslashreplace")


def _json(status: int, content: object) -> Answer:
    return status, JSON, json.dumps(content, allow_nan=False).encode()


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None


def _fields(query: str) -> dict[str, str]:
    """The fields of a query, each once."""
    if not query:
        return {}
    try:
        found = parse_qs(query, keep_blank_values=True, strict_parsing=True, max_num_fields=16)
    except ValueError as error:
        raise ArgumentError(
            "serve.query", f"a query is name=value&…; got {shown(query)}."
        ) from error
    for name, values in found.items():
        if len(values) > 1:
            raise ArgumentError("serve.query", f"{shown(name)} must be given once.")
    return {name: values[0] for name, values in found.items()}


def fields_of(query: dict[str, str], /, **counts: int) -> list[tuple[int, ...]]:
    """Return the fields of a query as integers; `counts` gives the number of integers of each."""
    if query.keys() != counts.keys():
        raise ArgumentError(
            "serve.query",
            f"the query must have the fields {', '.join(counts) or 'none'}; got "
            f"{', '.join(query) or 'none'!s:.80}.",
        )
    found = []
    for name, count in counts.items():
        parts = query[name].split(",")
        if len(parts) != count or not all(re.fullmatch("[0-9]{1,10}", part) for part in parts):
            words = "a whole number" if count == 1 else f"{count} whole numbers, with a comma"
            raise ArgumentError("serve.query", f"{name} must be {words}; got {shown(query[name])}.")
        found.append(tuple(map(int, parts)))
    return found


def _pair(numbers: tuple[int, ...]) -> tuple[int, int]:
    first, second = numbers
    return first, second
