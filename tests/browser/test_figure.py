"""Figures whose numbers are touched: by keys, by a pointer, by typing; several in one page."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import BrowserContext, Page, expect

import clearhead as ch
from clearhead.drawing.element.figure import Figure
from clearhead.drawing.page.page import asset
from clearhead.tracing.text import number
from tests.browser.conftest import PHONE, Opens
from tests.browser.figures import cell, numbers, reading

WORDS = ["Your", "journey", "starts"]
QUERY = torch.tensor([[1.0, 0.5], [0.0, 2.0], [-1.0, 1.0]], dtype=torch.float64)
KEY = torch.tensor([[1.0, 1.0], [0.5, -1.0], [2.0, 0.0]], dtype=torch.float64)
VALUE = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]], dtype=torch.float64)


def figure(**options: Any) -> Figure:
    return ch.figure(QUERY, KEY, VALUE, **{"tokens": WORDS, "mask": ch.causal()} | options)


def drawn(opens: Opens, made: Figure, folder: Path, **options: Any) -> Page:
    page = opens(made.to_html(folder / "figure.html").as_uri(), **options)
    page.locator("ch-figure .panel").first.wait_for()
    return page


@pytest.fixture(scope="module")
def shared(opens_once: Opens, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return drawn(opens_once, figure(), tmp_path_factory.mktemp("figure"))


@pytest.fixture
def page(shared: Page) -> Page:
    """The page of the figure, as it began."""
    shared.mouse.move(0, 0)
    shared.evaluate("document.activeElement.blur()")
    shared.get_by_role("button", name="reset").click()
    return shared


def texts(tensor: torch.Tensor) -> list[str]:
    return [number(each) for each in tensor.flatten().tolist()]


def state(page: Page) -> str:
    return page.locator("ch-figure").evaluate("(each) => each.state")


def test_it_begins_as_python_has_it(page: Page) -> None:
    steps = ch.trace(ch.attend, QUERY, KEY, VALUE, mask=ch.causal())
    for stage in ("query", "key", "scores", "weights", "context"):
        assert numbers(page, stage) == texts(steps[stage]), stage
    assert state(page) == ""
    cell(page, "weights.2.1").hover()
    entropy = ch.AttentionMatrix(QUERY, KEY, mask=ch.causal()).entropy()
    told = f"Entropy of the row: {number(float(entropy.flatten()[2]))} nats."
    assert told in reading(page)
    ground = "(each) => getComputedStyle(each.shadowRoot.querySelector('.figure')).backgroundColor"
    place = page.locator("ch-figure")
    assert place.evaluate(ground) == "rgb(252, 252, 251)"
    place.evaluate("(each) => each.setAttribute('theme', 'dark')")
    assert place.evaluate(ground) == "rgb(18, 20, 23)"
    place.evaluate("(each) => each.removeAttribute('theme')")
    page.emulate_media(media="print")
    assert page.locator("ch-figure > table").first.is_visible()
    assert page.locator(".panel").first.is_hidden()
    page.emulate_media(media="screen")


def test_a_query_is_changed_by_keys_and_all_else_follows(page: Page) -> None:
    before = numbers(page, "weights")
    cell(page, "query.1.0").focus()
    for key in ("ArrowUp", "ArrowUp", "Shift+ArrowUp", "ArrowDown", "PageUp"):
        page.keyboard.press(key)
    changed = QUERY.clone()
    changed[1, 0] = 2.1
    steps = ch.trace(ch.attend, changed, KEY, VALUE, mask=ch.causal())
    for stage in ("query", "scores", "weights", "context"):
        assert numbers(page, stage) == texts(steps[stage]), stage
    assert state(page) == "query.1.0=2.1"
    # The old number is that before the last edit, and what did not change has none.
    assert cell(page, "query.1.0").locator("small").inner_text() == "1.10"
    assert cell(page, "weights.0.0").locator("small").count() == 0
    assert cell(page, "query.1.0").get_attribute("aria-valuenow") == "2.1"
    page.get_by_role("button", name="reset").click()
    assert numbers(page, "weights") == before
    assert state(page) == ""


def test_what_changed_is_lit_one_stage_after_the_other(opens: Opens, tmp_path: Path) -> None:
    page = drawn(opens, figure(), tmp_path)
    delays = "(each) => each.getAnimations().map(({ effect }) => effect.getTiming().delay)"
    # A clock that stands still.
    page.evaluate(
        "() => { const { animate } = Element.prototype; Element.prototype.animate = function "
        "(...given) { const made = animate.apply(this, given); made.pause(); return made; } }"
    )
    stages = ["query.1.0", "scores.1.0", "weights.1.0", "context.1.0"]
    for times in range(3):
        page.emulate_media(reduced_motion="no-preference" if times else "reduce")
        cell(page, stages[0]).press("ArrowUp")
        lit = [cell(page, at).evaluate(delays) for at in stages]
        assert [len(each) for each in lit] == [times] * 4
        assert lit == sorted(lit)
        assert len(set(map(tuple, lit))) == (4 if times else 1)
        assert cell(page, "context.2.0").evaluate(delays) == []


def test_a_score_that_is_set_is_cut_and_says_so(page: Page) -> None:
    score = cell(page, "scores.1.0")
    score.focus()
    for text, key in (("7", "Escape"), ("-", "Enter")):
        page.keyboard.type(text)
        page.keyboard.press(key)
    assert state(page) == ""
    expect(score).to_be_focused()
    page.keyboard.type("3,5")
    page.keyboard.press("Enter")
    assert score.locator("span").inner_text() == "3.50"
    assert "cut from query · key" in page.get_by_role("status").inner_text()
    told = reading(page)
    assert "Set by hand; 2.0000 is what query · keyᵀ gives, from which it is cut:" in told
    assert "0.0000·1.0000 + 2.0000·1.0000 = 2.0000" in told
    expect(score).to_be_focused()
    query = cell(page, "query.1.1")
    query.focus()
    page.keyboard.press("ArrowUp")
    assert score.locator("span").inner_text() == "3.50"
    assert cell(page, "scores.1.1").locator("span").inner_text() == "−2.10"
    score.focus()
    page.keyboard.press("Delete")
    assert score.locator("span").inner_text() == "2.10"
    assert state(page) == "query.1.1=2.1"


def test_a_drag_sideways_is_one_edit(page: Page) -> None:
    box = cell(page, "query.0.0").bounding_box()
    assert box is not None
    x, y = box["x"] + 20, box["y"] + 20
    page.mouse.move(x, y)
    page.mouse.down()
    for by in (6, 18, 60):
        page.mouse.move(x + by, y)
    page.mouse.up()
    assert state(page) == "query.0.0=2"
    assert cell(page, "query.0.0").locator("small").inner_text() == "1.00"
    assert page.locator("ch-figure input:not([type=range])").count() == 0


def test_a_mask_is_clicked_dragged_and_named(page: Page) -> None:
    cell(page, "mask.2.0").click()
    assert state(page) == "mask=100.110.011"
    assert numbers(page, "weights")[6] == "0.0000"
    assert "5 of 9 pairs are visible." in page.get_by_role("status").inner_text()
    cell(page, "mask.0.1").focus()
    page.keyboard.press("Space")
    assert cell(page, "mask.0.1").get_attribute("aria-checked") == "true"
    page.keyboard.press("ArrowDown")
    expect(cell(page, "mask.1.1")).to_be_focused()
    page.get_by_role("button", name="window").click()
    assert state(page) == "mask=100.110.011"
    cell(page, "mask.2.1").hover()
    page.mouse.down()
    cell(page, "mask.1.1").hover()
    cell(page, "mask.0.0").hover()
    page.mouse.up()
    assert state(page) == "mask=000.100.001"
    assert numbers(page, "context")[:2] == ["0.0000", "0.0000"]
    page.get_by_role("button", name="all").click()
    steps = ch.trace(ch.attend, QUERY, KEY, VALUE)
    assert numbers(page, "weights") == texts(steps["weights"])


def test_a_number_that_is_asked_for(opens: Opens, tmp_path: Path) -> None:
    page = drawn(opens, figure(predict=("weights", 1, 0)), tmp_path)
    asked = cell(page, "weights.1.0")
    assert asked.inner_text() == "?"
    true = number(float(ch.trace(ch.attend, QUERY, KEY, VALUE, mask=ch.causal())["weights"][1, 0]))
    asked.hover()
    assert true not in page.locator("[data-stage=weights]").inner_text()
    assert reading(page) == "This is the number that is asked for."
    page.get_by_label("What is weights journey → Your?").fill("0.75")
    page.get_by_role("button", name="compare").click()
    told = page.locator(".predict").inner_text()
    assert "0.7500" in told
    assert true in told
    assert "the weight is the share:" in told
    assert numbers(page, "weights")[3] == true
    assert state(page) == "guess=0.75"
    page.get_by_role("button", name="guess again").click()
    assert asked.inner_text() == "?"


def test_the_state_is_a_property_an_attribute_and_an_event(opens: Opens, tmp_path: Path) -> None:
    page = drawn(opens, figure(), tmp_path)
    page.evaluate(
        """() => {
            window.heard = [];
            document.addEventListener("statechange", (event) => window.heard.push(event.detail));
            document.querySelector("ch-figure").state = "scores.1.0=4&nothing=1";
        }"""
    )
    expect(cell(page, "scores.1.0").locator("span")).to_have_text("4.00")
    assert page.evaluate("window.heard") == ["scores.1.0=4"]
    page.evaluate(
        """() => {
            const [old] = document.querySelectorAll("ch-figure");
            const other = document.createElement("ch-figure");
            other.dataset.figure = old.dataset.figure;
            other.setAttribute("state", "scores.1.0=5");
            old.replaceWith(other);
        }"""
    )
    expect(cell(page, "scores.1.0").locator("span")).to_have_text("5.00")


def test_a_frame_is_told_the_height(opens: Opens, tmp_path: Path) -> None:
    inner = json.dumps(
        "<!doctype html><body style='margin:0'>"
        + figure().to_element(script=False)
        + "<script>"
        + asset("figure.js")
        + "</script>"
    ).replace("</", "<\\/")
    path = tmp_path / "around.html"
    path.write_text(
        "<!doctype html><html lang=en><title>around</title><body><iframe width=900 sandbox=allow-scripts>"
        "</iframe><script>window.told = []; addEventListener('message', (event) => "
        f"told.push(event.data)); document.querySelector('iframe').srcdoc = {inner}</script>",
        encoding="utf-8",
    )
    page = opens(path.as_uri())
    page.wait_for_function("told.length > 0")
    frame = page.frames[1]
    high = frame.evaluate("document.documentElement.getBoundingClientRect().height")
    assert page.evaluate("told.at(-1)") == {"clearhead": "height", "height": math.ceil(high)}
    assert high > 300


def test_where_nothing_runs_there_are_numbers(tmp_path: Path, window: BrowserContext) -> None:
    path = figure().to_html(tmp_path / "figure.html")
    assert window.browser is not None
    context = window.browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.locator("ch-figure > table").first.is_visible()
    context.close()


def test_by_touch(tmp_path: Path, window: BrowserContext) -> None:
    assert window.browser is not None
    context = window.browser.new_context(has_touch=True, viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(figure().to_html(tmp_path / "figure.html").as_uri())
    cell(page, "mask.1.0").tap()
    expect(cell(page, "mask.1.0")).to_have_attribute("aria-checked", "false")
    score = cell(page, "scores.2.2")
    score.tap()
    assert "scores starts → starts" in reading(page)
    assert score.locator("input").count() == 0
    page.wait_for_timeout(600)  # apart from a double tap
    score.tap()
    score.locator("input").fill("4")
    cell(page, "weights.0.0").tap()
    expect(score.locator("span")).to_have_text("4.00")
    assert state(page) == "scores.2.2=4&mask=100.010.111"
    context.close()


def test_everybody_can_use_it(
    opens: Opens, violations: Callable[[Page], list[str]], tmp_path: Path
) -> None:
    edit = ["query", "key", "value", "scores", "weights", "mask", "scale"]
    show = ["plane", "weights", "context"]
    made = figure(edit=edit, show=show, predict=("context", 1, 0), title="Three words")
    page = drawn(opens, made, tmp_path, dark=True, size=PHONE)
    cell(page, "scores.1.0").focus()
    page.keyboard.press("ArrowUp")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    small = page.locator(
        "ch-figure :is(button, [role=spinbutton], [role=switch], [role=slider], select, input)"
    ).evaluate_all(
        "(all) => all.map((each) => each.getBoundingClientRect())"
        ".filter((box) => Math.min(box.width, box.height) < 24).length"
    )
    assert small == 0


def test_every_digit_of_a_number_stands_on_one_line(opens: Opens, tmp_path: Path) -> None:
    query = torch.cat([QUERY * -12345.678, QUERY * -24.3624])
    made = ch.figure(query, KEY * 1e-9, VALUE * 1e20, edit=("query", "scores"))
    page = drawn(opens, made, tmp_path)
    cut = "(all) => all.filter((each) => each.scrollWidth > each.clientWidth).length"
    assert page.locator("ch-figure .cell").evaluate_all(cut) == 0
    # A minus is a place at which a line may break.
    page.set_viewport_size({"width": 390, "height": 800})
    assert any(text.startswith("−24.3") for text in numbers(page, "query"))
    lines = """(all) => all.map((each) => {
      const range = document.createRange();
      range.selectNodeContents(each);
      return new Set([...range.getClientRects()].map(({ top }) => Math.round(top))).size;
    })"""
    texts = page.locator("ch-figure .cell > span:not(:empty)")
    assert set(texts.evaluate_all(lines)) == {1}


def test_arrows_are_dragged_turned_and_stretched(opens: Opens, tmp_path: Path) -> None:
    made = figure(mask=None, show=("plane", "weights", "context"), edit=("query", "value"))
    page = drawn(opens, made, tmp_path)
    arrow = page.get_by_role("slider", name="query journey")
    assert arrow.get_attribute("aria-valuetext") == "0.0000, 2.0000"
    arrow.focus()
    for key in ("ArrowUp", *["ArrowRight"] * 18):
        page.keyboard.press(key)
    x, y = (float(each) for each in (arrow.get_attribute("aria-valuetext") or "").split(", "))
    assert abs(x - 2.2) < 1e-2
    assert abs(y) < 1e-2
    assert arrow.get_attribute("aria-valuenow") == "0"
    changed = QUERY.clone()
    changed[1] = torch.tensor([x, y])
    weights = ch.trace(ch.attend, changed, KEY, VALUE)["weights"]
    assert numbers(page, "weights") == texts(weights)


def test_a_mask_alone(
    opens: Opens, violations: Callable[[Page], list[str]], tmp_path: Path
) -> None:
    page = drawn(opens, ch.causal().figure(6), tmp_path)
    cell(page, "mask.0.5").click()
    assert state(page) == "mask=100001.110000.111000.111100.111110.111111"
    assert violations(page) == []


def test_tokens_are_moved_and_turned_by_their_place(opens: Opens, tmp_path: Path) -> None:
    made = figure(mask=None, show=("weights", "context"), edit=("order", "rotary"))
    page = drawn(opens, made, tmp_path)
    page.get_by_role("button", name="Your, place 1").focus()
    page.keyboard.press("ArrowRight")
    order = [1, 0, 2]
    steps = ch.trace(ch.attend, QUERY[order], KEY[order], VALUE[order])
    assert numbers(page, "weights") == texts(steps["weights"])
    page.get_by_role("button", name="starts, place 3").click()
    assert state(page) == "order=2.1.0"
    page.get_by_role("button", name="rotary").click()
    turn = ch.layers.Rotary(2)
    query, key = (turn(each.flip(0), torch.arange(3)) for each in (QUERY, KEY))
    steps = ch.trace(ch.attend, query, key, VALUE.flip(0))
    assert numbers(page, "weights") == texts(steps["weights"])
    assert state(page) == "order=2.1.0&rotary=1"


def test_dropout_is_drawn_by_hand(opens: Opens, tmp_path: Path) -> None:
    page = drawn(opens, figure(show=("weights",), edit=("dropout",)), tmp_path)
    assert numbers(page, "dropped_weights") == numbers(page, "weights")
    share = "(all) => all.map((each) => each.style.getPropertyValue('--share'))"
    shares = [
        page.locator(f"[data-stage={name}] .cell").evaluate_all(share)
        for name in ("weights", "dropped_weights", "mean_weights")
    ]
    assert shares[0] == shares[1] == shares[2]
    page.get_by_role("button", name="draw anew").click()
    assert state(page) == "draws=1"
    assert numbers(page, "dropped_weights") == numbers(page, "mean_weights")
    page.get_by_role("button", name="100 more").click()
    assert state(page) == "draws=101"
    assert numbers(page, "dropped_weights") != numbers(page, "mean_weights")


def test_a_query_is_split_into_heads_and_joined_again(opens: Opens, tmp_path: Path) -> None:
    counted = torch.arange(12.0).view(3, 4)
    made = ch.figure(counted, counted, counted, show=("query",), edit=("heads",))
    page = drawn(opens, made, tmp_path)
    split = counted.view(3, 2, 2).transpose(0, 1)
    assert numbers(page, "split") == [f"{each:.0f}" for each in split.flatten().tolist()]
    assert numbers(page, "joined") == [f"{each}" for each in range(12)]
    page.get_by_role("button", name="transpose back").press("Enter")
    assert numbers(page, "joined") == numbers(page, "split")
    # Colours are mixed in a row.
    rows = page.locator("[data-stage=joined] tr")
    assert [rows.nth(row).locator(".hue1").count() for row in (1, 2)] == [0, 2]
    page.get_by_role("button", name="4", exact=True).click()
    assert state(page) == "heads=4&back=0"
