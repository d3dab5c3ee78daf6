"""The page of a trace: what it says of a number is how the number came about."""

import math
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Page, expect
from torch import Tensor

import clearhead as ch
from clearhead import ladder
from clearhead.drawing.page.payload import Payload
from clearhead.drawing.page.steps import steps_payload
from tests.browser.conftest import DESKTOP, PHONE, Opens, still

HOSTILE = ["<script>alert(1)</script>", "</script>", "\x1b[31m", "\u202eabc", "שלום", "猫👩‍👩‍👧"]
NUMBER = r"−?(?:\d+\.\d+|∞)"


def journey() -> ch.types.Trace:
    """The example of the ladder, causal."""
    rung = ladder.MaskedAttention(3, head_dim=2, mask=ch.causal())
    rung.requires_grad_(False)
    return ch.trace(rung, ladder.EXAMPLE_EMBEDDINGS, tokens=ladder.EXAMPLE_TOKENS)


def drawn(opens: Opens, payload: Payload, **options: Any) -> Page:
    """The page, once there is something to see."""
    page = opens(payload, **options)
    page.locator(".ch-st-told").wait_for()
    return page


def told(page: Page) -> str:
    return page.locator(".ch-st-told").inner_text()


def choose(page: Page, stage: str) -> None:
    """Look at this stage, which then stands beside what it is made of."""
    page.locator(".ch-st-graph").get_by_role("button", name=stage, exact=True).click()
    page.mouse.move(5, 5)


def point_at(page: Page, stage: str, row: int, column: int) -> str:
    """What is told of a cell while the pointer is over it."""
    choose(page, stage)
    cell = page.locator(f"section[data-stage={stage}] tbody tr").nth(row).locator("td").nth(column)
    cell.dispatch_event("pointerover", {"bubbles": True})
    return told(page)


def value(text: str) -> float:
    return float(text.replace("−", "-").replace("∞", "inf"))


def shown(number: float) -> float:
    """A number as it is printed."""
    return float(f"{number:.4f}") if math.isfinite(number) else number


def result(text: str) -> float:
    """The number that the first line is about."""
    found = re.search(rf"= ({NUMBER})", text.split("\n\n")[0])
    assert found, text
    return value(found[1])


def sums(text: str) -> list[tuple[float, float]]:
    """Each line of products: what its terms come to, and what it says that they come to."""
    found = []
    for line in text.splitlines():
        if (
            "·" in line
            and re.fullmatch(rf".*\) ?= {NUMBER}|.*\d = {NUMBER}", line)
            and "→" not in line
        ):
            left, _, right = line.rpartition(" = ")
            if not re.match(r"^[(−\d]", left):
                continue
            total = 0.0
            for term in left.split(" + "):
                if " more: " in term:
                    total += value(term.partition(": ")[2])
                    continue
                one, _, other = term.partition("·")  # a bias is one number
                total += value(one.strip("()")) * (value(other.strip("()")) if other else 1.0)
            found.append((total, value(right)))
    return found


def rounding(terms: int, largest: float) -> float:
    """The error bound of a sum of products of numbers that are rounded to four places."""
    return terms * (2 * 0.5e-4 * largest + 0.5e-4**2) + 1.0e-4


def test_every_number_of_every_stage_is_that_of_the_trace(opens: Opens) -> None:
    trace = journey()
    page = drawn(opens, steps_payload(trace))
    for name, step in trace.steps.items():
        choose(page, name)
        if step.same_as is not None:
            section = page.locator(f"section[data-stage={name}]").inner_text()
            assert f"the same as {step.same_as}" in section
            continue
        cells = page.locator(f"section[data-stage={name}] tbody td").all_inner_texts()
        assert [value(each) for each in cells] == [
            shown(each) for each in step.tensor.flatten().tolist()
        ]
    # Hidden pairs look hidden.
    for stage, count in (("scores", 0), ("masked_scores", 15), ("weights", 15)):
        choose(page, stage)
        assert page.locator(f"section[data-stage={stage}] td.ch-st-hidden").count() == count


def test_the_sum_that_is_written_out_is_the_number(opens: Opens) -> None:
    trace = journey()
    page = drawn(opens, steps_payload(trace))
    for stage in ("scores", "context"):
        numbers = trace[stage]
        for row, column in [(0, 0), (3, 1), (5, 0), (4, 1)]:
            text = point_at(page, stage, row, column)
            assert result(text) == shown(float(numbers[row, column]))
            ((total, said),) = sums(text)
            assert said == result(text)
            assert abs(total - said) <= rounding(6, 1.0)


