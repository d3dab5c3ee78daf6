"""Figures of one idea each, as docs/figure.md has them: by a mouse, by a finger and by keys, and all in one page."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from playwright.sync_api import BrowserContext, Locator, Page, ViewportSize, expect

import clearhead as ch
from clearhead import ladder
from clearhead.drawing.element.figure import Figure
from tests.browser.conftest import PHONE, TWO_FRAMES, Opens
from tests.browser.figures import SPOKEN, middle

WORDS = list(ladder.EXAMPLE_TOKENS)
X = ladder.EXAMPLE_EMBEDDINGS
FLAT = X[:, :2]


class Touched(NamedTuple):
    """A figure, and what is touched in it: cell, arrow, button, slider or word, and which one."""

    make: Callable[[], Figure]
    what: str
    name: str


def of_width() -> Figure:
    query, key, value = torch.randn(3, 6, 16, generator=torch.Generator().manual_seed(0))
    show, edit = ("scaled_scores", "weights"), ("width", "scale")
    return ch.figure(query, key, value, tokens=WORDS, show=show, edit=edit)


def of_projections() -> Figure:
    rung = ladder.SelfAttention(3, head_dim=2)
    return ch.figure(rung, X, tokens=WORDS, edit=("W_query", "scale"))


def of_x(
    x: torch.Tensor, *, show: tuple[str, ...], edit: tuple[str, ...], causal: bool = False
) -> Figure:
    mask = ch.causal() if causal else None
    return ch.figure(x, x, x, tokens=WORDS, mask=mask, show=show, edit=edit)


TOUCHED = {
    "one number": Touched(
        lambda: of_x(FLAT, show=("query", "plane", "scores"), edit=("query", "key")),
        "arrow",
        "key Your",
    ),
    "softmax": Touched(
        lambda: of_x(X, show=("scores", "weights"), edit=("scores", "scale")),
        "cell",
        "scores.1.0",
    ),
    "weighted sum": Touched(
        lambda: of_x(FLAT, show=("plane", "weights", "context"), edit=("weights", "value")),
        "arrow",
        "value one",
    ),
    "query, key, value": Touched(of_projections, "cell", "W_query.0.0"),
    "root of the width": Touched(of_width, "slider", "width"),
    "the future": Touched(
        lambda: of_x(X, causal=True, show=("weights",), edit=("mask",)),
        "button",
        "window",
    ),
    "padding": Touched(lambda: of_x(X, show=("weights",), edit=("mask",)), "button", "padding"),
    "dropout": Touched(
        lambda: of_x(X, show=("weights", "context"), edit=("dropout",)), "button", "draw anew"
    ),
    "heads": Touched(
        lambda: of_x(torch.arange(24.0).view(6, 4), show=("query",), edit=("heads",)),
        "button",
        "transpose back",
    ),
    "position": Touched(
        lambda: of_x(FLAT, show=("scores", "weights"), edit=("order", "rotary")), "word", "Your,"
    ),
}


def target(page: Page | Locator, what: str, name: str) -> Locator:
    if what == "cell":
        return page.locator(f'[data-at="{name}"]')
    if what == "arrow":
        return page.get_by_role("slider", name=name).locator("circle.handle")
    role = "slider" if what == "slider" else "button"
    return page.get_by_role(role, name=name, exact=what != "word").first


def by_mouse(page: Page, place: Locator, what: str) -> None:
    if what in ("button", "word"):
        place.click()
    elif what == "slider":
        place.click(position={"x": 10, "y": 10})
    else:
        x, y = middle(place)
        page.mouse.move(x, y)
        page.mouse.down()
        for step in (10, 30, 60):
            page.mouse.move(x + step, y)
        page.mouse.up()


def by_finger(page: Page, place: Locator, what: str) -> None:
    if what in ("button", "slider", "word"):
        place.tap(position={"x": 12, "y": 10})
        return
    x, y = middle(place)
    session = page.context.new_cdp_session(page)
    for kind, step in (("Start", 0), ("Move", 10), ("Move", 30), ("Move", 60), ("End", 60)):
        points = [] if kind == "End" else [{"x": x + step, "y": y}]
        session.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})


def by_keys(page: Page, place: Locator, what: str) -> None:
    focused = place.locator("..") if what == "arrow" else place
    focused.focus()
    keys = {"cell": "ArrowUp", "arrow": "ArrowLeft", "button": "Enter", "slider": "ArrowLeft"}
    page.keyboard.press(keys.get(what, "ArrowRight"))


def answer(page: Page, way: Callable[[Page, Locator, str], None]) -> None:
    """Each figure is touched, answers without the others, and is as it was after a reset."""
    places = page.locator("ch-figure")
    expect(places.locator(".figure")).to_have_count(len(TOUCHED))
    states = "(all) => all.map((each) => each.state)"
    for at, (_, what, name) in enumerate(TOUCHED.values()):
        figure = places.nth(at)
        cells = figure.locator("[data-at]")
        before = cells.evaluate_all(SPOKEN)
        way(page, target(figure, what, name), what)
        page.evaluate(TWO_FRAMES)
        found = places.evaluate_all(states)
        assert [bool(each) for each in found] == [each == at for each in range(len(found))], name
        assert cells.evaluate_all(SPOKEN) != before, name
        figure.get_by_role("button", name="reset").click()
        page.evaluate(TWO_FRAMES)
        assert (places.evaluate_all(states)[at], cells.evaluate_all(SPOKEN)) == ("", before)


def ten(folder: Path) -> str:
    """The address of a page with all of the figures."""
    figures = [make() for make, _, _ in TOUCHED.values()]
    elements = "".join(each.to_element(script=not at) for at, each in enumerate(figures))
    path = folder / "ten.html"
    path.write_text(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>ten</title><main>{elements}</main>",
        encoding="utf-8",
    )
    return path.as_uri()


def test_each_answers_a_mouse_and_keys(opens: Opens, tmp_path: Path) -> None:
    page = opens(ten(tmp_path))
    answer(page, by_mouse)
    answer(page, by_keys)


def test_each_answers_a_finger(window: BrowserContext, tmp_path: Path) -> None:
    assert window.browser is not None
    size: ViewportSize = {"width": PHONE["width"], "height": PHONE["height"]}
    context = window.browser.new_context(has_touch=True, viewport=size, offline=True)
    page = context.new_page()
    page.goto(ten(tmp_path))
    answer(page, by_finger)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    context.close()
