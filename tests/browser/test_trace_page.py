"""The page of a trace: its numbers, the arithmetic of each, and what is in focus."""

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Page, expect
from torch import Tensor

import clearhead as ch
from clearhead import ladder
from clearhead.drawing.element.trace_page import trace_payload
from clearhead.drawing.page.payload import Payload
from tests.browser.conftest import DESKTOP, PHONE, TWO_FRAMES, Opens, restart, still
from tests.browser.figures import cell, numbers, point_at, reading


@cache
def journey() -> ch.types.Trace:
    """The example of the ladder, causal."""
    rung = ladder.MaskedAttention(3, head_dim=2, mask=ch.causal())
    rung.requires_grad_(False)
    return ch.trace(rung, ladder.EXAMPLE_EMBEDDINGS, tokens=ladder.EXAMPLE_TOKENS)


def drawn(opens: Opens, payload: Payload, **options: Any) -> Page:
    """The page, once there is something to see."""
    page = opens(payload, **options)
    page.locator(".reading").wait_for()
    return page


@pytest.fixture(scope="module")
def shared(opens_once: Opens) -> Page:
    return drawn(opens_once, trace_payload(journey()))


@pytest.fixture
def page(shared: Page) -> Page:
    """The page of the example, as it began."""
    shared.set_viewport_size({"width": DESKTOP["width"], "height": DESKTOP["height"]})
    restart(shared)
    return shared


def texts(tensor: Tensor) -> list[str]:
    return [_text(each) for each in tensor.flatten()]


def _text(number: Tensor) -> str:
    value = float(number)
    return "−∞" if value == -math.inf else f"{value:.4f}".replace("-", "−")


def test_every_number_of_every_stage_is_that_of_the_trace(page: Page) -> None:
    for name, step in journey().steps.items():
        assert numbers(page, name) == ([] if step.same_as else texts(step.tensor)), name
    # Hidden pairs look hidden, and have no number.
    assert page.locator("[data-stage=weights] .hidden").count() == 15
    assert page.locator("[data-stage=weights] .hidden span:not(:empty)").count() == 0


def test_all_stages_of_a_row_are_on_one_screen(page: Page) -> None:
    # As wide as a window, and as a lesson.
    for width, height in ((1280, 860), (736, 600)):
        page.set_viewport_size({"width": width, "height": height})
        page.evaluate(TWO_FRAMES)
        places = page.locator(".panel").evaluate_all(
            "(all) => all.map((each) => each.getBoundingClientRect().bottom)"
        )
        assert len(places) == 12
        assert max(places) <= height
    page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    page.evaluate(TWO_FRAMES)
    assert page.evaluate("document.documentElement.scrollHeight") <= 900
    # One stage at a time, with the same row.
    page.get_by_role("button", name="step ›").click()
    inside = page.locator(".panel").evaluate_all(
        """(all) => all.filter((each) => {
            const { left, right } = each.getBoundingClientRect();
            return left >= 0 && right <= innerWidth;
        }).map((each) => each.dataset.stage)"""
    )
    assert inside == ["scaled_scores"]


def test_softmax_is_told_step_by_step(page: Page) -> None:
    masked = journey()["masked_scores"].double()
    exps = (masked[3] - masked[3].max()).exp()
    assert f"The exps add up to {_text(exps.sum())}" in point_at(page, "weights", 3, 1)
    rows = page.locator(".keys tbody tr").all_inner_texts()
    assert [each.split()[1] for each in rows] == list(ladder.EXAMPLE_TOKENS)
    assert [each.split()[3] for each in rows] == [*map(_text, exps[:4]), "hidden", "hidden"]
    assert "the mask hides this key: weight 0" in point_at(page, "weights", 1, 4)
    assert "becomes −∞" in point_at(page, "masked_scores", 1, 4)


