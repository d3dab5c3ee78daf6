"""The page of heads, in a real browser."""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from playwright.sync_api import Locator, Page, expect

import clearhead as ch
from clearhead.drawing.page.head_page import Layer, Run, heads_payload
from clearhead.drawing.page.payload import Payload
from clearhead.drawing.page.photo import read_pictures, with_photos
from clearhead.drawing.page.runs import Start
from clearhead.drawing.page.texts import read_text
from clearhead.matrix.map_tiles import stages_of_pair
from tests.browser.conftest import (
    DESKTOP,
    PHONE,
    TWO_FRAMES,
    Opens,
    becomes,
    restart,
    still,
)

WORDS = ["the", "cat", "sat", "on", "the", "mat", "because", "it", "was", "tired", "."]
HOSTILE = [
    "<script>window.ran=1</script>",
    "</script><script>window.ran=2</script>",
    '"><img src=x onerror=window.ran=3>',
    "<svg onload=window.ran=4>",
    "{{constructor.constructor('window.ran=5')()}}",
    "javascript:window.ran=6",
    "</style><style>body{display:none}",
    "a\u202eb",
    "\u2066x\u2069",
    "\x00\x1b[31m",
    "\ud83d",
    "\u0301",
    "",
    "\n",
    "שלום",
    "مرحبا",
    "日本語",
    "👩‍👩‍👧",
]


def matrix(
    tokens: int, *, heads: int = 3, keys: int | None = None, seed: int = 0
) -> ch.AttentionMatrix:
    generator = torch.Generator().manual_seed(seed)
    query = 2 * torch.randn(1, heads, tokens, 5, generator=generator)
    key = 2 * torch.randn(1, heads, keys or tokens, 5, generator=generator)
    return ch.AttentionMatrix(query, key, mask=None if keys else ch.causal())


def payload(tokens: list[str], title: str = "a page") -> Payload:
    layers = [Layer(f"layers.{n}", matrix(len(tokens), seed=n)) for n in range(2)]
    return heads_payload([Run("", layers, read_text("tokens", tokens))], title)


def long_payload(tokens: int) -> tuple[Payload, ch.AttentionMatrix]:
    long = matrix(tokens, heads=2)
    words = [f" w{n % 97}" for n in range(tokens)]
    run = Run("", [Layer("attention", long)], read_text("tokens", words))
    return heads_payload([run], "a long text"), long


def canvas(page: Page) -> Locator:
    return page.locator(".ch-map-canvas").first


def at(page: Page, query: int, key: int, tokens: tuple[int, int]) -> tuple[float, float]:
    """The place of a pair on the screen, while the whole map is shown."""
    box = still(canvas(page))
    return (
        box["x"] + box["width"] * (key + 0.5) / tokens[1],
        box["y"] + box["height"] * (query + 0.5) / tokens[0],
    )


def maps_drawn(page: Page) -> None:
    """Waits for every map."""
    for end in page.locator(".ch-legend-ticks span:last-child").all():
        expect(end).not_to_have_text("0 %")


def choose(page: Page, layer: int, head: int) -> None:
    page.locator(f'[data-head="{layer}/{head}"]').click()


def reading(page: Page) -> str:
    return page.locator(".ch-sentence, .ch-reading").first.inner_text()


def share(words: str) -> tuple[float, float]:
    """The weight and how far it may be off, from "… gives 12.3 ± 0.2 % …", "… gets …", or from "…: 12.3 %"."""
    found = re.search(r"(?:gives|gets|:) ([\d.]+)(?: ± ([\d.e-]+))?\s%", words)
    assert found is not None, words
    return float(found[1]) / 100, float(found[2] or 0) / 100


@pytest.fixture(scope="module")
def shared(opens_once: Opens) -> Page:
    return opens_once(payload(WORDS, "the cat sat"))


@pytest.fixture
def page(shared: Page) -> Page:
    """The page of the words, as it began."""
    shared.set_viewport_size({"width": DESKTOP["width"], "height": DESKTOP["height"]})
    restart(shared)
    return shared


def test_the_number_under_the_pointer_is_the_weight(page: Page) -> None:
    assert page.get_by_role("heading", level=1).inner_text() == "the cat sat"
    assert page.get_by_role("gridcell").count() == 6
    assert page.locator(".ch-token").all_inner_texts() == WORDS
    assert "One cell" not in page.inner_text("main")
    size = (len(WORDS), len(WORDS))
    for layer, head in ((0, 0), (1, 2)):
        choose(page, layer, head)
        page.get_by_role("heading", name=f"Layer {layer}, head {head}").wait_for()
        weights = matrix(len(WORDS), seed=layer)
        for query, key in [(0, 0), (7, 3), (10, 10), (10, 1)]:
            page.mouse.move(*at(page, query, key, size))
            expect(page.locator(".ch-sentence")).to_have_text(
                re.compile(rf"^{query} {WORDS[query]} gives .* to {key} {re.escape(WORDS[key])}\.$")
            )
            value, error = share(reading(page))
            true = float(weights[0, head, query, key])
            # What is said is rounded to two digits or three once more.
            assert abs(value - true) <= error * 1.1 + 0.051 * true + 5e-4 * (true > 0.1)
        page.mouse.move(*at(page, 2, 9, size))
        expect(page.locator(".ch-sentence")).to_have_text("The mask hides 9 tired from 2 sat.")


