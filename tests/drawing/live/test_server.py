"""The server: who gets an answer, who gets none, and that nothing of it is left."""

import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPMessage
from typing import Any, NamedTuple

import pytest
import torch

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.drawing.live import server as served
from clearhead.drawing.live.routes import tile_bytes
from clearhead.drawing.live.server import Server, serve_seen
from clearhead.drawing.live.tile_store import Pending, Tiles
from clearhead.drawing.page.payload import Payload
from clearhead.errors import ArgumentError
from clearhead.matrix.tiles import MapTile

PAYLOAD = Payload("heads", "a run", {"tokens": ["it"]}, {"map": torch.zeros(2, 2)})
TILE = "tile?layer=0&head=1&rows=0,7&columns=0,5&cells=7,5"


def matrix() -> AttentionMatrix:
    torch.manual_seed(0)
    return AttentionMatrix(torch.randn(1, 2, 7, 3), torch.randn(1, 2, 5, 3), mask=ch.causal())


class Answered(NamedTuple):
    status: int
    headers: HTTPMessage
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(PAYLOAD, Tiles([matrix(), None])) as running:
        yield running


def path_of(server: Server) -> str:
    return "/" + server.address.split("/", 3)[3]


def ask(
    server: Server,
    route: str = "",
    *,
    path: str | None = None,
    method: str = "GET",
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> Answered:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(
        method, path_of(server) + route if path is None else path, body, headers or {}
    )
    answer = connection.getresponse()
    found = Answered(answer.status, answer.headers, answer.read())
    connection.close()
    return found


def raw(server: Server, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        while part := connection.recv(1 << 16):
            found += part
    return found


def test_the_page(server: Server) -> None:
    found = ask(server)
    assert found.status == 200
    assert found.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "<title>a run</title>" in found.text
    assert 'data-source="server"></script>' in found.text
    policy = found.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; connect-src 'self'; script-src 'sha256-")
    assert policy.endswith("; frame-ancestors 'none'")
    assert "unsafe" not in policy


def test_the_payload(server: Server) -> None:
    found = ask(server, "payload")
    assert (found.status, found.content) == (200, PAYLOAD.to_bytes())


def test_a_tile(server: Server) -> None:
    found = ask(server, TILE)
    assert found.status == 200
    assert struct.unpack("<6I", found.content[:24]) == (0, 7, 7, 0, 5, 5)
    values = torch.frombuffer(bytearray(found.content[24:]), dtype=torch.float32).view(7, 5)
    weights = matrix().dense()[0, 1]
    visible = torch.ones(7, 5).tril(-2) == 1  # the last query sits on the last key
    torch.testing.assert_close(values, torch.where(visible, weights, -1.0))


def test_a_last_cell_that_is_cut_short_is_sent_whole() -> None:
    """Seven queries in cells of three are nine: what draws them needs no other size for the last."""
    tile = MapTile(torch.zeros(3, 2), torch.zeros(3, 2).bool(), range(0, 7, 3), range(2, 5, 2))
    assert struct.unpack("<6I6f", tile_bytes(tile)) == (0, 9, 3, 2, 6, 2, *[0.0] * 6)


def test_the_numbers_of_a_token(server: Server) -> None:
    found = json.loads(ask(server, "token?layer=0&head=1&token=6").content)
    weights = matrix().dense()[0, 1]
    assert [place for place, _ in found["links"]] == weights[6].argsort(descending=True).tolist()
    assert found["links"][0][1] == pytest.approx(float(weights[6].max()), rel=1e-5)
    assert found["entropy"] == pytest.approx(float(matrix().entropy()[0, 1, 6]), rel=1e-5)
    found = json.loads(ask(server, "token?layer=0&head=1&token=4&side=key").content)
    assert found["total"] == pytest.approx(float(weights[:, 4].sum()), rel=1e-5)
    assert found["entropy"] is None


def test_the_stages_of_a_pair(server: Server) -> None:
    found = json.loads(ask(server, "pair?layer=0&head=1&query=6&key=2").content)
    assert found["weight"] == pytest.approx(float(matrix().dense()[0, 1, 6, 2]), rel=1e-5)
    assert len(found["query"]) == len(found["key"]) == matrix().problem.query.shape[-1]
    assert not {"bias", "capped"} & found.keys()
    hidden = json.loads(ask(server, "pair?layer=0&head=1&query=2&key=4").content)
    assert (hidden["masked"], hidden["weight"]) == (None, 0.0)


def test_a_pair_says_what_the_layer_adds() -> None:
    query = torch.full((1, 1, 3, 2), torch.nan)
    seen = AttentionMatrix(query, query, bias=torch.ones(3, 3), softcap=2.0)
    with Server(PAYLOAD, Tiles([seen])) as server:
        found = json.loads(ask(server, "pair?layer=0&head=0&query=2&key=1").content)
    assert (found["bias"], found["capped"], found["masked"], found["weight"]) == (1, *[None] * 3)


def test_what_is_no_number_is_null() -> None:
    key = torch.randn(1, 1, 3, 2)
    key[0, 0, 1] = torch.nan
    with Server(PAYLOAD, Tiles([AttentionMatrix(torch.randn(1, 1, 3, 2), key)])) as server:
        found = json.loads(ask(server, "token?layer=0&head=0&token=0").content)
    assert found["total"] is None
    assert found["entropy"] is None


def test_a_layer_without_query_and_key(server: Server) -> None:
    pair = "pair?layer=1&head=0&query=0&key=0"
    for route in (TILE.replace("layer=0", "layer=1"), "token?layer=1&head=0&token=0", pair):
        found = ask(server, route)
        assert (found.status, found.content) == (204, b"")


def test_what_takes_long_is_accepted(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tiles, "tile", lambda *_: Pending(0.25))
    found = ask(server, TILE)
    assert (found.status, json.loads(found.content)) == (202, {"done": 0.25})


def test_a_connection_is_closed_after_one_answer(server: Server) -> None:
    request = f"GET {path_of(server)}payload HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    assert raw(server, 2 * request).count(b"HTTP/1.") == 1


def test_every_answer_has_the_headers(server: Server) -> None:
    refused: dict[str, Any] = {"headers": {"Host": "evil.example"}}
    every: list[dict[str, Any]] = [{}, {"route": TILE}, {"route": "x"}, {"path": "/"}]
    for options in [*every, {"method": "PUT"}, refused]:
        headers = ask(server, **options).headers
        assert headers["Cache-Control"] == "no-store"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "Python" not in headers["Server"]
        assert not [name for name in headers if name.startswith("Access-Control")]


def test_it_listens_on_the_loopback_interface(server: Server) -> None:
    assert server._http.server_address[0] == "127.0.0.1"
    assert server.address.startswith(f"http://127.0.0.1:{server.port}/")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/payload",
        "//payload",
        "/None/payload",
        "/" + "a" * 32 + "/",
        "/{token}x/",
        "/%2e%2e/",
    ],
)
def test_without_the_token_there_is_nothing(path: str, server: Server) -> None:
    token = path_of(server).strip("/")
    assert len(token) == 32  # 24 random bytes
    found = ask(server, path=path.replace("{token}", token))
    assert found.status == 403
    assert found.text == "The address must be the whole one that clearhead serve printed.\n"
    assert token not in found.text


