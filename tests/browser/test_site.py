"""The site, built without training, from the disk: nothing is asked of a network, and lessons answer."""

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from clearhead._common.lessons import LESSONS
from tests.browser.conftest import DESKTOP, PHONE, WAIT, Opens
from tests.surface import ROOT, public_objects

# With a figure, with the words of others' code, and with a picture.
OPENED = 1, 7, 10
MOST = 1_000_000


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of its pages, in which a link that leads nowhere is an error."""
    folder = tmp_path_factory.mktemp("site")
    asked = ["--brief", "--out", str(folder / "site"), "--sources", str(folder / "sources")]
    command = [sys.executable, "-m", "docs.site.build", *asked]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder / "site"


@pytest.fixture
def visits(opens: Opens, site: Path) -> Callable[..., Page]:
    def visit(name: str, search: str = "", **options: object) -> Page:
        below = f"{site.as_uri()}/"
        return opens(f"{below}{name}{search}", allowed=below, **options)

    return visit


@pytest.mark.parametrize(
    ("number", "dark", "size"),
    [(1, False, DESKTOP), (7, True, PHONE), (10, False, PHONE), (10, True, DESKTOP)],
)
def test_a_lesson_answers(
    number: int,
    dark: bool,
    size: dict[str, int],
    visits: Callable[..., Page],
    violations: Callable[[Page], list[str]],
) -> None:
    page = visits(f"lessons/{LESSONS[number].slug}.html", dark=dark, size=size)
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
    expect(named.locator("output")).to_have_text("not this one, look again")
    named.locator(f"button[value='{code}']").click()
    expect(named.locator("output")).to_have_text("✓ that is the mistake")
    expect(named.locator("pre")).to_contain_text(f"✗ {code}")

    for drawn in page.locator("ch-figure").all():
        drawn.locator(".panel").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= page.evaluate("innerWidth")
    assert violations(page) == []


def test_a_figure_follows_the_theme_of_the_site(visits: Callable[..., Page]) -> None:
    page = visits(f"lessons/{LESSONS[1].slug}.html")
    figure = page.locator("ch-figure").first
    expect(figure).not_to_have_attribute("theme", re.compile("."))
    page.locator(".theme-toggle-content button").click()
    expect(figure).to_have_attribute("theme", "dark")


def test_a_page_in_a_frame_is_told_the_theme_and_tells_its_height(
    visits: Callable[..., Page], site: Path, tmp_path: Path
) -> None:
    """What the script of the site does with a frame, for which a page of ours speaks."""
    inner = site / "frame.html"
    inner.write_text(
        "<!doctype html><title>a page</title><script>"
        "addEventListener('message', ({ data }) => (document.title = JSON.stringify(data)));"
        "parent.postMessage({ clearhead: 'height', height: 431 }, '*')</script>",
        encoding="utf-8",
    )
    outer = site / "around.html"
    outer.write_text(
        "<!doctype html><title>around</title><body data-theme='dark'>"
        "<script src='_static/lesson.js'></script>"
        "<iframe class='ch-live' title='a page' src='frame.html'></iframe>",
        encoding="utf-8",
    )
    page = visits(outer.name)
    expect(page.locator("iframe")).to_have_css("height", "431px")
    frame = page.frames[1]
    for theme in ("dark", "light"):
        page.evaluate("(theme) => (document.body.dataset.theme = theme)", theme)
        said = json.dumps({"clearhead": "theme", "theme": theme}, separators=(",", ":"))
        frame.wait_for_function("(said) => document.title === said", arg=said, timeout=WAIT)


def test_search_finds(visits: Callable[..., Page]) -> None:
    page = visits("search.html", "?q=softmax")
    expect(page.locator("ul.search li a").first).to_be_visible()


def test_what_a_lesson_offers_and_weighs(site: Path) -> None:
    for number in OPENED:
        row = LESSONS[number]
        page = site / "lessons" / f"{row.slug}.html"
        text = page.read_text(encoding="utf-8")
        named = {unescape(each) for each in re.findall(r'(?:src|href)="([^"#?:]+)["#?]', text)}
        parts = {(page.parent / each).resolve() for each in named if not each.endswith(".html")}
        live = set(page.parent.glob(f"live/{row.slug}*"))
        assert sum(each.stat().st_size for each in {page, *parts, *live}) <= MOST
        for offered in (row.file, Path(row.file).with_suffix(".ipynb").name):
            assert page.parent / "files" / offered in parts


def test_the_api_has_the_public_names_and_no_others(site: Path) -> None:
    shown: set[str] = set()
    for page in (site / "api").glob("clearhead*.html"):
        named = re.findall(r'<dt class="sig[^>]* id="([\w.]+)"', page.read_text(encoding="utf-8"))
        shown |= {name for name in named if name.rpartition(".")[0] == page.stem}
    public = public_objects()
    assert {name for name in shown if not name.startswith("clearhead.errors.")} <= set(public)
    # A name of two packages is described in one of them.
    missing = {id(each) for each in public.values()} - {id(public.get(name)) for name in shown}
    assert all(inspect.ismodule(each) for each in public.values() if id(each) in missing)
