"""The live page, in a real browser: exact weights as one zooms, and nothing from anywhere else."""

import re
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from playwright.sync_api import Locator, Page, Response, expect
from torch import Tensor

import clearhead as ch
from clearhead.attention.problem import Problem
from clearhead.drawing.live import tile_store
from clearhead.drawing.live.server import Server, serve_seen
from clearhead.matrix import tiles
from clearhead.matrix.sweep import Progress
from clearhead.matrix.tiles import Level
from tests.browser.conftest import Opens, still
from tests.matrix.test_tiles import pooled

LONG = 1500
ANSWERED = "performance.getEntriesByType('resource')"
HOSTILE = ["<script>alert(1)</script>", "\u202eevil", "\x00", "a\nb", "🙂", "שלום", "it", "was"]

Seen = ch.types.Seen[ch.AttentionMatrix]


def watched(length: int) -> Seen:
    torch.manual_seed(0)
    layer = ch.MultiHeadAttention(16, num_heads=2, mask=ch.causal())
    with torch.no_grad():
        for weights in layer.parameters():
            weights.mul_(4)  # so that it looks at something
        with ch.watch(layer) as seen:
            layer(torch.randn(1, length, 16))
    return seen


@pytest.fixture(scope="module")
def short() -> Seen:
    return watched(len(HOSTILE))


@pytest.fixture(scope="module")
def long() -> Seen:
    return watched(LONG)


@pytest.fixture
def serves() -> Iterator[Callable[..., Server]]:
    running: list[Server] = []

    def serve(seen: ch.types.Seen[Any], tokens: list[str] | None) -> Server:
        running.append(serve_seen(seen, "a run", tokens=tokens))
        return running[-1]

    yield serve
    for server in running:
        server.close()


def canvas(page: Page) -> Locator:
    return page.locator("canvas.ch-map-canvas").first


def zoom(page: Page, by: int) -> None:
    """The wheel with Ctrl."""
    page.keyboard.down("Control")
    page.mouse.wheel(0, by)
    page.keyboard.up("Control")


def point(page: Page, across: float, down: float) -> None:
    """Move the pointer to a place on the map, in shares of it."""
    canvas(page).scroll_into_view_if_needed()
    box = still(canvas(page))
    page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])


def reading(page: Page) -> Locator:
    return page.locator(".ch-sentence").first


def detail(page: Page) -> Locator:
    return page.locator(".ch-map-side .ch-remark").first


def check_words(words: str, weight: float) -> None:
    """Hold that the words give the weight, as far as it is written out."""
    written = re.search(r"gives (< )?([0-9.]+)\s%", words)
    assert written is not None, words
    if written[1]:
        assert 100 * weight < float(written[2])
    else:
        digits = 1 if 100 * weight < 0.01 else 2 if 100 * weight < 10 else 3
        assert float(f"{100 * weight:.{digits}g}") == pytest.approx(float(written[2]), abs=1e-9)