def test_a_token_of_another_alphabet(server: Server) -> None:
    found = raw(server, b"GET /\xff\xfe\xc3\xa9/ HTTP/1.0\r\nHost: localhost\r\n\r\n")
    assert found.startswith(b"HTTP/1.0 403 ")


def test_every_server_has_a_token_of_its_own(server: Server) -> None:
    with Server(PAYLOAD, Tiles([])) as other:
        assert path_of(other) != path_of(server)
        assert ask(other, path=path_of(server)).status == 403


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil",
        "",
        "localhost:",
        "127.0.0.2",
        "[::1]",
        "localhost:1:2",
    ],
)
def test_a_name_that_is_not_its_own(host: str, server: Server) -> None:
    """DNS rebinding: the browser is led here by a name of somebody else's."""
    found = ask(server, headers={"Host": host})
    assert found.status == 403
    assert found.text == "This server answers on its own address only.\n"


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LocalHost:9000"])
def test_names_of_its_own(host: str, server: Server) -> None:
    assert ask(server, headers={"Host": host.format(port=server.port)}).status == 200


def test_one_host_exactly(server: Server) -> None:
    path = path_of(server).encode()
    for hosts in (b"", b"Host: localhost\r\nHost: evil.example\r\n"):
        found = raw(server, b"GET " + path + b" HTTP/1.0\r\n" + hosts + b"\r\n")
        assert found.startswith(b"HTTP/1.0 403 ")