def test_from_x_to_the_output(opens: Opens) -> None:
    layer = ch.MultiHeadAttention(4, num_heads=2, mask=ch.causal(), bias=True).requires_grad_(False)
    trace = ch.trace(layer, torch.randn(5, 4), tokens=["it", "was", "a", "long", "day"])
    page = drawn(opens, trace_payload(trace, head=1))
    assert page.get_by_role("heading", level=1).inner_text() == "it was a long day"
    stages = page.locator(".panel").evaluate_all("(all) => all.map((each) => each.dataset.stage)")
    made = ["W_query", "query", "W_key", "key", "W_value", "value"]
    own = [name for name in list(trace)[4:-1] if trace.steps[name].same_as is None]
    assert stages == ["x", *made, *own, "contexts", "W_output", "output"]
    cell(page, "x.3.1").click()
    for stage in stages:
        assert reading(page).startswith(stage)
        page.get_by_role("button", name="step ›").click()
    assert f"= {_text(trace['output'][3, 1])}" in point_at(page, "output", 3, 1)
    assert point_at(page, "contexts", 3, 0).endswith("Number 0 of the context of head 0.")
    assert point_at(page, "W_query", 4, 0).startswith("W_query bias · head_dim")


def test_where_a_number_comes_from_is_marked(page: Page) -> None:
    point_at(page, "scores", 4, 2)
    marked = page.locator(".marked").evaluate_all("(all) => all.map((each) => each.dataset.at)")
    operands = {f"{stage}.{d}" for stage in ("query.4", "key.2") for d in (0, 1)}
    assert set(marked) == {"scores.4.2", *operands}
    assert page.locator("tr.focus").count() == 12


def test_keys_step_through_stages_and_queries(page: Page) -> None:
    assert reading(page).startswith("scores 1 journey → 1 journey")
    page.keyboard.press("ArrowRight")
    assert reading(page).startswith("scaled_scores 1 journey → 1 journey")
    assert page.locator(".later").count() == 3
    page.keyboard.press("ArrowDown")
    assert reading(page).startswith("scaled_scores 2 starts → 2 starts")
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    assert reading(page).startswith("context 2 starts")
    assert page.locator(".later").count() == 0
    # In the cells keys go from number to number.
    cell(page, "weights.2.2").click()
    for key, at in (("ArrowLeft", "2.1"), ("ArrowUp", "1.1"), ("End", "1.5"), ("Home", "1.0")):
        page.keyboard.press(key)
        expect(cell(page, f"weights.{at}")).to_be_focused()
    page.get_by_role("button", name="4 one").click()
    assert reading(page).startswith("weights 4 one → 4 one")


def test_heads_and_samples_are_chosen(opens: Opens) -> None:
    layer = ch.MultiHeadAttention(8, num_heads=4, num_kv_heads=2, mask=ch.causal())
    layer.requires_grad_(False)
    trace = ch.trace(layer, torch.randn(3, 5, 8))
    page = drawn(opens, trace_payload(trace))
    page.get_by_label("Head").select_option("3")
    page.get_by_label("Sample").select_option("2")
    for name, part in (
        ("weights", trace["weights"][2, 3]),
        ("key", trace["key"][2, 1]),
        ("x", trace["x"][2]),
    ):
        assert numbers(page, name) == texts(part), name
    assert point_at(page, "scores", 4, 1).endswith(f"= {_text(trace['scores'][2, 3, 4, 1])}")


def test_a_long_trace_shows_what_is_around_the_query(opens: Opens) -> None:
    query, key, val = torch.randn(3, 101, 16)
    trace = ch.trace(ch.attend, query, key, val, mask=ch.causal())
    page = drawn(opens, trace_payload(trace))
    page.locator(".words").get_by_role("button", name="100", exact=True).click()
    assert reading(page).startswith("scores 100 → 100")
    panel = page.locator("[data-stage=weights]")
    assert "rows 89 to 100 of 101" in panel.inner_text()
    assert "columns 37 to 100 of 101" in panel.inner_text()
    assert numbers(page, "weights") == texts(trace["weights"][89:, 37:])
    # Of many terms the last are added up.
    told = point_at(page, "scores", 100, 99)
    assert " + 9 more: " in told
    assert told.endswith(f"= {_text(trace['scores'][100, 99])}")
    assert "… and 77 more keys, whose exps add up to" in point_at(page, "weights", 100, 99)
    panel.get_by_label("columns before these").click()
    assert "columns 0 to 63 of 101" in panel.inner_text()


def test_an_empty_axis_leaves_shapes_and_formulas(opens: Opens) -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
    trace = ch.trace(layer, torch.zeros(2, 0, 8))
    page = opens(trace_payload(trace))
    assert (
        page.locator("main")
        .get_by_role("status")
        .inner_text()
        .startswith("There are no numbers to")
    )
    listed = page.get_by_role("list", name="Stages").get_by_role("listitem").all_inner_texts()
    named = {text.split(" ")[0]: text for text in listed}
    assert [name for name in named if name in trace] == list(trace)
    assert "W_output" in named
    for name, step in trace.steps.items():
        assert f"[{step.shape}]" in named[name]
        assert named[name].endswith(step.formula)


