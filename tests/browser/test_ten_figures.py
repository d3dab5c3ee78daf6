"""Figures of one idea each, as docs/figure.md has them: by a mouse, by a finger and by keys, and all in one page."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from playwright.sync_api import BrowserContext, Locator, Page, ViewportSize, expect

import clearhead as ch
from clearhead import ladder
from clearhead.drawing.element.figure import Figure
from tests.browser.conftest import PHONE, TWO_FRAMES, Opens
from tests.browser.figures import SPOKEN

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
        lambda: of_x(X, show=("scores", "weights"), edit=("scores", "softmax")),
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
        lambda: of_x(X, causal=True, show=("weights",), edit=("mask", "hiding")),
        "button",
        "strike out",
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


@pytest.fixture
def phone(window: BrowserContext, tmp_path: Path) -> Iterator[Page]:
    assert window.browser is not None
    size: ViewportSize = {"width": PHONE["width"], "height": PHONE["height"]}
    context = window.browser.new_context(has_touch=True, viewport=size, offline=True)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    yield page
    context.close()
    assert wrong == []


def target(page: Page | Locator, what: str, name: str) -> Locator:
    if what == "cell":
        return page.locator(f'[data-at="{name}"]')
    if what == "arrow":
        return page.get_by_role("slider", name=name).locator("circle.handle")
    role = "slider" if what == "slider" else "button"
    return page.get_by_role(role, name=name, exact=what != "word").first


def middle(place: Locator) -> tuple[float, float]:
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def by_mouse(page: Page, what: str, name: str) -> None:
    place = target(page, what, name)
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


def by_finger(page: Page, what: str, name: str) -> None:
    place = target(page, what, name)
    if what in ("button", "slider", "word"):
        place.tap(position={"x": 12, "y": 10})
        return
    x, y = middle(place)
    session = page.context.new_cdp_session(page)
    for kind, step in (("Start", 0), ("Move", 10), ("Move", 30), ("Move", 60), ("End", 60)):
        points = [] if kind == "End" else [{"x": x + step, "y": y}]
        session.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})


def by_keys(page: Page, what: str, name: str) -> None:
    if what == "arrow":
        page.get_by_role("slider", name=name).focus()
    else:
        target(page, what, name).focus()
    keys = {"cell": "ArrowUp", "arrow": "ArrowLeft", "button": "Enter", "slider": "ArrowLeft"}
    page.keyboard.press(keys.get(what, "ArrowRight"))


def said(page: Page) -> list[str]:
    """The numbers of all cells."""
    return page.locator("ch-figure [data-at]").evaluate_all(SPOKEN)


def state(page: Page) -> str:
    return page.locator("ch-figure").evaluate("(each) => each.state")


def answers(page: Page, way: Callable[[Page, str, str], None], what: str, name: str) -> None:
    """A figure is touched, answers, and is as it was after a reset."""
    page.locator("ch-figure .panel").first.wait_for()
    before = said(page)
    way(page, what, name)
    page.evaluate(TWO_FRAMES)
    assert state(page) != ""
    assert said(page) != before
    page.get_by_role("button", name="reset").click()
    page.evaluate(TWO_FRAMES)
    assert (state(page), said(page)) == ("", before)


@pytest.mark.parametrize("idea", TOUCHED)
def test_it_answers_a_mouse_and_keys(opens: Opens, tmp_path: Path, idea: str) -> None:
    make, what, name = TOUCHED[idea]
    page = opens(make().to_html(tmp_path / "figure.html").as_uri())
    answers(page, by_mouse, what, name)
    answers(page, by_keys, what, name)


@pytest.mark.parametrize("idea", TOUCHED)
def test_it_answers_a_finger(phone: Page, tmp_path: Path, idea: str) -> None:
    make, what, name = TOUCHED[idea]
    phone.goto(make().to_html(tmp_path / "figure.html").as_uri())
    answers(phone, by_finger, what, name)
    assert phone.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_all_in_one_page_share_nothing(opens: Opens, tmp_path: Path) -> None:
    figures = [make() for make, _, _ in TOUCHED.values()]
    elements = "".join(each.to_element(script=not at) for at, each in enumerate(figures))
    path = tmp_path / "ten.html"
    path.write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>ten</title><main>{elements}</main>",
        encoding="utf-8",
    )
    page = opens(path.as_uri())
    places = page.locator("ch-figure")
    expect(places.locator(".figure")).to_have_count(len(TOUCHED))
    states = "(all) => all.map((each) => each.state)"
    expected = [""] * len(TOUCHED)
    for at, (_, what, name) in enumerate(TOUCHED.values()):
        place = target(places.nth(at), what, name)
        if what == "arrow":
            place = places.nth(at).get_by_role("slider", name=name)
        place.focus()
        page.keyboard.press("Enter" if what == "button" else "ArrowRight")
        page.keyboard.press("ArrowUp")
        page.evaluate(TWO_FRAMES)
        found = places.evaluate_all(states)
        assert (found[:at], found[at + 1 :]) == (expected[:at], expected[at + 1 :])
        assert found[at] != "" or what == "slider"
        expected = found