@pytest.mark.parametrize("site", ["cross-site", "same-site", "x"])
def test_a_page_of_another_site_may_not_ask(site: str, server: Server) -> None:
    found = ask(server, headers={"Sec-Fetch-Site": site})
    assert (found.status, found.text) == (403, "No page of another site may ask.\n")
    for own in ("same-origin", "none"):
        assert ask(server, headers={"Sec-Fetch-Site": own}).status == 200


@pytest.mark.parametrize(
    "method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "CONNECT", "BREW"]
)
def test_only_get(method: str, server: Server) -> None:
    found = ask(server, method=method, body=b"x" if method in ("POST", "PUT") else None)
    assert found.status == 405
    assert found.headers["Allow"] == "GET"
    assert found.text == ("" if method == "HEAD" else "Only GET is answered.\n")


def test_a_body_is_refused(server: Server) -> None:
    found = ask(server, body=b"x" * 100_000)
    assert (found.status, found.text) == (400, "A request has no body.\n")
    found = ask(server, headers={"Transfer-Encoding": "chunked"})
    assert found.status == 400


@pytest.mark.parametrize(
    "route",
    ["x", "tile/", "payload/..", "..", "../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "page.js",
     "/etc/passwd", "//etc/passwd", "file:///etc/passwd", "C:\\x", "token%00", "\\..\\x", "assets/page.js"],
)  # fmt: skip
def test_nothing_else_is_there(route: str, server: Server) -> None:
    found = ask(server, path=path_of(server) + route)
    assert (found.status, found.text) == (404, "There is nothing here.\n")