def tile_of(answer: Response) -> tuple[range, range, Tensor]:
    body = answer.body()
    row, last_row, rows, column, last_column, columns = struct.unpack("<6I", body[:24])
    values = torch.frombuffer(bytearray(body[24:]), dtype=torch.float32).view(rows, columns)
    return (
        range(row, last_row, (last_row - row) // rows),
        range(column, last_column, (last_column - column) // columns),
        values,
    )


def test_numbers_under_the_pointer_are_exact(
    short: Seen, serves: Callable[..., Server], opens: Opens
) -> None:
    server = serves(short, HOSTILE)
    page = opens(server.address, allowed=server.address)
    expect(detail(page)).to_have_text("Computed from query and key.")
    weights, count = short[0].dense()[0, 0], len(HOSTILE)
    for query in range(count):
        key = (0, query // 2, query)[query % 3]
        point(page, (key + 0.5) / count, (query + 0.5) / count)
        expect(reading(page)).to_have_text(re.compile(rf"^{query} .* gives .* to {key} "))
        check_words(reading(page).inner_text(), float(weights[query, key]))
    point(page, 6.5 / count, 2.5 / count)
    expect(reading(page)).to_have_text(re.compile("^The mask hides 6 .* from 2 "))


def test_zoom_to_single_tokens(long: Seen, serves: Callable[..., Server], opens: Opens) -> None:
    server = serves(long, [f"t{place}" for place in range(LONG)])
    page = opens(server.address, allowed=server.address)
    # The whole is read from the page's own map.
    expect(detail(page)).to_have_text(
        "One cell = 4 × 4 tokens. The finest map that is known is 2 × 2."
    )
    weights = long[0].dense()[0, 0]
    point(page, 0.3, 0.7)
    answers: list[Response] = []
    page.on("response", lambda got: answers.append(got) if "/tile?" in got.url else None)
    with page.expect_response(re.compile(r"/tile\?")):
        for _ in range(6):
            zoom(page, -500)
    expect(detail(page)).to_have_text("Computed from query and key.")
    canvas(page).focus()
    assert answers
    for answer in answers:
        rows, columns, values = tile_of(answer)
        part = weights[rows.start : rows.stop, columns.start : columns.stop]
        expected = pooled(
            part, range(0, len(part), rows.step), range(0, part.shape[1], columns.step)
        )
        torch.testing.assert_close(values.clamp(min=0), expected, rtol=1e-5, atol=1e-7)
    point(page, 0.4, 0.6)
    expect(reading(page)).to_have_text(re.compile("^[0-9]+ t[0-9]+ gives .* to [0-9]+ t[0-9]+"))
    words = reading(page).inner_text()
    query, key = (int(each.split()[0]) for each in (words, words.rpartition(" to ")[2]))
    check_words(words, float(weights[query, key]))
    # And the numbers beside the map: from all queries, not the strongest links of each alone.
    lists = page.locator(".ch-numbers section")
    best = weights[:, key].argmax()
    expect(lists.nth(1).locator(".ch-bar-at").first).to_have_text(str(int(best)))
    best = weights[query].argmax()
    expect(lists.nth(0).locator(".ch-bar-at").first).to_have_text(str(int(best)))


def test_a_finer_map_comes_when_it_is_there(
    long: Seen, serves: Callable[..., Server], opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the text were too long: exact up to 100 × 100 tokens, beyond it a pass is needed."""
    go, made = threading.Event(), tile_store.make_level

    def waits(problem: Problem, progress: Progress | None = None) -> Level:
        assert progress is not None
        progress(0.25)
        assert go.wait(60)
        return made(problem, progress)

    monkeypatch.setattr(tiles, "EXACT_PAIRS", 10_000)
    monkeypatch.setattr(tiles, "LEVEL_CELLS", LONG)
    monkeypatch.setattr(tile_store, "make_level", waits)
    server = serves(long, [f"t{place}" for place in range(LONG)])
    page = opens(server.address, allowed=server.address)
    point(page, 0.3, 0.7)
    zoom(page, -500)
    expect(detail(page)).to_have_text(re.compile(r"A finer map is being computed: 25 %\.$"))
    go.set()
    expect(detail(page)).to_have_text("One cell = 2 × 2 tokens. Computed from query and key.")
    zoom(page, -500)
    expect(detail(page)).to_have_text("Computed from query and key.")


def test_summaries_are_served_as_they_are(serves: Callable[..., Server], opens: Opens) -> None:
    layer = ch.MultiHeadAttention(16, num_heads=2, mask=ch.causal())
    with ch.watch(layer, keep="summary") as seen:
        layer(torch.randn(1, 300, 16))
    server = serves(seen, None)
    page = opens(server.address, allowed=server.address)
    # Not the coarser map that is drawn for a moment before it.
    expect(detail(page)).to_have_text(re.compile("the rest is known for 5 × 5 tokens"))
    # What the server does not have is asked for until it says so, and then never again.
    page.wait_for_function(f"{ANSWERED}.some((each) => each.name.includes('/tile?'))")
    point(page, 0.3, 0.7)
    expect(reading(page)).to_have_text(re.compile("give"))
    # Nothing has been asked for twice in a row: the page's own clock is as late as its questions.
    page.evaluate(
        """async () => {
            const count = () => performance.getEntriesByType("resource").length;
            for (let [still, last] = [0, count()]; still < 2; last = count()) {
                await new Promise((go) => setTimeout(go, 250));
                still = count() === last ? still + 1 : 0;
            }
        }"""
    )
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for _ in range(3):
        zoom(page, -500)
        page.wait_for_timeout(100)
    assert not [url for url in asked if "/tile?" in url or "/token?" in url]


def test_it_says_that_the_server_has_stopped(
    long: Seen, serves: Callable[..., Server], opens: Opens
) -> None:
    server = serves(long, [f"t{place}" for place in range(LONG)])
    page = opens(server.address, allowed=server.address, may_stop=True)
    canvas(page).focus()
    point(page, 0.3, 0.7)
    zoom(page, -1500)
    expect(detail(page)).to_have_text(re.compile("Computed from query and key"))
    server.close()
    # To where no tile has been, wherever between two tokens the pointer was.
    for _ in range(16):
        page.keyboard.press("Shift+ArrowLeft")
    expect(detail(page)).to_have_text(
        re.compile(r"tokens.*\. The server does not answer: this is what the page has\.$")
    )


def test_tokens_are_shown_and_never_run(
    short: Seen, serves: Callable[..., Server], opens: Opens
) -> None:
    server = serves(short, HOSTILE)
    page = opens(server.address, allowed=server.address)
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    expect(page.get_by_text("<script>alert(1)</script>").first).to_be_visible()
    for query in range(len(HOSTILE)):
        point(page, 0.05, (query + 0.5) / len(HOSTILE))
        expect(reading(page)).to_have_text(re.compile(f"^{query} |from {query} "))
    assert not {"\u202e", "\x00"} & set(page.locator("body").inner_text())


def test_accessible(
    short: Seen,
    serves: Callable[..., Server],
    opens: Opens,
    violations: Callable[[Page], list[str]],
) -> None:
    server = serves(short, HOSTILE)
    page = opens(server.address, allowed=server.address)
    expect(detail(page)).to_have_text(re.compile("One cell|Computed"))
    assert violations(page) == []
