"""A page, live: a server on this machine alone that hands out exact tiles as one zooms.

It listens on the loopback interface. Whoever has no token in the address gets nothing, and a page
of somebody else's that asks through a name of its own (DNS rebinding) gives itself away by the host
it names. It answers GET, from a fixed table; no path from a request ever opens a file, and nothing
is written.
"""

import ctypes
import hmac
import json
import math
import re
import secrets
import socket
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from clearhead.drawing.live.tile_store import Pending, Tiles
from clearhead.drawing.live.tiles import Tile
from clearhead.drawing.page.heads import Layer, Progress, Run, heads_payload
from clearhead.drawing.page.page import page, policy
from clearhead.drawing.page.payload import Payload
from clearhead.drawing.page.texts import read_text
from clearhead.errors import ArgumentError, ClearheadError
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.watching.seen import Seen
from clearhead.watching.token_ids import Tokens

HOST = "127.0.0.1"

OWN = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?", re.IGNORECASE)
"""What a browser names as the host. Of any port: a tunnel may begin at another."""

MOST_QUERY = 1024
"""Characters after the question mark."""

MOST_AT_ONCE = 32
"""Requests that are answered at a time; more are turned away."""

SECONDS = 10.0
"""How long a request may take to arrive, and an answer to be taken."""

MOST_DRAINED = 1 << 21
"""Bytes of a refused request that are read, so that its sender sees why."""

HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

TEXT, JSON = "text/plain; charset=utf-8", "application/json"
HTML, BYTES = "text/html; charset=utf-8", "application/octet-stream"

Answer = tuple[int, str, bytes]
Routes = dict[str, Callable[[dict[str, str]], Answer]]

NOTHING: Answer = 204, TEXT, b""
"""For a layer whose query and key are not known."""


class Server:
    """Serves a payload and the tiles that belong to it, until it is closed.

    Args:
        payload: what the page draws.
        tiles: where exact tiles come from; they are closed with the server.
        port: where to listen; 0 is any that is free.

    Raises:
        ArgumentError: code `serve.port`, if the port cannot be listened on.

    Example:
        >>> from urllib.request import urlopen
        >>> with Server(Payload("heads", "a page"), Tiles([])) as server:
        ...     with urlopen(server.address + "payload") as answer:
        ...         answer.read(9)
        b'clearhead'
    """

    def __init__(self, payload: Payload, tiles: Tiles, *, port: int = 0) -> None:
        self._tiles = tiles
        self._token = secrets.token_urlsafe(24)
        self._payload = payload.to_bytes()
        self._page = page(payload, served=True).encode("utf-8")
        routes = {"": self._send_page, "payload": self._send_payload, **routes_to(tiles)}
        try:
            self._http = _Listener((HOST, port), self._token, routes)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ArgumentError(
                "serve.port", f"port {port} of {HOST} cannot be listened on: {reason}."
            ) from error
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.1}, name="clearhead server"
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._http.server_address[1]

    @property
    def address(self) -> str:
        """What a browser opens; whoever knows it sees everything."""
        return f"http://{HOST}:{self.port}/{self._token}/"

    def close(self) -> None:
        """Stop: what is being answered is broken off, threads end, and the port is free."""
        self._http.shutdown()
        self._thread.join()
        self._http.break_off()
        self._tiles.close()
        self._http.server_close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send_page(self, query: dict[str, str]) -> Answer:
        _only(query)
        return 200, HTML, self._page

    def _send_payload(self, query: dict[str, str]) -> Answer:
        _only(query)
        return 200, BYTES, self._payload


def routes_to(tiles: Tiles) -> Routes:
    """What there is to ask of tiles: `tile` and `token`.

    Example:
        >>> tiles = Tiles([AttentionMatrix(torch.eye(3), torch.eye(3))])
        >>> answer(routes_to(tiles), "token", "layer=0&head=0&token=9")[:2]
        (400, 'text/plain; charset=utf-8')
        >>> tiles.close()
    """
    return {"tile": partial(_tile, tiles), "token": partial(_token, tiles)}


def answer(routes: Routes, route: str, query: str) -> Answer:
    """What is told to whoever asks for a route, with the part behind the question mark."""
    if len(query) > MOST_QUERY:
        return _refusal(400, f"A query has up to {MOST_QUERY} characters; got {len(query)}.")
    send = routes.get(route)
    if send is None:
        return _refusal(404, "There is nothing here.")
    try:
        return send(_fields(query))
    except ClearheadError as error:
        return _refusal(400, str(error))
    except MemoryError:
        return _refusal(503, "There is not enough memory for this now.")
    except Exception as error:
        # The page says that something went wrong; what, is for the terminal.
        print(f"clearhead: {type(error).__name__}: {error}", file=sys.stderr)
        return _refusal(500, "Something went wrong; the terminal says what.")