def test_no_file_is_opened(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked for: the page was read before the first request."""
    opened: list[Any] = []
    watching = True

    def hook(event: str, given: Any) -> None:
        if watching and event in ("open", "os.listdir", "os.scandir", "subprocess.Popen"):
            opened.append((event, given))

    sys.addaudithook(hook)
    for route in (
        "",
        "payload",
        TILE,
        "token?layer=0&head=0&token=1",
        "../x",
        "tile?file=/etc/passwd",
    ):
        ask(server, route)
    ask(server, path="/etc/passwd")
    watching = False
    assert opened == []


FIELDS = "[serve.query] the query must have the fields layer, head, rows, columns, cells"
GOOD = {"layer": "0", "head": "1", "rows": "0,7", "columns": "0,5", "cells": "7,5"}


def query(**fields: str | None) -> str:
    chosen = {name: value for name, value in (GOOD | fields).items() if value is not None}
    return "tile?" + "&".join(f"{name}={value}" for name, value in chosen.items())


@pytest.mark.parametrize(
    ("route", "words"),
    [
        (query(rows="5,1"), "[tile.range] rows must be from 0 on, upwards and up to 7 tokens; got 5 to 1."),
        (query(rows="0,8"), "[tile.range] rows must be from 0 on, upwards and up to 7 tokens; got 0 to 8."),
        (query(columns="5,5"), "[tile.range] columns must be from 0 on, upwards and up to 5 tokens; got 5 to 5."),
        (query(rows="-1,3"), "[serve.query] rows must be 2 whole numbers, with a comma; got '-1,3'."),
        (query(rows="0"), "[serve.query] rows must be 2 whole numbers, with a comma; got '0'."),
        (query(rows="0,1,2"), "[serve.query] rows must be 2 whole numbers, with a comma; got '0,1,2'."),
        (query(rows="NaN,3"), "[serve.query] rows must be 2 whole numbers, with a comma; got 'NaN,3'."),
        (query(rows="0,1e9"), "[serve.query] rows must be 2 whole numbers, with a comma; got '0,1e9'."),
        (query(rows="0,99999999999"), "[serve.query] rows must be 2 whole numbers, with a comma; got '0,99999999999'."),
        (query(rows="0,%D9%A3"), "[serve.query] rows must be 2 whole numbers, with a comma; got '0,٣'."),
        (query(cells="0,5"), "[tile.cells] a tile has 1 to 1024 rows of cells; got 0."),
        (query(cells="7,99999"), "[tile.cells] a tile has 1 to 1024 columns of cells; got 99999."),
        (query(layer="2"), "[tile.head] there are 2 layers; got number 2."),
        (query(layer="one"), "[serve.query] layer must be a whole number; got 'one'."),
        (query(layer=""), "[serve.query] layer must be a whole number; got ''."),
        (query(head="2"), "[tile.head] layer 0 has 2 heads; got number 2."),
        (query(head=None), f"{FIELDS}; got layer, rows, columns, cells."),
        (query(more="1"), f"{FIELDS}; got layer, head, rows, columns, cells, more."),
        (query() + "&head=1", "[serve.query] 'head' must be given once."),
        ("tile", f"{FIELDS}; got none."),
        ("tile?x", "[serve.query] a query is name=value&…; got 'x'."),
        ("tile?" + "a=1&" * 20, "[serve.query] a query is name=value&…; got 'a=1&a=1&"),
        ("token?layer=0&head=0&token=7", "[tile.token] there are 7 queries; got number 7."),
        ("token?layer=0&head=0&token=5&side=key", "[tile.token] there are 5 keys; got number 5."),
        ("token?layer=0&head=0&token=1&side=%1b", r"[serve.query] side must be query or key; got '\x1b'."),
        ("payload?x=1", "[serve.query] the query must have the fields none; got x."),
        ("?x=1", "[serve.query] the query must have the fields none; got x."),
        ("tile?" + "x" * 1025, "A query has up to 1024 characters; got 1025."),
    ],
)  # fmt: skip
def test_a_query_that_cannot_be(route: str, words: str, server: Server) -> None:
    found = ask(server, route)
    assert found.status == 400
    assert found.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert found.text.startswith(words)
    assert len(found.text) < 300
    assert "Traceback" not in found.text


@pytest.mark.parametrize("size", [60_000, 70_000, 1 << 20])
def test_a_query_of_a_megabyte(size: int, server: Server) -> None:
    found = ask(server, "tile?" + "x" * size)
    assert found.status in (400, 414)
    assert found.text in (
        f"A query has up to 1024 characters; got {size}.\n",
        "This is no request.\n",
    )
    assert ask(server, TILE).status == 200


def test_too_many_headers(server: Server) -> None:
    found = ask(server, headers={f"x-{i}": "1" for i in range(200)})
    assert found.status == 431
    found = ask(server, headers={"x": "1" * 100_000})
    assert found.status == 431


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9.9\r\n\r\n",
        b"GET / x / y\r\n\r\n",
        b"\x00" * 100 + b"\r\n\r\n",
    ],
)
def test_what_is_no_request(request_: bytes, server: Server) -> None:
    found = raw(server, request_)
    assert found == b"" or found.split(b" ")[1] in (b"400", b"403", b"405", b"505")
    assert ask(server, TILE).status == 200


def test_what_breaks_inside_is_told_in_the_terminal(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr(Tiles, "tile", breaks)
    found = ask(server, TILE)
    assert (found.status, found.text) == (500, "Something went wrong; the terminal says what.\n")
    assert capsys.readouterr().err == "clearhead: RuntimeError: a secret of the inside\n"

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Tiles, "tile", full)
    assert ask(server, TILE).status == 503


def test_more_at_once_than_it_answers(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "MOST_AT_ONCE", 1)
    asked, done = threading.Event(), threading.Event()

    def waits(*_: object) -> Pending:
        asked.set()
        done.wait(20)
        return Pending(0.5)

    monkeypatch.setattr(Tiles, "tile", waits)
    request = f"GET {path_of(server)}{TILE} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    # Reads to the end of the connection, which comes after its place is free; an answer may come before.
    first = threading.Thread(target=raw, args=(server, request.encode()))
    first.start()
    assert asked.wait(20)
    found = ask(server, TILE)
    assert (found.status, found.text) == (503, "Too much is asked for at once.\n")
    done.set()
    first.join()
    assert ask(server, TILE).status == 202


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "])
def test_connections_without_the_token_shut_nobody_out(sent: bytes, server: Server) -> None:
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
    for each in idle:
        with suppress(OSError):  # the first may have made room already
            each.sendall(sent)
    for _ in range(3):
        assert ask(server, TILE).status == 200
    assert len(server._http._strangers) <= served.MOST_STRANGERS + 1
    for each in idle:
        each.close()


def test_a_head_that_comes_byte_by_byte(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is one for the whole head, and not for each byte of it."""

    def send(connection: socket.socket) -> None:
        for letter in b"GET / HTTP/1.1\r\nX: " + b"a" * 2000:  # 40 seconds
            connection.sendall(bytes([letter]))
            time.sleep(0.02)

    with monkeypatch.context() as patch:
        patch.setattr(served, "SECONDS", 0.3)
        with (
            socket.create_connection(("127.0.0.1", server.port), timeout=20) as slow,
            pytest.raises(OSError, match=r"Broken pipe|reset"),
        ):
            send(slow)
    assert ask(server, TILE).status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"Content-Length: 0\r\nContent-Length: 44\r\n", 400),
        (b"Content-Length: 0\r\nContent-Length: 0\r\n", 400),
        (b"Sec-Fetch-Site: same-origin\r\nSec-Fetch-Site: cross-site\r\n", 403),
        (b"Sec-Fetch-Site: none\r\nsec-fetch-site: none\r\n", 403),
        (b"Content-Length: 0\r\n", 200),
    ],
)
def test_a_header_that_counts_comes_once(headers: bytes, status: int, server: Server) -> None:
    request = b"GET " + path_of(server).encode() + b" HTTP/1.0\r\nHost: localhost\r\n"
    assert raw(server, request + headers + b"\r\n").split(b" ")[1] == str(status).encode()


