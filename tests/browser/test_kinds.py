"""What holds of heads, traces and figures alike: in one document, at any width, by keys."""

import base64
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Page, expect

import clearhead as ch
from clearhead import ladder
from clearhead.drawing.element.trace_page import trace_payload
from clearhead.drawing.page.head_page import Layer, Run, heads_payload
from clearhead.drawing.page.page import asset, write_page
from clearhead.drawing.page.payload import Payload
from clearhead.drawing.page.runs import Start
from clearhead.drawing.page.texts import read_text
from tests.browser.conftest import TWO_FRAMES, Opens, becomes, restart

WORDS = ["the", "cat", "sat", "on", "the", "mat", "because", "it", "was", "tired", "."]
WIDTHS = (390, 768, 1280, 1440, 2560)

MOUNT = """async ([place, script, payload]) => {
  const bytes = Uint8Array.from(atob(payload), (each) => each.charCodeAt(0));
  const values = { payload: new DataView(bytes.buffer), exact: false };
  const model = { get: (name) => values[name], on() {}, off() {}, send() {} };
  const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const bundle = await import(url);
  await bundle.default.render({ model, el: document.getElementById(place) });
}"""


def heads(start: str = "head=1.1&pin=7,1") -> Payload:
    generator = torch.Generator().manual_seed(0)
    layers: list[Layer] = []
    for layer in range(2):
        query, key = 2 * torch.randn(2, 1, 3, len(WORDS), 5, generator=generator)
        layers.append(Layer(f"layers.{layer}", ch.AttentionMatrix(query, key, mask=ch.causal())))
    run = Run("", layers, read_text("tokens", WORDS))
    return heads_payload([run], "heads", why=True, start=Start(start))


def trace() -> ch.types.Trace:
    rung = ladder.SelfAttention(3, head_dim=2).requires_grad_(False)
    return ch.trace(rung, ladder.EXAMPLE_EMBEDDINGS, tokens=ladder.EXAMPLE_TOKENS)


def page_of(kind: str, folder: Path) -> str:
    if kind == "figure":
        edit = ("query", "scores", "mask", "scale")
        made = ch.figure(trace(), show=("plane", "weights", "context"), edit=edit)
        path = made.to_html(folder / "page.html")
    else:
        payload = heads() if kind == "heads" else trace_payload(trace())
        path = write_page(folder / "page.html", payload)
    return path.as_uri()


def drawn(opens: Opens, kind: str, folder: Path, width: int = 1280) -> Page:
    page = opens(page_of(kind, folder), size={"width": width, "height": 900})
    places = {"heads": ".ch-facts", "trace": ".reading", "figure": "ch-figure .panel"}
    page.locator(places[kind]).first.wait_for()
    page.evaluate(TWO_FRAMES)
    return page


def test_four_of_three_kinds_in_one_document_share_nothing(opens: Opens, tmp_path: Path) -> None:
    styles = asset("heads.css") + asset("trace.css")
    element = ch.figure(trace()).to_element()
    cells = "".join(f'<div id="{name}"></div>' for name in ("one", "two", "three"))
    path = tmp_path / "four.html"
    path.write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>four</title><style>{styles}</style>"
        f"<body><main>{cells}{element}</main>",
        encoding="utf-8",
    )
    page = opens(path.as_uri())
    for place, payload in (("one", heads()), ("two", heads()), ("three", trace_payload(trace()))):
        content = base64.b64encode(payload.to_bytes()).decode("ascii")
        page.evaluate(MOUNT, [place, asset(f"{payload.kind}.js"), content])
    one, two, three = (page.locator(f"#{name}") for name in ("one", "two", "three"))
    figure = page.locator("ch-figure")
    for each in (one, two):
        each.locator(".ch-facts").first.wait_for()
    three.locator(".reading").wait_for()
    length, address = page.evaluate("history.length"), page.url
    others = [each.inner_text() for each in (two, three, figure)]

    one.get_by_role("button", name="Dark").click()
    one.locator(".ch-token").first.focus()
    one.get_by_role("listbox").first.focus()
    page.keyboard.press("l")
    expect(one.locator(".ch-legend button").first).to_have_text("linear scale")
    page.keyboard.press("]")
    expect(one.get_by_role("heading", level=2).first).to_have_text("Layer 1, head 2")

    assert [each.inner_text() for each in (two, three, figure)] == others
    themes = page.locator(".ch-shell").evaluate_all(
        "(all) => all.map((each) => each.dataset.theme)"
    )
    assert themes == ["dark", "light", "light"]
    assert figure.evaluate("(each) => each.state") == ""
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(ids) == len(set(ids))
    assert (page.evaluate("history.length"), page.url, page.title()) == (length, address, "four")