@pytest.mark.parametrize("size", [(1440, 900), (1280, 720), (1280, 600), (768, 1024), (390, 844)])
def test_the_arithmetic_covers_no_number(opens: Opens, size: tuple[int, int]) -> None:
    """It lay over six of eleven rows."""
    page = drawn(opens, steps_payload(journey()), size={"width": size[0], "height": size[1]})
    for stage in ("scores", "context"):
        choose(page, stage)
        for scroll in (0, 10_000):
            page.evaluate("(to) => scrollTo(0, to)", scroll)
            told, strip = (still(page.locator(f".ch-st-{name}")) for name in ("told", "strip"))
            apart = (
                told["y"] + told["height"] <= strip["y"] or strip["x"] + strip["width"] <= told["x"]
            )
            assert apart, (told, strip)


def test_the_largest_terms_are_written_out(opens: Opens) -> None:
    query, key = torch.full((1, 1, 1, 30), 0.01), torch.full((1, 1, 1, 30), 1.0)
    query[..., 29] = 5.0
    page = drawn(opens, steps_payload(ch.trace(ch.attend, query, key, torch.ones(1, 1, 1, 2))))
    text = point_at(page, "scores", 0, 0)
    assert "5.0000·1.0000" in text
    assert "23 more: 0.2300" in text


def test_softmax_is_told_step_by_step(opens: Opens) -> None:
    trace = journey()
    page = drawn(opens, steps_payload(trace))
    masked = trace["masked_scores"].double()
    for row, column in [(0, 0), (3, 1), (5, 4)]:
        text = point_at(page, "weights", row, column)
        scores = masked[row]
        exps = (scores - scores.max()).exp()
        assert f"The largest score of the row is {_text(scores.max())}" in text
        assert f"The exps add up to {_text(exps.sum())}" in text
        line = (
            f"{_text(exps[column])} / {_text(exps.sum())} = {_text(trace['weights'][row, column])}"
        )
        assert line in text
        rows = page.locator(".ch-st-shares tbody tr").all_inner_texts()
        words = [each.replace("\n", " ").split() for each in rows]
        for key, found in enumerate(words):
            hidden = key > row
            exp = "hidden" if hidden else _text(exps[key])
            expected = [_text(scores[key]), exp, _text(trace["weights"][row, key])]
            assert found == [str(key), ladder.EXAMPLE_TOKENS[key], *expected]
    assert "the mask hides this key: weight 0" in point_at(page, "weights", 1, 4)
    assert "becomes −∞" in point_at(page, "masked_scores", 1, 4)
    assert "stays" in point_at(page, "masked_scores", 4, 1)


def _text(number: Tensor) -> str:
    value = float(number)
    return "−∞" if value == -math.inf else f"{value:.4f}".replace("-", "−")


def test_from_x_to_the_output(opens: Opens) -> None:
    layer = ch.MultiHeadAttention(4, num_heads=2, mask=ch.causal(), bias=True).requires_grad_(False)
    trace = ch.trace(layer, torch.randn(5, 4), tokens=["it", "was", "a", "long", "day"])
    page = drawn(opens, steps_payload(trace, head=1))
    assert page.get_by_role("heading", level=1).inner_text() == "it was a long day"
    stages = page.locator(".ch-st-graph button").all_inner_texts()
    made = ["W_query", "query", "W_key", "key", "W_value", "value"]
    assert stages == ["x", *made, *list(trace)[4:-1], "contexts", "W_output", "output"]
    for _ in stages:
        page.keyboard.press("ArrowLeft")
    page.locator("section[data-stage=x] tbody tr").nth(3).locator("td").nth(1).click()
    page.mouse.move(5, 5)
    written = {}
    for stage in stages:
        text = told(page)
        assert text.startswith(stage)
        written[stage] = sums(text)
        # What a stage is made of stands before it, and nothing else.
        names = [each.get_attribute("data-stage") for each in page.locator(".ch-st-stage").all()]
        assert names[-1] == stage
        assert len(names) - 1 == page.locator(".ch-st-into").count()
        marked = page.locator("section:has(.ch-st-origin)").all()
        assert {each.get_attribute("data-stage") for each in marked} <= set(names[:-1])
        page.keyboard.press("ArrowRight")
    for stage in ("query", "key", "value", "scores", "context", "output"):
        ((total, said),) = written[stage]
        assert abs(total - said) <= rounding(6, 6.0), stage
    text = point_at(page, "output", 3, 1)
    assert result(text) == shown(float(trace["output"][3, 1]))
    assert point_at(page, "contexts", 3, 0).endswith("Number 0 of the context of head 0.")
    # Rows of a weight matrix are gone through like queries.
    choose(page, "W_query")
    for _ in range(4):
        page.keyboard.press("ArrowDown")
    assert told(page).startswith("W_query bias · head_dim")


