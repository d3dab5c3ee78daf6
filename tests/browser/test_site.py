"""The site, built without training, from the disk: nothing is asked of a network, and lessons answer."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from clearhead._common.lessons import LESSONS
from tests.browser.conftest import DESKTOP, PHONE
from tests.surface import ROOT, public_objects

MOST = 1_000_000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every page; of the lessons these are run, and the tests of lessons run them all."""
    out = tmp_path_factory.mktemp("site") / "site"
    sources = tmp_path_factory.mktemp("sources")
    asked = ["--brief", "--lessons", "1", "2", "7", "--out", str(out), "--sources", str(sources)]
    command = [sys.executable, "-m", "docs.site.build", *asked]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return out


@pytest.fixture
def visit(window: BrowserContext, site: Path) -> Callable[..., Page]:
    complaints: list[str] = []

    def visited(name: str, *, dark: bool = False, size: dict[str, int] = DESKTOP) -> Page:
        window.set_offline(True)
        page = window.new_page()
        page.set_viewport_size({"width": size["width"], "height": size["height"]})
        page.emulate_media(color_scheme="dark" if dark else "light", reduced_motion="reduce")
        page.on(
            "request",
            lambda asked: complaints.append(asked.url) if asked.url.startswith("http") else None,
        )
        page.on(
            "console", lambda said: complaints.append(said.text) if said.type == "error" else None
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto((site / name).as_uri())
        assert not complaints
        return page

    return visited


@pytest.mark.parametrize("number", [1, 2, 7])
@pytest.mark.parametrize("dark", [False, True])
def test_a_lesson_answers(
    number: int, dark: bool, visit: Callable[..., Page], violations: Callable[[Page], list[str]]
) -> None:
    page = visit(f"lessons/{LESSONS[number].slug}.html", dark=dark, size=PHONE if dark else DESKTOP)
    guess = page.locator(".ch-guess").first
    right = guess.get_attribute("data-answer")
    assert right is not None
    guess.locator("input").fill("-77")
    guess.locator("button").click()
    expect(guess.locator("output")).to_contain_text("you said -77")
    guess.locator("input").fill(right)
    guess.locator("button").click()
    expect(guess.locator("output")).to_contain_text("✓ yes")
    named = page.locator(".ch-name").first
    code = named.get_attribute("data-answer")
    named.locator(f"button:not([value='{code}'])").first.click()
    expect(named.locator("output")).to_have_text("no, look again")
    named.locator(f"button[value='{code}']").click()
    expect(named.locator("output")).to_have_text("✓ that is its name")
    expect(named.locator("pre")).to_contain_text(f"✗ {code}")
    expect(page.locator("ch-figure").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= page.evaluate("innerWidth")
    assert violations(page) == []
    page.close()


def test_search_finds(visit: Callable[..., Page]) -> None:
    page = visit("search.html?q=softmax")
    expect(page.locator("ul.search li").first).to_be_visible()
    page.close()


def test_what_a_lesson_offers_and_weighs(site: Path) -> None:
    for number in (1, 2, 7):
        row = LESSONS[number]
        folder = site / "lessons"
        live = folder.glob(f"live/{row.slug}*")
        script = (site / "_static" / "figure.js").stat().st_size
        size = (folder / f"{row.slug}.html").stat().st_size
        assert size + script + sum(each.stat().st_size for each in live) <= MOST
        assert (folder / "files" / row.file).is_file()
        assert (folder / "files" / row.file).with_suffix(".ipynb").is_file()


def test_the_api_has_the_public_names(site: Path) -> None:
    for name in public_objects():
        place, _, last = name.rpartition(".")
        text = (site / "api" / f"{place}.html").read_text(encoding="utf-8")
        assert f">{last}<" in text.replace('class="pre">', ">"), name