def _tile(tiles: Tiles, query: dict[str, str]) -> Answer:
    (layer,), (head,), rows, columns, cells = _only(
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
        raise ArgumentError("serve.query", f"side must be query or key; got {side!r:.80}.")
    (layer,), (head,), (place,) = _only(query, layer=1, head=1, token=1)
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


def tile_bytes(tile: Tile) -> bytes:
    """A tile as it is sent, little-endian.

        uint32 × 6: first query, one past the last, rows; the same for keys and columns
        float32 × rows × columns: the values; −1 where everything is hidden

    The last row and column may reach beyond the last token, so that all are of one size.

    Example:
        >>> import torch
        >>> tile = Tile(torch.ones(1, 2), torch.eye(2).bool()[:1], range(0, 3, 4), range(2))
        >>> struct.unpack("<6I2f", tile_bytes(tile))
        (0, 4, 1, 0, 2, 2, -1.0, 1.0)
    """
    ends = []
    for cells in (tile.rows, tile.columns):
        ends += [cells.start, cells.start + len(cells) * cells.step, len(cells)]
    values = tile.values.masked_fill(tile.hidden, -1.0).cpu().contiguous()
    return struct.pack("<6I", *ends) + ctypes.string_at(values.data_ptr(), values.nbytes)


def serve_seen(
    seen: Seen[Any],
    title: str,
    *,
    tokens: Tokens | None = None,
    layers: Sequence[str | int] | None = None,
    port: int = 0,
    progress: Progress = lambda doing, done: None,
) -> Server:
    """Serve what a watch has seen.

    Args:
        seen: of a watch, or of a file.
        title: what the page is called.
        tokens: those that were read; None for those in the file, if it has some.
        layers: only these, by number or name; the others of a long run need not be gone over.
        port: where to listen; 0 is any that is free.
        progress: told what is being done, and which share of it is done.

    Raises:
        ArgumentError: codes `serve.port` and, if nothing attended, `page.empty`.
        SelectionError: code `watch.layer`, for a layer that did not attend.
        ArgumentTypeError, ShapeError: for tokens that do not fit.

    Example:
        >>> layer = ch.MultiHeadAttention(8, num_heads=2)
        >>> with ch.watch(layer) as seen:
        ...     output = layer(torch.randn(1, 3, 8))
        >>> with serve_seen(seen, "a run", tokens=["to", "be", "."]) as server:
        ...     server.address.startswith("http://127.0.0.1:")
        True
    """
    shown = [Layer(*each) for each in seen._layers(layers)]
    given = seen.tokens if tokens is None else tokens
    source = seen.source_tokens
    run = Run(
        "",
        shown,
        None if given is None else read_text("tokens", given),
        None if source is None else read_text("source_tokens", source),
    )
    payload = heads_payload([run], title, progress=progress)
    matrices = [each.seen if isinstance(each.seen, AttentionMatrix) else None for each in shown]
    return Server(payload, Tiles(matrices), port=port)


class _Listener(ThreadingHTTPServer):
    """The socket, its threads, and who may ask."""

    # Joined at the end, and broken off before, so that none is left.
    daemon_threads = False
    block_on_close = True
    allow_reuse_address = sys.platform != "win32"  # there it would share the port
    request_queue_size = MOST_AT_ONCE

    def __init__(self, place: tuple[str, int], token: str, routes: Routes) -> None:
        self.token, self.routes = token, routes
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(place, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = len(self._open) >= MOST_AT_ONCE
            if not full:
                self._open.add(request)
        if full:
            request.close()
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def break_off(self) -> None:
        with self._lock:
            for request in self._open:
                with suppress(OSError):  # the other side may have gone already
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is nobody's mistake, and nothing to print."""


class _Handler(BaseHTTPRequestHandler):
    """One request, and one answer: HTTP/1.0, so that no connection stays."""

    server: _Listener  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version, sys_version = "clearhead", ""
    timeout = SECONDS

    def do_GET(self) -> None:
        self._answer(*self._found())

    def _found(self) -> Answer:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not OWN.fullmatch(hosts[0]):
            return _refusal(403, "This server answers on its own address only.")
        path, _, query = self.path.partition("?")
        token, slash, route = path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            return _refusal(403, "The address must be the whole one that clearhead serve printed.")
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return _refusal(403, "No page of another site may ask.")
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            return _refusal(400, "A request has no body.")
        return answer(self.server.routes if slash else {}, route, query)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refusals of http.server itself: what is no HTTP, too long, or not GET."""
        if code == 501:
            code, message = 405, "Only GET is answered."
        self._answer(*_refusal(code, message or "This is no request."))

    def _answer(self, status: int, kind: str, content: bytes) -> None:
        self.close_connection = True
        if not self.request_version or self.request_version == "HTTP/0.9":
            self.request_version = "HTTP/1.0"  # with a status and headers all the same
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        own = policy(served=True) if kind == HTML else "default-src 'none'"
        self.send_header("Content-Security-Policy", f"{own}; frame-ancestors 'none'")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if status == 405:
            self.send_header("Allow", "GET")
        self.end_headers()
        self.wfile.write(content)
        if status >= 400:
            self._drain()

    def _drain(self) -> None:
        """Read what is left, for a while: closing on unread bytes would take the answer back."""
        self.wfile.flush()
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(0.5)
            for _ in range(MOST_DRAINED >> 16):
                if not self.connection.recv(1 << 16):
                    break

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the address holds the token."""


def _refusal(status: int, words: str) -> Answer:
    return status, TEXT, f"{words}\n".encode("utf-8", "backslashreplace")


def _json(status: int, content: object) -> Answer:
    return status, JSON, json.dumps(content, allow_nan=False).encode()


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None


def _fields(query: str) -> dict[str, str]:
    """The fields of a query, each once."""
    try:
        found = parse_qs(query, keep_blank_values=True, strict_parsing=True, max_num_fields=16)
    except ValueError as error:
        if not query:
            return {}
        raise ArgumentError(
            "serve.query", f"a query is name=value&…; got {query!r:.80}."
        ) from error
    for name, values in found.items():
        if len(values) > 1:
            raise ArgumentError("serve.query", f"{name!r:.80} must be given once.")
    return {name: values[0] for name, values in found.items()}


def _only(query: dict[str, str], **counts: int) -> list[tuple[int, ...]]:
    """The fields of these names and no others, each so many whole numbers."""
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
            raise ArgumentError("serve.query", f"{name} must be {words}; got {query[name]!r:.80}.")
        found.append(tuple(map(int, parts)))
    return found


def _pair(numbers: tuple[int, ...]) -> tuple[int, int]:
    first, second = numbers
    return first, second