def test_the_corner_of_a_table_is_no_number(opens: Opens) -> None:
    """It was taken for the number above and to the left of the first, and the page stopped."""
    page = drawn(opens, steps_payload(journey()))
    before = told(page)
    page.locator("section[data-stage=query] thead td").dispatch_event("pointerover")
    page.locator("section[data-stage=query] thead td").dispatch_event("click")
    assert told(page) == before


def test_where_a_number_comes_from_is_marked(opens: Opens) -> None:
    page = drawn(opens, steps_payload(journey()))
    point_at(page, "scores", 4, 2)
    for stage, row in (("query", 4), ("key", 2)):
        mark = page.locator(f"section[data-stage={stage}] .ch-st-origin").bounding_box()
        line = page.locator(f"section[data-stage={stage}] tbody tr").nth(row).bounding_box()
        assert mark is not None
        assert line is not None
        assert abs(mark["y"] - line["y"]) < 1
        assert abs(mark["height"] - line["height"]) < 1
    cell = page.locator("section[data-stage=scores] tbody tr").nth(4).locator("td").nth(2)
    assert page.locator(".ch-st-picked").bounding_box() == cell.bounding_box()


def test_keys_step_through_stages_queries_and_numbers(opens: Opens) -> None:
    page = drawn(opens, steps_payload(journey()))
    assert told(page).startswith("scores 1 journey → 1 journey")
    page.keyboard.press("ArrowRight")
    assert told(page).startswith("scaled_scores 1 journey → 1 journey")
    page.keyboard.press("ArrowRight")
    assert "The same as scaled_scores: no softcap." in told(page)
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert told(page).startswith("weights 2 starts → 1 journey")
    page.keyboard.press("Shift+ArrowLeft")
    assert told(page).startswith("weights 2 starts → 0 Your")
    page.keyboard.press("End")
    assert told(page).startswith("weights 5 step → 0 Your")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")
    assert told(page).startswith("masked_scores 0 Your → 0 Your")
    current = page.locator(".ch-st-rail [aria-current=step]")
    assert current.inner_text() == "masked_scores"
    for _ in range(20):
        page.keyboard.press("ArrowLeft")
    assert current.inner_text() == "x"
    assert page.get_by_label("The stage before").is_disabled()


def test_panels_stand_in_the_order_of_the_document_at_every_step(opens: Opens) -> None:
    page = drawn(opens, steps_payload(journey()))
    boxes = """(all) => all.map((each) => {
        const { top, bottom, left, right } = each.getBoundingClientRect();
        return [top, bottom, left, right].map(Math.round);
    })"""
    for _ in range(20):
        page.keyboard.press("ArrowLeft")
    for _ in range(12):
        places = page.locator(".ch-st-strip section").evaluate_all(boxes)
        assert places
        # Each stands to the right of the one before it, or below.
        for (top, bottom, _left, right), after in pairwise(places):
            assert after[0] >= bottom or (after[2] >= right and after[1] > top), places
        page.keyboard.press("ArrowRight")


def test_the_slider_is_the_query(opens: Opens) -> None:
    page = drawn(opens, steps_payload(journey()))
    slider = page.get_by_role("slider", name="Query")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert told(page).startswith("scores 2 starts → 1 journey")
    assert slider.get_attribute("aria-valuetext") == "2 starts"
    choose(page, "context")
    page.locator("section[data-stage=context] tbody tr").nth(4).locator("td").nth(1).click()
    page.mouse.move(5, 5)
    assert told(page).startswith("context 4 one · value_head_dim 1")
    assert slider.get_attribute("aria-valuetext") == "4 one"


def test_heads_and_samples_are_chosen(opens: Opens) -> None:
    layer = ch.MultiHeadAttention(8, num_heads=4, num_kv_heads=2, mask=ch.causal())
    layer.requires_grad_(False)
    trace = ch.trace(layer, torch.randn(3, 5, 8))
    page = drawn(opens, steps_payload(trace))
    page.get_by_label("Head").select_option("3")
    page.get_by_label("Sample").select_option("2")
    for name, part in (
        ("weights", trace["weights"][2, 3]),
        ("key", trace["key"][2, 1]),
        ("x", trace["x"][2]),
    ):
        choose(page, name)
        cells = page.locator(f"section[data-stage={name}] tbody td").all_inner_texts()
        assert [value(each) for each in cells] == [shown(each) for each in part.flatten().tolist()]
    ((total, said),) = sums(point_at(page, "scores", 4, 1))
    assert said == shown(float(trace["scores"][2, 3, 4, 1]))
    assert abs(total - said) <= rounding(2, 3.0)