def test_a_token_tells_where_it_looks_and_who_looks_at_it(page: Page) -> None:
    choose(page, 0, 1)
    weights = matrix(len(WORDS))[0, 1]
    page.locator(".ch-token").nth(7).hover()
    lists = page.locator(".ch-numbers .ch-bars")
    page.get_by_text("7 it looks at").wait_for()
    first = lists.nth(0).locator("li").first.inner_text().split()
    assert first[:2] == [str(int(weights[7].argmax())), WORDS[int(weights[7].argmax())]]
    assert float(first[2]) == pytest.approx(100 * float(weights[7].max()), abs=0.45)
    seen = lists.nth(1).locator("li").first.inner_text().split()
    assert seen[0] == str(int(weights[:, 7].argmax()))
    entropy = float(matrix(len(WORDS)).entropy()[0, 1, 7])
    assert f"entropy\n{entropy:.3g} nats" in page.locator(".ch-facts").first.inner_text()
    assert page.locator(".ch-arcs > path").count() > 0


def test_keys_do_all_of_it(page: Page) -> None:
    page.locator('[data-head="0/0"]').focus()
    page.keyboard.press("Enter")
    choose(page, 0, 0)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("heading", level=2).inner_text() == "Layer 1, head 1"
    page.keyboard.press("]")
    assert page.get_by_role("heading", level=2).inner_text() == "Layer 1, head 2"
    canvas(page).focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert reading(page).startswith("2 sat gives ")
    page.keyboard.press("Enter")
    canvas(page).evaluate("element => element.blur()")
    assert reading(page).startswith("2 sat gives ")
    canvas(page).focus()
    page.keyboard.press("+")
    page.wait_for_function("() => document.querySelectorAll('.ch-axes text').length < 20")
    page.keyboard.press("0")
    expect(page.locator(".ch-axes text")).to_have_count(22)
    page.keyboard.press("l")
    expect(page.locator(".ch-legend button").first).to_have_text("linear scale")
    page.get_by_role("listbox").focus()
    page.keyboard.press("Escape")
    page.get_by_role("heading", name="Most received").wait_for()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.get_by_text("1 cat looks at").wait_for()
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible()
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").is_hidden()


def test_tokens_are_found_and_heads_sorted(page: Page) -> None:
    page.keyboard.press("/")
    page.keyboard.type("THE")
    found = page.get_by_role("search").get_by_role("status")
    assert found.inner_text() == "2"
    page.keyboard.press("Enter")
    page.get_by_text("0 the looks at").wait_for()
    page.keyboard.press("Enter")
    page.get_by_text("4 the looks at").wait_for()
    assert found.inner_text() == "2 of 2"
    assert page.locator(".ch-hit").count() == 2
    page.keyboard.type("x")
    assert found.inner_text() == "not there"
    page.get_by_label("Order", exact=True).select_option("entropy")
    rows = [
        (row["entropy"], f"{place}/{head}")
        for place, layer in enumerate(payload(WORDS).data["layers"])
        for head, row in enumerate(layer["rows"])
    ]
    shown = [each.get_attribute("data-head") for each in page.get_by_role("gridcell").all()]
    assert shown == [name for _, name in sorted(rows)]


def arcs(page: Page, place: int = 0) -> list[str | None]:
    """The arcs of a panel, by what they are drawn as, once they are."""
    page.evaluate(TWO_FRAMES)
    drawn = page.locator(".ch-panel").nth(place).locator(".ch-arcs > path")
    return [
        f"{each.get_attribute('d')} {each.get_attribute('stroke-width')}" for each in drawn.all()
    ]


def test_arcs_are_those_of_the_head_that_is_shown(page: Page) -> None:
    choose(page, 1, 2)
    page.locator(".ch-token").nth(7).click()
    page.mouse.move(5, 5)
    fresh = arcs(page)
    choose(page, 0, 1)
    page.locator('[data-head="0/1"].ch-chosen').wait_for()
    other = arcs(page)
    choose(page, 1, 2)
    page.get_by_role("heading", name="Layer 1, head 2").wait_for()
    assert other
    assert other != fresh == arcs(page)
    # In a comparison each panel has its own.
    page.keyboard.press("c")
    expect(page.get_by_role("article")).to_have_count(2)
    choose(page, 0, 1)
    page.get_by_role("heading", name="Layer 0, head 1").wait_for()
    second = page.locator(".ch-panel").nth(1)
    expect(second.locator(".ch-arcs > path")).to_have_count(len(other))
    assert [each and each.split()[-1] for each in arcs(page, 1)] == [
        each and each.split()[-1] for each in other
    ]
    # One scale for both: the larger end.
    ends = page.locator(".ch-legend-ticks").all_inner_texts()
    assert ends[0].split()[-2:] == ends[1].split()[-2:]
    page.keyboard.press("c")
    expect(page.get_by_role("article")).to_have_count(1)