def test_inside_another_page_it_has_no_title_and_writes_no_history(
    opens: Opens, tmp_path: Path
) -> None:
    file = journey().to_html(tmp_path / "steps.html")
    (tmp_path / "outer.html").write_text(
        f"""<!doctype html><title>a lesson</title><body style="margin: 0">
        <script>
        onmessage = ({{ data }}) => {{
          if (data.clearhead === "height") document.querySelector("iframe").style.height = `${{data.height}}px`;
        }};
        </script>
        <iframe src="{file.name}#embed=1&stage=scores&query=3" style="border: 0; width: 100%"></iframe>"""
    )
    address = (tmp_path / "outer.html").as_uri()
    page = opens(address, allowed=file.as_uri(), size={"width": 736, "height": 900})
    frame = page.frame_locator("iframe").first
    frame.locator(".reading").wait_for()
    assert frame.locator(".reading").inner_text().startswith("scores 3 with → 3 with")
    assert frame.locator("h1, header").count() == 0
    still(page.locator("iframe"))
    inside = "[document.documentElement.scrollHeight, innerHeight, document.documentElement.scrollWidth, innerWidth]"
    height, seen, broad, wide = page.frames[1].evaluate(inside)
    assert (height, broad) == (seen, wide)
    # The page around it says whether it is dark.
    page.evaluate("frames[0].postMessage({ clearhead: 'theme', theme: 'dark' }, '*')")
    frame.locator("[data-theme=dark]").wait_for()
    page.evaluate("frames[0].postMessage({ clearhead: 'theme', theme: null }, '*')")
    frame.locator("[data-theme=light]").wait_for()
    # In a sandbox there is no address at all.
    boxed = "(html) => { const frame = document.createElement('iframe'); frame.sandbox = 'allow-scripts'; "
    boxed += "frame.id = 'boxed'; frame.srcdoc = html; document.body.append(frame); }"
    page.evaluate(boxed, file.read_text("utf-8"))
    steps = page.evaluate("history.length")
    for inner in (page.frame_locator("iframe").first, page.frame_locator("#boxed")):
        inner.get_by_role("button", name="step ›").click()
        expect(inner.locator(".reading")).to_contain_text("scaled_scores")
    page.wait_for_timeout(400)
    assert page.evaluate("history.length") == steps


def test_the_address_says_what_is_shown(opens: Opens, tmp_path: Path) -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal()).requires_grad_(False)
    file = ch.trace(layer, torch.randn(3, 5, 8)).to_html(tmp_path / "steps.html")
    page = opens(
        f"{file.as_uri()}#stage=weights&query=4&key=2&head=1&sample=2", allowed=file.as_uri()
    )
    page.locator(".reading").wait_for()
    assert reading(page).startswith("weights 4 → 2")
    assert page.get_by_label("Sample").input_value() == "2"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.hash.startsWith('#stage=context&query=3')")
    page.reload()
    page.locator(".reading").wait_for()
    assert reading(page).startswith("context 3")
    page.go_back()
    expect(page.locator(".reading")).to_contain_text(re.compile("^weights"))
    page.goto(f"{file.as_uri()}#stage=nowhere&query=5&head=2")
    page.reload()
    missing = page.locator(".ch-missing")
    expect(missing).to_have_text(re.compile("stage=nowhere; query=5; head=2$"))


class OverQueries(torch.nn.Module):
    """A softmax over the wrong axis."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = torch.nn.ModuleList(torch.nn.Linear(3, 2, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (each(x) for each in self.maps)
        return torch.softmax(query @ key.mT / 2**0.5, dim=-2) @ value


def test_what_went_wrong_stands_beside_what_is_expected(opens: Opens) -> None:
    trace = ch.trace(OverQueries(), torch.randn(4, 3))
    page = drawn(opens, trace_payload(trace))
    assert reading(page).startswith("weights")
    assert "is expected" in reading(page)
    right = trace["scaled_scores"].softmax(-1)
    assert numbers(page, "expected_weights") == texts(right)
    differ = page.locator("[data-stage=weights] .wrong")
    assert differ.count() == int((right - trace["weights"]).abs().gt(5e-5).sum())