def test_every_kind_of_stage_is_explained(opens: Opens) -> None:
    query, key, val = torch.randn(3, 1, 2, 5, 4)
    trace = ch.trace(
        ch.attend,
        query,
        key,
        val,
        softcap=2.0,
        bias=torch.randn(5, 5),
        sinks=torch.tensor([0.5, 1.5]),
        dropout=0.25,
    )
    page = drawn(opens, steps_payload(trace))
    numbers = {name: trace[name][0, 0] for name in trace}
    scaled, capped = numbers["scaled_scores"][2, 3], numbers["capped_scores"][2, 3]
    assert f"2.0000 · tanh({_text(scaled)} / 2.0000) = {_text(capped)}" in point_at(
        page, "capped_scores", 2, 3
    )
    text = point_at(page, "masked_scores", 2, 3)
    added = re.search(rf"({NUMBER}) \+ \(?({NUMBER})\)? = ({NUMBER})$", text, re.MULTILINE)
    assert added, text
    first, second, whole = map(value, added.groups())
    assert whole == shown(float(numbers["masked_scores"][2, 3]))
    assert abs(first + second - whole) <= 1.5e-4
    assert (
        f"exp({_text(0.5 - max(numbers['masked_scores'][2].max(), torch.tensor(0.5)))})"
        in point_at(page, "weights", 2, 3)
    )
    dropped = numbers["dropped_weights"]
    gone, kept = (dropped == 0).nonzero()[0].tolist(), (dropped != 0).nonzero()[0].tolist()
    assert "Dropout drew this weight" in point_at(page, "dropped_weights", *gone)
    assert (
        f"{_text(numbers['weights'][tuple(kept)])} / 0.7500 = {_text(dropped[tuple(kept)])}"
        in point_at(page, "dropped_weights", *kept)
    )


def test_weights_that_are_renormalised_say_so(opens: Opens) -> None:
    rung = ladder.RenormalisedAttention(3, head_dim=2, mask=ch.causal())
    rung.requires_grad_(False)
    trace = ch.trace(rung, ladder.EXAMPLE_EMBEDDINGS)
    page = drawn(opens, steps_payload(trace))
    text = point_at(page, "weights", 2, 1)
    found = re.search(rf"^({NUMBER}) / ({NUMBER}) / ({NUMBER}) = ({NUMBER})$", text, re.MULTILINE)
    assert found, text
    exp, total, kept, weight = map(value, found.groups())
    assert weight == shown(float(trace["weights"][2, 1]))
    assert abs(exp / total / kept - weight) <= 1e-4
    assert page.locator("section[data-stage=weights] td.ch-st-hidden").count() == 15


def test_a_long_trace_shows_what_is_around_the_query(opens: Opens) -> None:
    query, key, val = torch.randn(3, 101, 16)
    trace = ch.trace(ch.attend, query, key, val, mask=ch.causal())
    page = drawn(opens, steps_payload(trace))
    page.keyboard.press("End")
    page.keyboard.press("Shift+ArrowLeft")
    assert told(page).startswith("scores 100 → 99")
    choose(page, "weights")
    assert page.locator("section[data-stage=weights] tbody td").count() == 24 * 24
    assert (
        "rows 77 to 100 of 101, columns 77 to 100 of 101"
        in page.locator("section[data-stage=weights]").inner_text()
    )
    cells = page.locator("section[data-stage=weights] tbody td").all_inner_texts()
    part = trace["weights"][77:, 77:]
    assert [value(each) for each in cells] == [shown(each) for each in part.flatten().tolist()]
    # Of many terms the last are added up.
    for stage, row, column in (("scores", 23, 22), ("context", 23, 3)):
        ((total, said),) = sums(point_at(page, stage, row, column))
        assert said == shown(float(trace[stage][100, 99 if stage == "scores" else 3]))
        assert abs(total - said) <= rounding(8, 4.0)
    text = point_at(page, "weights", 23, 22)
    assert "… and 77 more keys, whose exps add up to" in text
    choose(page, "value")
    page.get_by_label("Columns of value after these").click()
    assert "columns 12 to 15 of 16" in page.locator("section[data-stage=value]").inner_text()
    page.get_by_role("slider", name="Keys").focus()
    page.keyboard.press("Home")
    choose(page, "weights")
    assert "columns 0 to 23 of 101" in page.locator("section[data-stage=weights]").inner_text()