def test_a_link_to_the_page_from_anywhere(server: Server) -> None:
    """As from a chat or a notebook: it opens a window, which nobody else can read."""
    link = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    assert ask(server, headers=link).status == 200
    assert ask(server, "payload", headers=link).status == 403
    for other in ({"Sec-Fetch-Dest": "iframe"}, {"Sec-Fetch-Mode": "no-cors"}):
        assert ask(server, headers=link | other).status == 403


def test_an_answer_to_head_has_no_body(server: Server) -> None:
    request = b"HEAD " + path_of(server).encode() + b" HTTP/1.0\r\nHost: localhost\r\n\r\n"
    found = raw(server, request)
    assert found.startswith(b"HTTP/1.0 405 ")
    assert found.endswith(b"\r\n\r\n")


def test_an_answer_of_nothing_has_no_length(server: Server) -> None:
    assert "Content-Length" not in ask(server, TILE.replace("layer=0", "layer=1")).headers


def test_nothing_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "SECONDS", 1000.0)  # who only sits there is broken off
    before = set(threading.enumerate())
    server = Server(PAYLOAD, Tiles([matrix()]))
    idle = socket.create_connection(("127.0.0.1", server.port))
    idle.sendall(b"GET /")
    while not server._http._strangers:
        time.sleep(0.001)
    assert ask(server).status == 200
    server.close()
    idle.close()
    assert set(threading.enumerate()) <= before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))
    with Server(PAYLOAD, Tiles([]), port=server.port) as again:
        assert again.port == server.port
    assert capsys.readouterr() == ("", "")


def test_a_port_that_is_taken(server: Server) -> None:
    with pytest.raises(ArgumentError) as raised:
        Server(PAYLOAD, Tiles([]), port=server.port)
    assert str(raised.value) == (
        f"[serve.port] port {server.port} of 127.0.0.1 cannot be listened on: {os.strerror(98)}."
    )
    with pytest.raises(ArgumentError, match=r"serve\.port"):
        Server(PAYLOAD, Tiles([]), port=1 << 20)


def test_the_address_is_in_no_log(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    ask(server)
    ask(server, path="/x")
    raw(server, b"nonsense\r\n\r\n")
    assert capfd.readouterr() == ("", "")


def test_bytes_that_come_after_their_time_are_not_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"GET")
        assert served._Arriving(ours, 60.0).read(1) == b"G"
        with pytest.raises(TimeoutError):
            served._Arriving(ours, 0.0).read(1)


@pytest.mark.parametrize(
    ("tokens", "title"), [(["to", " be", " or"], "to be or"), (None, "run.clearhead")]
)
def test_a_page_is_called_by_its_text(tokens: list[str] | None, title: str) -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2)
    with ch.watch(layer) as seen:
        layer(torch.randn(1, 3, 8))
    with serve_seen(seen, "run.clearhead", tokens=tokens) as server:
        text = ask(server).text
        assert f"<title>{title}</title>" in text