SIZES = """() => {
  const root = document.querySelector("ch-figure, .ch-trace-figure")?.shadowRoot ?? document.querySelector(".ch-shell");
  const own = (each) => [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  return [...root.querySelectorAll("*")].filter((each) => own(each) && !each.closest("svg, dialog, style"))
    .map((each) => [each.className, parseFloat(getComputedStyle(each).fontSize)]);
}"""
CUT_OR_COVERED = """() => {
  const root = document.querySelector("ch-figure, .ch-trace-figure")?.shadowRoot ?? document;
  const wrong = [];
  const name = (each) => `${each.tagName}.${each.getAttribute("class") ?? ""} ${each.textContent.slice(0, 30)}`;
  const scrolls = (each) => {
    for (let at = each; at; at = at.parentElement) {
      const { overflowX, overflowY } = getComputedStyle(at);
      if (/auto|scroll/.test(overflowX + overflowY)) return true;
    }
    return false;
  };
  for (const each of root.querySelectorAll("button, select, input, h1, h2, h3, p, td, th, label, li")) {
    const box = each.getBoundingClientRect();
    if (!each.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    if (box.width < 2 || box.height < 2 || each.closest("dialog, .ch-skip, [popover]")) continue;
    if ((box.left < -1 || box.right > innerWidth + 1) && !scrolls(each)) wrong.push(`cut off: ${name(each)}`);
    const { overflowX } = getComputedStyle(each);
    if (overflowX === "hidden" && each.scrollWidth > each.clientWidth + 1 &&
        getComputedStyle(each).textOverflow !== "ellipsis") wrong.push(`cut short: ${name(each)}`);
  }
  for (const each of root.querySelectorAll("button, select, input, [role=spinbutton], [role=switch]")) {
    if (!each.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    if (each.closest("dialog, .ch-skip, [popover]")) continue;
    each.scrollIntoView({ block: "center", inline: "center" });
    const box = each.getBoundingClientRect();
    if (box.width < 2) continue;
    const top = root.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
    const around = each.closest("label");
    if (top && !each.contains(top) && !top.contains(each) && !around?.contains(top)) {
      wrong.push(`covered: ${name(each)} by ${name(top)}`);
    }
  }
  scrollTo(0, 0);
  if (document.documentElement.scrollWidth > innerWidth) wrong.push("wider than the window");
  return [...new Set(wrong)];
}"""


def test_the_first_tab_leads_to_what_the_page_is_for(opens: Opens, tmp_path: Path) -> None:
    for kind, place in (("heads", ".ch-map-canvas"), ("trace", ".ch-trace-figure")):
        page = drawn(opens, kind, tmp_path)
        page.keyboard.press("Tab")
        link = page.locator(".ch-skip")
        expect(link).to_be_focused()
        expect(link).to_be_in_viewport()
        page.keyboard.press("Enter")
        assert page.evaluate("(place) => document.activeElement.matches(place)", place)