def test_tokens_are_data(opens: Opens) -> None:
    x = torch.randn(6, 2)
    page = drawn(opens, steps_payload(ch.trace(ch.attend, x, x, x, tokens=HOSTILE)))
    text = page.locator("section[data-stage=scores] tbody").inner_text()
    assert "<script>alert(1)</script>" in text
    assert "\\x1b[31m" in text
    assert "\\u202eabc" in text
    assert "\x1b" not in page.content()
    assert "\u202e" not in page.content()
    assert page.locator("bdi", has_text="שלום").count() > 0


@pytest.mark.parametrize(("dark", "size"), [(False, DESKTOP), (True, PHONE)], ids=["light", "dark"])
def test_everybody_can_use_it(
    opens: Opens, violations: Callable[[Page], list[str]], dark: bool, size: dict[str, int]
) -> None:
    # Hidden pairs, and more keys than columns; few rows, since axe looks at each cell.
    mask = ch.dense(torch.arange(5 * 31).view(5, 31) % 3 > 0)
    layer = ch.MultiHeadAttention(8, num_heads=2, mask=mask, dropout=0.5)
    trace = ch.trace(layer, torch.randn(2, 5, 8), torch.randn(2, 31, 8))
    page = drawn(opens, steps_payload(trace), dark=dark, size=size)
    assert page.get_by_role("slider", name="Keys").count()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    assert violations(page) == []
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= size["width"]


def test_a_page_in_a_file(opens: Opens, tmp_path: Path) -> None:
    path = journey().to_html(tmp_path / "steps.html")
    page = opens(path.as_uri())
    assert told(page).startswith("scores 1 journey → 1 journey")


def test_no_digit_is_cut_off(opens: Opens) -> None:
    torch.manual_seed(0)
    query, key, content = torch.randn(3, 4, 5).unbind()
    steps = ch.trace(ch.attend, query * 40, key * 700, content * torch.tensor(1e20))
    page = drawn(opens, steps_payload(steps))
    for stage in ("query", "key", "value", "scores", "context"):
        choose(page, stage)
        cells = page.locator(f"section[data-stage={stage}] tbody td")
        assert cells.count(), stage
        cut = "(all) => all.filter((each) => each.scrollWidth > each.clientWidth).length"
        assert cells.evaluate_all(cut) == 0, stage
    choose(page, "scores")
    row = page.locator("section[data-stage=scores] tbody tr").first.locator("td").all_inner_texts()
    for text, true in zip(row, steps["scores"][0].tolist(), strict=True):
        assert abs(value(text) - true) <= abs(true) * 1e-4, (text, true)
    choose(page, "value")
    assert re.fullmatch(
        r"−?\d\.\de(19|20)",
        page.locator("section[data-stage=value] tbody td").first.inner_text(),
    )


def test_nothing_is_wider_than_the_window(opens: Opens) -> None:
    rung = ladder.SelfAttention(3, head_dim=2, value_head_dim=2)
    tokens = ["a" * 500, "日本語" * 100, "שלום" * 100, "b", "c", "d"]
    steps = ch.trace(rung, ladder.EXAMPLE_EMBEDDINGS, tokens=tokens)
    for size in (DESKTOP, {"width": 320, "height": 640}):
        page = drawn(opens, steps_payload(steps), size=size)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def test_a_window_zoomed_to_four_times_still_shows_the_stages(opens: Opens) -> None:
    page = drawn(opens, steps_payload(journey()), size={"width": 320, "height": 256})
    page.locator("section[data-stage=scores]").scroll_into_view_if_needed()
    told, stage = (
        page.locator(name).bounding_box() for name in (".ch-st-told", "section[data-stage=scores]")
    )
    assert told is not None
    assert stage is not None
    assert told["y"] + told["height"] <= stage["y"]


@pytest.mark.parametrize("size", [(0, 3, 8), (2, 0, 8)])
def test_an_empty_axis_leaves_shapes_and_formulas(opens: Opens, size: tuple[int, int, int]) -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
    trace = ch.trace(layer, torch.zeros(size))
    page = opens(steps_payload(trace))
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