def test_the_heads_answer_and_the_address_keeps_it(opens: Opens) -> None:
    page = opens(payload(WORDS))
    choose(page, 0, 0)
    page.locator(".ch-token").nth(9).click()
    page.locator(".ch-token").nth(5).click(modifiers=["Shift"])
    weights = torch.stack([matrix(len(WORDS), seed=n)[0, :, 9, 5] for n in range(2)]).flatten()
    order = [f"{place // 3}.{place % 3}" for place in weights.argsort(descending=True).tolist()]
    answers = page.get_by_role("region", name="Heads by what is pinned")
    expect(answers).to_contain_text("Heads in which tired looks at mat")
    page.wait_for_function("() => location.hash === '#head=0.0&pin=9,5'")
    lines = [each.inner_text().split() for each in answers.locator("li").all()]
    assert [line[0] for line in lines] == order
    for line, weight in zip(lines, weights.sort(descending=True).values.tolist(), strict=True):
        assert float(line[1]) == pytest.approx(100 * weight, abs=0.051)
    page.get_by_label("Order", exact=True).select_option("link")
    shown = [each.get_attribute("data-head") for each in page.get_by_role("gridcell").all()]
    assert shown == [each.replace(".", "/") for each in order]
    answers.get_by_role("button").nth(1).click()
    expect(page.get_by_role("heading", level=2)).to_have_text(
        f"Layer {order[1][0]}, head {order[1][2]}"
    )
    expect(page.locator(".ch-sentence")).to_have_text(
        re.compile(r"9 tired gives [\d.]+( ± [\d.]+)?\s% of its attention to 5 mat\.")
    )
    page.keyboard.press("l")
    page.mouse.move(5, 5)
    page.wait_for_function(
        "(hash) => location.hash === hash", arg=f"#head={order[1]}&pin=9,5&scale=linear&order=link"
    )
    page.reload()
    maps_drawn(page)
    expect(answers.locator("li")).to_have_count(6)
    expect(page.get_by_label("Order", exact=True)).to_have_value("link")
    expect(page.locator(".ch-sentence")).to_contain_text("9 tired gives")
    page.go_back()
    expect(page.get_by_role("heading", level=2)).to_have_text("Layer 0, head 0")
    expect(page.locator(".ch-legend button").first).to_have_text("square-root scale")
    # Inside another page it has no title.
    page.evaluate("location.hash = '#head=1.1&pin=11,0&embed=1&colour=red'")
    expect(page.get_by_role("heading", level=1)).to_have_count(0)
    expect(page.get_by_role("heading", level=2)).to_have_text("Layer 1, head 1")
    expect(page.get_by_role("gridcell")).to_have_count(6)
    # What the page does not have is said, until something else is looked at.
    said = page.get_by_role("status").filter(has_text="left out")
    expect(said).to_have_text("Not on this page, and left out: pin=11,0; colour=red")
    page.keyboard.press("]")
    page.wait_for_function("() => location.hash === '#head=1.2&embed=1'")
    expect(said).to_have_count(0)


def test_filters_leave_out_tokens_and_weak_links(opens: Opens) -> None:
    words = ["[CLS]", *WORDS[1:]]
    weights = matrix(len(words))[0, 1]
    left = weights[1:, 1:].clone()
    page = opens(payload(words))
    choose(page, 0, 1)
    page.keyboard.press("Escape")
    page.keyboard.press("w")
    page.get_by_label("Links of at least").fill("40")
    expect(page.locator(".ch-arcs > path")).to_have_count(min(400, int((left >= 0.16).sum())))
    page.locator(".ch-token").nth(9).click()
    page.mouse.move(5, 5)
    shown = page.locator(".ch-numbers .ch-bars").first.locator("li").all_inner_texts()
    strong = [at + 1 for at, each in enumerate(left[8].tolist()) if each >= 0.16]
    assert sorted(int(each.split()[0]) for each in shown) == strong
    # The weight itself stays what it is.
    query = int(weights[1:, 0].argmax()) + 1
    page.mouse.move(*at(page, query, 0, (len(words), len(words))))
    expect(page.locator(".ch-sentence")).to_contain_text("which is left out")
    value, _ = share(reading(page))
    assert value == pytest.approx(float(weights[query, 0]), abs=5.1e-4)
    page.wait_for_function("() => location.hash.endsWith('&without=first,special&least=0.16')")


