"""A page, live: a server on this machine alone that hands out exact tiles as one zooms.

It listens on the loopback interface. Whoever has no token in the address gets nothing, and a page
of another site that asks through a name of its own (DNS rebinding) gives itself away by the host
it names. It answers GET, from a fixed table; no path from a request ever opens a file, and nothing
is written.
"""

import hmac
import io
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from clearhead.drawing.live.routes import (
    BYTES,
    HTML,
    Answer,
    Routes,
    answer,
    fields_of,
    refusal,
    routes_to,
)
from clearhead.drawing.live.tile_store import Tiles
from clearhead.drawing.page.head_page import Progress, heads_payload, read_run
from clearhead.drawing.page.page import page, policy
from clearhead.drawing.page.payload import Payload
from clearhead.drawing.page.runs import layers_of
from clearhead.drawing.page.texts import beginning
from clearhead.errors import ArgumentError
from clearhead.watching.seen import Seen
from clearhead.watching.token_ids import Tokens

HOST = "127.0.0.1"

OWN = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?", re.IGNORECASE)
"""Host names that a browser sends for this machine. Of any port: a tunnel may begin at another."""

MOST_AT_ONCE = 32
"""Requests with the token that are answered at a time; more are turned away."""

MOST_STRANGERS = 16
"""Connections that have not shown the token yet; the oldest makes room for the next one."""

GRACE = 0.1
"""Seconds in which a connection may show the token before it has to make room."""

SECONDS = 10.0
"""Time-out for a whole request to arrive, and for an answer to be taken."""

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
            target=self._http.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="clearhead server",
            daemon=True,  # an interrupt before it is in the hands of its owner ends the process
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._http.server_address[1]

    @property
    def address(self) -> str:
        """The address for a browser; it holds the secret token."""
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
        fields_of(query)
        return 200, HTML, self._page

    def _send_payload(self, query: dict[str, str]) -> Answer:
        fields_of(query)
        return 200, BYTES, self._payload


def serve_seen(
    seen: Seen[Any],
    title: str,
    *,
    tokens: Tokens | None = None,
    layers: Sequence[str | int] | None = None,
    port: int = 0,
    progress: Progress = lambda doing, done: None,
) -> Server:
    """Serve the record of a watch.

    Args:
        seen: of a watch, or of a file.
        title: of the page where no tokens are known; else it stands below the beginning of the text.
        tokens: those that were read; None for those in the file, if it has some.
        layers: only these, by number or name; the others of a long run need not be swept.
        port: where to listen; 0 is any that is free.
        progress: called with what is being done, and the share of it that is done.

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
    given = seen.tokens if tokens is None else tokens
    run = read_run(layers_of(seen, layers), given, seen.source_tokens)
    # A text is called by how it begins, and its record stands below.
    called = title if run.text is None else beginning(run.text.tokens)
    note = "" if run.text is None else title
    payload = heads_payload([run], called, note, progress=progress)
    return Server(payload, Tiles(run.matrices), port=port)


class _Listener(ThreadingHTTPServer):
    """The socket, its threads, and who may ask."""

    # Joined at the end, and broken off before, so that none is left.
    daemon_threads = False
    block_on_close = True
    allow_reuse_address = sys.platform != "win32"  # there it would share the port
    request_queue_size = MOST_AT_ONCE

    def __init__(self, place: tuple[str, int], token: str, routes: Routes) -> None:
        self.token, self.routes = token, routes
        self._strangers: dict[socket.socket, float] = {}
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(place, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            now = time.monotonic()
            oldest = next(iter(self._strangers), None)
            full = len(self._strangers) >= MOST_STRANGERS
            wait = 0.0 if oldest is None else self._strangers[oldest] + GRACE - now
            self._strangers[request] = now
        if full and oldest is not None:
            time.sleep(max(0.0, wait))
            with self._lock:
                if self._strangers.pop(oldest, None) is not None:
                    _break(oldest)
        super().process_request(request, client_address)

    def admit(self, request: socket.socket) -> bool:
        """Give a connection that has shown the token a place, if there is one."""
        with self._lock:
            self._strangers.pop(request, None)
            if len(self._open) >= MOST_AT_ONCE:
                return False
            self._open.add(request)
            return True

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
            self._strangers.pop(request, None)
        super().shutdown_request(request)

    def break_off(self) -> None:
        with self._lock:
            for request in (*self._open, *self._strangers):
                _break(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a connection may break at any time."""


def _break(connection: socket.socket) -> None:
    with suppress(OSError):  # the other side may have gone already
        connection.shutdown(socket.SHUT_RDWR)


class _Arriving(io.RawIOBase):
    """The bytes that arrive on a connection, until a deadline for all of them."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._end = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    """One request, and one answer: HTTP/1.0, so that no connection stays."""

    server: _Listener  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version, sys_version = "clearhead", ""
    timeout = SECONDS

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Arriving(self.connection, SECONDS))

    def do_GET(self) -> None:
        self._answer(*self._found())

    def _found(self) -> Answer:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not OWN.fullmatch(hosts[0]):
            return refusal(403, "This server answers on its own address only.")
        path, _, query = self.path.partition("?")
        token, slash, route = path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            return refusal(403, "The address must be the whole one that clearhead serve printed.")
        if self._once("Sec-Fetch-Site", "none") not in ("none", "same-origin") and not (
            # A link to the page, in a chat or a notebook, is no request of the page it is in.
            not route
            and self._once("Sec-Fetch-Mode") == "navigate"
            and self._once("Sec-Fetch-Dest") == "document"
        ):
            return refusal(403, "No page of another site may ask.")
        if self._once("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            return refusal(400, "A request has no body.")
        if not self.server.admit(self.connection):
            return refusal(503, "Too much is asked for at once.")
        return answer(self.server.routes if slash else {}, route, query)

    def _once(self, name: str, default: str = "") -> str | None:
        """The value of a header; None where it comes more than once."""
        values = self.headers.get_all(name, [default])
        return values[0] if len(values) == 1 else None

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refusals of http.server itself: what is no HTTP, too long, or not GET."""
        if code == 501:
            code, message = 405, "Only GET is answered."
        self._answer(*refusal(code, message or "This is no request."))

    def _answer(self, status: int, kind: str, content: bytes) -> None:
        self.close_connection = True
        if not self.request_version or self.request_version == "HTTP/0.9":
            self.request_version = "HTTP/1.0"  # with a status and headers all the same
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        own = policy("heads", served=True) if kind == HTML else "default-src 'none'"
        self.send_header("Content-Security-Policy", f"{own}; frame-ancestors 'none'")
        self.send_header("Content-Type", kind)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        if status == 405:
            self.send_header("Allow", "GET")
        self.end_headers()
        self.connection.settimeout(SECONDS)
        if self.command != "HEAD":
            self.wfile.write(content)
        if status >= 400:
            self._drain()

    def _drain(self) -> None:
        """Read what is left, for a while: closing on unread bytes would take the answer back."""
        self.wfile.flush()
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            rest = _Arriving(self.connection, 1.0)
            for _ in range(MOST_DRAINED >> 16):
                if not rest.read(1 << 16):
                    break

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the address holds the token."""