@pytest.mark.parametrize("width", [390, 700, 1280])
def test_inside_another_page_it_is_a_stage_and_what_it_is_made_of(
    opens: Opens, tmp_path: Path, width: int
) -> None:
    """The row of the query was off the screen beside the scores."""
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
    page = opens(address, allowed=file.as_uri(), size={"width": width, "height": 900})
    frame = page.frame_locator("iframe")
    frame.locator(".ch-st-told").wait_for()
    assert frame.locator(".ch-st-told").inner_text().startswith("scores 3 with → 3 with")
    assert frame.locator("h1, header, .ch-st-chip-same").count() == 0
    names = frame.locator(".ch-st-stage")
    assert [names.nth(at).get_attribute("data-stage") for at in range(names.count())] == [
        "query",
        "key",
        "scores",
    ]
    still(page.locator("iframe"))
    inner = page.frames[1]
    inside = "[document.documentElement.scrollHeight, innerHeight, document.documentElement.scrollWidth, innerWidth]"
    height, seen, broad, wide = inner.evaluate(inside)
    assert (height, broad) == (seen, wide)
    # Each row of the query is in sight, of its operands too.
    for stage, row in (("query", 3), ("key", 3), ("scores", 3)):
        cells = inner.locator(f"section[data-stage={stage}] tbody tr").nth(row).locator("td")
        box = cells.first.bounding_box()
        assert box is not None
        assert 0 <= box["x"] < wide - box["width"]
    # The page around it says whether it is dark.
    page.evaluate("frames[0].postMessage({ clearhead: 'theme', theme: 'dark' }, '*')")
    frame.locator("[data-theme=dark]").wait_for()
    page.evaluate("frames[0].postMessage({ clearhead: 'theme', theme: null }, '*')")
    frame.locator("[data-theme=light]").wait_for()
    # Nor does it write into the history of its reader.
    steps = page.evaluate("history.length")
    frame.get_by_role("button", name="weights", exact=True).click()
    page.wait_for_timeout(400)
    assert page.evaluate("history.length") == steps


def test_the_address_says_what_is_shown(opens: Opens, tmp_path: Path) -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal()).requires_grad_(False)
    file = ch.trace(layer, torch.randn(3, 5, 8)).to_html(tmp_path / "steps.html")
    page = opens(
        f"{file.as_uri()}#stage=weights&query=4&key=2&head=1&sample=2", allowed=file.as_uri()
    )
    page.locator(".ch-st-told").wait_for()
    assert told(page).startswith("weights 4 → 2")
    assert page.get_by_label("Sample").input_value() == "2"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.hash.includes('query=3')")
    page.reload()
    page.locator(".ch-st-told").wait_for()
    assert told(page).startswith("dropped_weights 3 → 2")
    page.go_back()
    expect(page.locator(".ch-st-told")).to_contain_text(re.compile("^weights"))
    page.goto(f"{file.as_uri()}#stage=nowhere&query=5&head=2")
    page.reload()
    missing = page.locator(".ch-missing")
    expect(missing).to_have_text(re.compile("stage=nowhere; query=5; head=2$"))


def test_letters_may_be_larger(opens: Opens) -> None:
    page = drawn(opens, steps_payload(journey()))
    before = page.locator("section[data-stage=scores] table").bounding_box()
    page.evaluate("document.documentElement.style.fontSize = '24px'")
    after = page.locator("section[data-stage=scores] table").bounding_box()
    assert before is not None
    assert after is not None
    assert after["width"] == pytest.approx(1.5 * before["width"])
    cut = "(all) => all.filter((each) => each.scrollWidth > each.clientWidth).length"
    assert page.locator("section[data-stage=scores] tbody td").evaluate_all(cut) == 0
    picked = page.locator(".ch-st-picked").bounding_box()
    cell = page.locator("section[data-stage=scores] tbody tr").nth(1).locator("td").nth(1)
    assert picked == cell.bounding_box()


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
    page = drawn(opens, steps_payload(trace))
    assert told(page).startswith("weights")
    assert "is expected" in told(page)
    right = trace["scaled_scores"].softmax(-1)
    cells = page.locator("section[data-stage=expected] tbody td").all_inner_texts()
    assert [value(each) for each in cells] == [shown(each) for each in right.flatten().tolist()]
    differ = page.locator("section[data-stage=weights] td.ch-st-wrong")
    assert differ.count() == int((right - trace["weights"]).abs().gt(5e-5).sum())
    choose(page, "scores")
    assert page.locator("section[data-stage=expected]").count() == 0