def test_several_heads_in_colours(page: Page) -> None:
    choose(page, 0, 1)
    page.keyboard.press("Escape")
    page.locator('[data-head="1/2"]').click(modifiers=["Control"])
    expect(page.get_by_role("heading", level=2)).to_have_text("Mean of 0.1 and 1.2")
    page.keyboard.press("Escape")
    # Arcs in the colour of each head.
    for hue in (0, 1):
        expect(page.locator(f".ch-arcs > .ch-hue{hue}").first).to_be_attached()
    query, key = 7, 3
    canvas(page).scroll_into_view_if_needed()
    page.mouse.move(*at(page, query, key, (len(WORDS), len(WORDS))))
    mean = (
        float(matrix(len(WORDS))[0, 1, query, key])
        + float(matrix(len(WORDS), seed=1)[0, 2, query, key])
    ) / 2
    assert share(reading(page))[0] == pytest.approx(mean, abs=0.051 * mean + 5e-4)
    page.get_by_role("button", name="Leave out head 0.1").click()
    expect(page.get_by_role("heading", level=2)).to_have_text("Layer 1, head 2")
    page.keyboard.press("m")
    expect(page.get_by_role("heading", level=2)).to_have_text("Layer 1, mean of 3 heads")
    page.wait_for_function("() => location.hash.endsWith('&heads=1')")


def test_why_a_weight_is_what_it_is(opens: Opens) -> None:
    problem = matrix(11).problem
    query, key = problem.query.clone(), problem.key
    query[0, 0, 10, 0] = torch.nan
    adds = torch.linspace(-1, 1, 121).view(11, 11)
    seen = ch.AttentionMatrix(query, key, bias=adds, softcap=3.0, mask=ch.causal())
    run = Run("", [Layer("attention", seen)], read_text("tokens", WORDS))
    most = int(seen[0, 0, 9].argmax())
    page = opens(heads_payload([run], "why", start=Start("head=0.0", (9, most)), why=True))
    page.keyboard.press("y")
    why = page.locator(".ch-why")
    found = stages_of_pair(seen.problem, 0, 0, 9, most)
    expect(why.locator("rect")).to_have_count(15)
    words = why.locator("dl").inner_text().replace("−", "-")
    numbers = [float(each) for each in re.findall(r"-?\d+(?:\.\d+)?(?:e-\d+)?", words)]
    summed = (found.bias, found.masked, found.masked, found.logsumexp, 100 * found.weight)
    expected = (found.score, problem.scale, found.scaled, found.capped, *summed)
    assert numbers == pytest.approx(expected, rel=6e-3)
    page.wait_for_function("() => location.hash.endsWith('&why=1')")
    page.evaluate("location.hash = 'head=0.0&pin=10,4&why=1'")
    expect(why.locator("dl")).to_contain_text("no number")
    expect(why.locator("dl")).not_to_contain_text("hides it")


def test_words_between_pictures_that_a_head_looks_at(opens: Opens) -> None:
    """Each picture is in its place; it shows what a word gives to it, and its share."""
    tokens = ["a", "i", "i", "cat", "and", "i", "i", "i", "i", "dog"]
    images = [torch.ones(3, 9, 18), torch.ones(3, 8, 8)]
    given: Any = {"images": images, "tokens": tokens, "image_token": "i", "grid": [(1, 2), (2, 2)]}
    pictured = read_pictures(given)
    seen = matrix(10, keys=10)
    run = Run("", [Layer("attention", seen)], read_text("tokens", pictured.tokens))
    page = opens(with_photos(heads_payload([run], "two", start=Start("head=0.1")), pictured))
    inside = "list => [...list.children].filter((each) => each.tagName !== 'WBR').map((each) => each.innerText.trim())"
    pieces = page.locator(".ch-tokens").evaluate(inside)
    assert [each.partition(" gets")[0] for each in pieces] == [
        "a", "Picture 1", "cat", "and", "Picture 2", "dog",
    ]  # fmt: skip
    page.locator(".ch-token", has_text="dog").click()
    for place, photo in enumerate(pictured.photos):
        caption = page.locator(".ch-photo figcaption").nth(place)
        expect(caption).to_contain_text("of the query’s attention")
        shown, _ = share(caption.inner_text())
        true = seen[0, 1, 9][list(photo.places)].sum()
        assert shown == pytest.approx(float(true), abs=0.002)
    # Pictures are white: the larger the weight, the darker its colour; and the picture is seen under each.
    read = """() => {
      const place = document.querySelectorAll(".ch-photo canvas")[1];
      const { width } = place;
      const { data } = place.getContext("2d").getImageData(0, 0, width, width);
      const at = (row, column) =>
        data[4 * width * (Math.floor((row + 0.5) * width / 2) + (column + 0.5) / 2)];
      return [at(0, 0), at(0, 1), at(1, 0), at(1, 1)];
    }"""
    order = seen[0, 1, 9][list(pictured.photos[1].places)].argsort(descending=True).tolist()
    becomes(
        page,
        read,
        lambda found: torch.tensor(found).argsort().tolist() == order and min(found) > 20,
    )
    # The small maps are pictures too.
    expect(page.locator('[data-head="0/0"] canvas')).to_have_attribute("height", "112")
    page.locator(".ch-photo canvas").nth(1).hover(position={"x": 4, "y": 4})
    expect(page.locator(".ch-sentence")).to_contain_text("picture 2, row 0, column 0 gives")
    page.keyboard.press("Escape")
    page.locator(".ch-tokens").focus()
    for key in 4 * ["ArrowRight"]:
        page.keyboard.press(key)
    expect(page.locator(".ch-token.ch-own")).to_have_text("cat")