@pytest.mark.parametrize("kind", ["heads", "trace", "figure"])
def test_a_page_fits_any_width_and_any_reader(
    opens: Opens, violations: Callable[[Page], list[str]], tmp_path: Path, kind: str
) -> None:
    page = drawn(opens, kind, tmp_path)
    found: dict[int, list[str]] = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": max(800, width * 9 // 16)})
        page.evaluate(TWO_FRAMES)
        page.evaluate(TWO_FRAMES)
        found[width] = page.evaluate(CUT_OR_COVERED)
        if width < 1000:
            found[width] += violations(page)
    assert found == {width: [] for width in WIDTHS}
    # Words are as large as the browser is set to; pixels know nothing of that.
    page.set_viewport_size({"width": 1280, "height": 900})
    before = page.evaluate(SIZES)
    page.evaluate("document.documentElement.style.fontSize = '24px'")
    page.evaluate(TWO_FRAMES)
    after = page.evaluate(SIZES)
    assert len(before) == len(after) > 20
    small = [
        name
        for (name, size), (_, larger) in zip(before, after, strict=True)
        if larger != pytest.approx(1.5 * size, rel=0.01)
    ]
    assert small == []
    page.evaluate(TWO_FRAMES)
    assert page.evaluate(CUT_OR_COVERED) == []


def test_what_matters_is_in_sight(opens: Opens, tmp_path: Path) -> None:
    page = drawn(opens, "heads", tmp_path)
    page.keyboard.press("y")
    expect(page.locator(".ch-why svg")).to_be_in_viewport(ratio=1)
    # What a page begins with stays where it is.
    page = opens(heads("head=1.1&pin=7,1&why=1"))
    page.locator(".ch-why svg").wait_for()
    assert page.evaluate("scrollY") == 0
    page.keyboard.press("y")
    for difference in (False, True):
        for key in "cd" if difference else "":
            page.keyboard.press(key)
        expect(page.get_by_role("heading", name="−")).to_have_count(int(difference))
        for width in (1280, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            expect(page.locator(".ch-legend").first).to_be_in_viewport(ratio=1)


# Of each key of the help: where the focus is, and what is pressed.
HEADS_KEYS = {
    "arrows": ("[role=listbox]", "ArrowRight"),
    "Enter": (".ch-map-canvas", "ArrowRight Enter"),
    "Shift + Enter": ("[role=listbox]", "ArrowRight Shift+Enter"),
    "+  −  0": (".ch-map-canvas", "+"),
    "Shift + arrows": (".ch-map-canvas", "+ + Shift+ArrowRight"),
    "[  ]": (None, "]"),
    "/": (None, "/"),
    "c": (None, "c"),
    "d": (None, "c d"),
    "y": (None, "y"),
    "l": (None, "l"),
    "Ctrl + Enter": ('[data-head="0/0"]', "Control+Enter"),
    "m": (None, "m"),
    "w": (None, "w"),
    "?": (None, "?"),
}
# What a page says and where it stands: its words, places of the map, what is typed in, the size of the map.
SAYS = """() => [
  document.querySelector(".ch-shell").innerText,
  document.querySelector(".ch-trace-figure")?.shadowRoot.querySelector(".reading").innerText,
  ...[...document.querySelectorAll(".ch-axes text")].map((each) => each.textContent),
  document.activeElement.tagName,
  document.querySelector(".ch-map-canvas")?.getBoundingClientRect().width,
  document.querySelector("dialog[open]") !== null,
].join("|")"""
TRACE_KEYS = {
    "← →": (None, "ArrowRight"),
    "↑ ↓": (None, "ArrowDown"),
    "?": (None, "?"),
}


@pytest.mark.parametrize(("kind", "keys"), [("heads", HEADS_KEYS), ("trace", TRACE_KEYS)])
def test_every_key_of_the_help_changes_the_page(
    opens: Opens, tmp_path: Path, kind: str, keys: dict[str, tuple[str | None, str]]
) -> None:
    page = drawn(opens, kind, tmp_path)
    assert page.locator(".ch-help dt kbd").all_text_contents() == list(keys)
    for place, pressed in keys.values():
        restart(page)
        if place:
            page.locator(place).first.focus()
        *before, last = pressed.split()
        for each in before:
            page.keyboard.press(each)
            page.evaluate(TWO_FRAMES)
        was = page.evaluate(SAYS)
        page.keyboard.press(last)
        becomes(page, SAYS, lambda now, was=was: now != was)