def test_subwords_are_joined_and_have_no_room_between_them(opens: Opens) -> None:
    tokens = [" Multi", "Head", "Attention", "()", " in", " ", "   ", "num", "_", "heads"]
    page = opens(payload(tokens))
    assert page.locator(".ch-tokens").inner_text().startswith("MultiHeadAttention() in")
    boxes = [still(each) for each in page.locator(".ch-token").all()[:4]]
    for before, after in pairwise(boxes):
        assert after["x"] == pytest.approx(before["x"] + before["width"], abs=0.5)


def test_there_is_room_for_lists_and_fingers(page: Page) -> None:
    page.locator(".ch-token").nth(7).click()
    small = """all => all.filter(each => {
      const { width, height } = each.getBoundingClientRect();
      return height && (width < 24 || height < 24);
    }).map(each => each.outerHTML.slice(0, 80))"""
    wide = "all => all.map(each => each.clientWidth)"
    for width in (390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        lists, text = still(page.locator(".ch-numbers")), still(page.locator(".ch-texts"))
        if width == 1280:
            assert lists["x"] >= text["x"] + text["width"]
            assert abs(lists["y"] - text["y"]) < 40
        bars = page.locator(".ch-numbers .ch-bar").evaluate_all(wide)
        assert min(bars) > (80 if width == 1280 else 110)
        touched = page.locator("button:not(.ch-legend *), input, select")
        assert touched.evaluate_all(small) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_difference_of_two_runs_on_other_texts(opens: Opens) -> None:
    other = [WORDS[0], "big", *WORDS[1:]]
    runs = [
        Run("before", [Layer("attention", matrix(11))], read_text("tokens", WORDS)),
        Run("after", [Layer("attention", matrix(12, seed=1))], read_text("tokens", other)),
    ]
    state = "head=A0.1&with=B0.1&minus=1"
    page = opens(heads_payload(runs, "two runs", start=Start(state)))
    expect(page.get_by_role("heading", level=2)).to_have_text("Layer A0, head 1 − layer B0, head 1")
    expect(page.locator(".ch-axes")).not_to_contain_text("≠")
    there = [at for at in range(12) if at != 1]
    before = matrix(11)[0].clone()
    after = matrix(12, seed=1)[0][:, there][:, :, there]
    by = before - after
    elsewhere = by.abs().sum(dim=-1).mean(dim=-1) / 2
    for head, share_of in enumerate(elsewhere.tolist()):
        small = page.locator(f'[data-head="0/{head}"]')
        told = re.compile(rf": {100 * share_of:.1f}\s% is elsewhere")
        expect(small).to_have_attribute("aria-label", told)
    query, key = divmod(int(by[1].abs().argmax()), 11)
    change = page.locator(".ch-changes li").first
    expect(change).to_contain_text(f"{WORDS[query]} → {WORDS[key]}")
    change.get_by_role("button").click()
    here, there, less = (100 * float(each[1, query, key]) for each in (before, after, by.abs()))
    sign = "−" if by[1, query, key] < 0 else r"\+"
    told = rf"{sign}{less:.1f}\s% \({here:.1f}\s% − {there:.1f}\s%\)"
    expect(page.locator(".ch-reading")).to_contain_text(re.compile(told))
    # Of a pair they are those of its query, and of a token that was pinned before it is where that looks.
    of = page.get_by_role("heading", name=f"Largest differences of {WORDS[query]}", exact=True)
    expect(of).to_be_visible()
    page.keyboard.press("d")
    expect(page.get_by_role("article")).to_have_count(2)
    page.locator(".ch-texts").first.locator(".ch-token").nth(9).click()
    page.keyboard.press("d")
    listed = page.locator(".ch-changes li")
    expect(listed.first).to_contain_text(f"tired → {WORDS[int(by[1, 9].abs().argmax())]}")
    assert listed.count() > 1
    assert page.locator(".ch-reading").inner_text() == "token 9 tired"
    # The row of a word that only the first text has says why it is grey.
    page = opens(heads_payload(runs[::-1], "two runs", start=Start(state)))
    expect(page.locator(".ch-axes text").filter(has_text="≠ big")).to_have_count(2)
    # A small map is compared with its partner.
    page.locator('[data-head="1/2"]').click()
    expect(page.get_by_role("heading", level=2)).to_have_text("Layer B0, head 2 − layer A0, head 2")


def test_two_runs_of_different_models(opens: Opens) -> None:
    runs = [
        Run("A", [Layer("attention", matrix(5, heads=3)), Layer("block.0", matrix(5))]),
        Run("B", [Layer("attention", matrix(9, heads=1))]),
    ]
    page = opens(heads_payload(runs, "two models"))
    assert page.get_by_role("rowheader").all_inner_texts() == ["A0", "A1", "B0"]
    for head, other in (("0/2", "Layer B0, head 0"), ("1/1", "Layer B0, head 0")):
        page.locator(f'[data-head="{head}"]').click()
        page.keyboard.press("c")
        assert page.get_by_role("heading", level=2).all_inner_texts()[1] == other
        page.keyboard.press("c")
    page.keyboard.press("c")
    # The longer one is there whole, and what the shorter one does not have is not made up.
    second = page.locator(".ch-panel").nth(1)
    page.mouse.move(*at(page, 4, 6, (9, 9)))
    assert "#6" not in reading(page)
    box = still(second.locator(".ch-map-canvas"))
    page.mouse.move(box["x"] + box["width"] * 7.5 / 9, box["y"] + box["height"] * 8.5 / 9)
    expect(second.locator(".ch-sentence")).to_contain_text(re.compile(r"#8 gives .* #7\."))
    assert "no number" not in reading(page)


def test_two_texts(opens: Opens) -> None:
    source = ["le", "chat", "dort"]
    run = Run(
        "",
        [Layer("decoder.cross", matrix(len(WORDS), keys=3))],
        read_text("tokens", WORDS),
        read_text("source_tokens", source),
    )
    page = opens(heads_payload([run], "two texts"))
    choose(page, 0, 0)
    assert page.get_by_role("listbox").count() == 2
    page.mouse.move(*at(page, 4, 2, (len(WORDS), 3)))
    expect(page.locator(".ch-sentence")).to_have_text(re.compile("^4 the gives .* to 2 dort"))
    value, error = share(reading(page))
    true = float(matrix(len(WORDS), keys=3)[0, 0, 4, 2])
    assert abs(value - true) <= error * 1.1 + 0.051 * true + 5e-4
    page.locator(".ch-token").nth(len(WORDS) + 1).hover()
    page.get_by_text("1 chat is looked at by").wait_for()
    # There is no distance from one text to another, and no token before.
    facts = page.locator("article").inner_text()
    assert "distance" not in facts
    assert "previous" not in facts
    page.mouse.move(5, 5)
    page.get_by_role("searchbox").fill("at")
    page.get_by_role("searchbox").press("Enter")
    page.get_by_text("1 cat looks at").wait_for()
    found = page.get_by_role("search").get_by_role("status")
    assert found.inner_text() == "1 of 4"  # cat, sat, mat; chat
    for _ in range(3):
        page.get_by_role("searchbox").press("Enter")
    page.get_by_text("1 chat is looked at by").wait_for()


def test_the_map_zooms_to_single_tokens(opens: Opens) -> None:
    given, long = long_payload(2003)
    page = opens(given)
    choose(page, 0, 1)
    remark = page.locator(".ch-map-side > .ch-remark")
    expect(page.locator(".ch-map-side > .ch-remark")).to_contain_text("One cell")
    assert re.match(
        r"One cell = [2-9] × [2-9] tokens\. The finest map that is known is 2 × 2\.",
        remark.inner_text(),
    )
    page.get_by_role("searchbox").fill("w41")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    canvas(page).focus()
    for _ in range(20):
        page.keyboard.press("+")
    expect(remark).to_contain_text("strongest links of each query are at their places")
    expect(remark).not_to_contain_text("One cell")
    # A link that is kept is under the pointer what it is in the matrix.
    query = 41 + 97
    page.get_by_text(f"{query} w41 looks at").wait_for()
    line = page.locator(".ch-numbers .ch-bars").first.locator("li").first.inner_text().split()
    weights, keys = long.top_k(1)
    assert line[0] == str(int(keys[0, 1, query, 0]))
    assert float(line[2]) == pytest.approx(100 * float(weights[0, 1, query, 0]), abs=0.45)


def test_dragging_and_the_wheel_move_the_map(opens: Opens) -> None:
    page = opens(long_payload(1511)[0], size={"width": 1280, "height": 500})
    x, y = at(page, 700, 700, (1511, 1511))
    labels = page.locator(".ch-axes text")
    before = labels.all_inner_texts()
    page.mouse.move(x, y)
    page.mouse.wheel(0, 300)  # scrolls the page
    page.wait_for_function("() => scrollY > 10")
    assert labels.all_inner_texts() == before
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_function("() => scrollY === 0")
    page.keyboard.down("Control")
    page.mouse.wheel(0, -900)
    page.keyboard.up("Control")
    page.wait_for_function(
        "(before) => document.querySelector('.ch-axes text').textContent !== before", arg=before[0]
    )
    zoomed = labels.first.text_content()
    page.mouse.down()
    page.mouse.move(x, y - 150, steps=5)
    page.mouse.up()
    page.wait_for_function(
        "(before) => document.querySelector('.ch-axes text').textContent !== before", arg=zoomed
    )


def test_what_is_no_number_is_said_and_looks_like_none(opens: Opens) -> None:
    query = torch.zeros(1, 1, 3, 4)
    query[0, 0, 1] = torch.nan
    query[0, 0, 2, 0] = 1e3
    key = torch.eye(3, 4)[None, None]
    run = Run("", [Layer("", ch.AttentionMatrix(query, key, mask=ch.causal()))])
    page = opens(heads_payload([run], "broken"))
    maps_drawn(page)
    colours = page.evaluate(
        """() => [".ch-map-canvas", ".ch-small canvas"].map((name) => {
            const canvas = document.querySelector(name);
            const { width, height } = canvas;
            const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
            const pixel = (row, column) => {
                const [down, right] = [(row + 0.5) * height / 3, (column + 0.5) * width / 3];
                const at = 4 * (Math.floor(down) * width + Math.floor(right));
                return data.slice(at, at + 4).join();
            };
            return [pixel(1, 0), pixel(2, 1), pixel(0, 0)];
        })"""
    )
    for missing, least, most in colours:
        assert len({missing, least, most}) == 3
    page.mouse.move(*at(page, 1, 0, (3, 3)))
    expect(page.locator(".ch-sentence")).to_have_text("What #1 gives #0 is no number.")
    numbers = page.locator(".ch-numbers")
    expect(numbers).to_contain_text("Its weights are no numbers.")
    expect(numbers).to_contain_text(re.compile("entropy *no number *mean distance"))
    page.mouse.move(0, 0)
    expect(numbers).to_contain_text("Some weights of this head are no numbers")
    expect(numbers).not_to_contain_text("%")


def heads_of(layers: int, heads: int, tokens: int = 7, keys: int | None = None) -> Payload:
    made = [
        Layer(f"layers.{n}", matrix(tokens, heads=heads, keys=keys, seed=n)) for n in range(layers)
    ]
    text = read_text("tokens", [f" w{n}" for n in range(tokens)])
    source = None if keys is None else read_text("source_tokens", [f" s{n}" for n in range(keys)])
    return heads_payload([Run("", made, text, source)], "a large model")


def test_the_map_has_room_at_any_width(page: Page) -> None:
    found: dict[tuple[int, bool], float] = {}
    for both in (False, True):
        for width in (320, 1280, 2560) if both else (390, 719, 721, 1100, 1920):
            page.set_viewport_size({"width": width, "height": max(800, width * 9 // 16)})
            page.wait_for_function(
                "(width) => document.documentElement.scrollWidth <= width", arg=width
            )
            found[width, both] = still(canvas(page))["width"]
        page.keyboard.press("c")
    for (width, both), room in found.items():
        least = 0.15 * width if both else 0.6 * width if width < 700 else 0.32 * width
        assert room >= least, (width, both, room)
    # No cliff from one pixel to the next.
    assert found[721, False] > 0.8 * found[719, False]


def test_nothing_lies_over_something_else(opens: Opens) -> None:
    page = opens(heads_of(1, 2, tokens=5, keys=700))
    for size in (DESKTOP, PHONE):
        page.set_viewport_size({"width": size["width"], "height": size["height"]})
        for place in (".ch-map-canvas", ".ch-shell"):
            still(page.locator(place).first)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        for under, over in ((".ch-right", ".ch-grid"), (".ch-panel-body", ".ch-panel > .ch-texts")):
            if not page.locator(over).count():
                continue
            clear = page.evaluate(
                """([under, over]) => {
                    const box = document.querySelector(over).getBoundingClientRect();
                    const inner = [...document.querySelectorAll(`${over} .ch-token`)].map(
                        (each) => each.getBoundingClientRect().bottom);
                    const bottom = Math.max(box.bottom, ...inner);
                    const other = document.querySelector(under).getBoundingClientRect();
                    return bottom <= other.top + 1 || box.right <= other.left + 1;
                }""",
                [under, over],
            )
            assert clear, over
        assert page.evaluate("document.documentElement.scrollHeight") < 5_000


def test_a_narrow_page_is_laid_out_before_its_first_frame(opens: Opens) -> None:
    """Observers are called with a frame: without them the first layout must be right already."""
    page = opens(heads_of(2, 4), size=PHONE)
    page.add_init_script("window.ResizeObserver = class { observe() {} disconnect() {} };")
    page.reload()
    page.locator(".ch-heads").wait_for(timeout=5_000)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_the_head_that_is_shown_is_in_sight_among_all(opens: Opens) -> None:
    page = opens(heads_of(24, 2))
    inside = """() => {
        const own = document.querySelector(".ch-chosen").getBoundingClientRect();
        const grid = document.querySelector(".ch-grid").getBoundingClientRect();
        return own.top >= grid.top && own.bottom <= grid.bottom;
    }"""
    assert page.evaluate(
        "(each => each.scrollHeight > each.clientHeight)(document.querySelector('.ch-grid'))"
    )
    choose(page, 23, 1)
    for key in ("[", "]", "]"):  # the last one, and round to the first
        page.keyboard.press(key)
        page.wait_for_function(inside)
    assert page.get_by_role("heading", level=2).inner_text() == "Layer 0, head 0"
    assert page.evaluate("scrollY") == 0


def test_numbers_stay_visible_in_colours_of_the_reader(opens: Opens) -> None:
    page = opens(payload(WORDS), forced=True)
    page.locator(".ch-token").nth(3).hover()
    page.locator(".ch-numbers .ch-bars").first.wait_for()
    bar = """(name) => getComputedStyle(document.querySelector(name)).forcedColorAdjust"""
    for name in (".ch-bar span", ".ch-legend-bar"):
        assert page.evaluate(bar, name) == "none"
    own = page.locator(".ch-own")
    assert own.evaluate("(each) => getComputedStyle(each).outlineStyle") == "solid"


def test_a_hostile_vocabulary_is_shown_and_never_run(opens: Opens) -> None:
    page = opens(payload(HOSTILE, "".join(HOSTILE[:4])))
    tokens = page.locator(".ch-token")
    shown = tokens.all_inner_texts()
    assert shown[:3] == [each.replace(" ", "␣") for each in HOSTILE[:3]]
    assert shown[7:14] == [
        "a\\u202eb",
        "\\u2066x\\u2069",
        "\\x00\\x1b[31m",
        "\\ud83d",
        "◌\u0301",
        "∅",
        "⏎",
    ]
    assert shown[-1] == HOSTILE[-1]  # one emoji, as it is
    for place in range(len(HOSTILE)):
        tokens.nth(place).hover()
    page.get_by_role("searchbox").fill("<script>")
    page.keyboard.press("Enter")
    choose(page, 1, 1)
    assert page.evaluate("() => window.ran") is None
    assert page.locator("img").count() == 0
    assert page.evaluate("() => document.scripts.length") == 2


def test_a_text_from_right_to_left_runs_so(opens: Opens) -> None:
    page = opens(payload(["שלום", "לכל", "העולם", "!", "."]))
    assert page.get_by_role("listbox").get_attribute("dir") == "rtl"
    lefts = [still(each)["x"] for each in page.locator(".ch-token").all()]
    assert lefts == sorted(lefts, reverse=True)


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["1280", "390"])
def test_axe_finds_nothing_on_a_dark_page_of_a_long_text(
    opens: Opens, violations: Callable[[Page], list[str]], size: dict[str, int]
) -> None:
    page = opens(long_payload(1511)[0], dark=True, size=size)
    page.locator(".ch-token").nth(2).click()
    page.locator(".ch-facts").first.wait_for()
    assert violations(page) == []
    # Nothing is cut off at the side.
    assert page.evaluate("() => document.documentElement.scrollWidth") <= size["width"]


def test_a_page_cut_short_says_so(opens: Opens, tmp_path: Any) -> None:
    from clearhead.drawing.page.page import page as page_of

    html = page_of(payload(WORDS))
    start = html.index('base64">') + 8
    place = tmp_path / "cut.html"
    place.write_text(html[:start] + html[start + 400 :], encoding="utf-8")
    page = opens(place.as_uri())
    assert "was cut short" in page.get_by_role("alert").inner_text()


def test_shares_too_small_for_a_bar_are_said_in_words(opens: Opens) -> None:
    """Of 1100 even shares there were ten bars of 0.09 %, and a key "received 1.00 queries"."""
    even = torch.zeros(1, 1, 1100, 3)
    words = read_text("tokens", [f" w{n}" for n in range(1100)])
    layer = Layer("attention", ch.AttentionMatrix(even, even))
    page = opens(heads_payload([Run("", [layer], words)], "an even head"))
    panel = page.locator("section", has=page.get_by_role("heading", name="Most received")).last
    expect(panel).to_contain_text("No key receives 0.10 %.")
    expect(panel.locator("li")).to_have_count(0)
    canvas(page).click()
    facts = page.locator(".ch-facts").filter(has_text="received")
    expect(facts.first).to_contain_text("1, the sum of its weights")
    expect(page.get_by_text("nothing above 0.10 %").first).to_be_visible()


def test_what_heads_that_share_a_key_receive_is_said_to_be_theirs(opens: Opens) -> None:
    query, key = torch.randn(1, 4, 5, 3), torch.randn(1, 2, 5, 3)
    layer = Layer("attention", ch.AttentionMatrix(query, key, mask=ch.causal()))
    page = opens(heads_payload([Run("", [layer], read_text("tokens", list("abcde")))], "grouped"))
    canvas(page).click()
    facts = page.locator(".ch-facts").filter(has_text="received")
    expect(facts.first).to_contain_text("the sum of its weights in the 2 heads that share this key")
