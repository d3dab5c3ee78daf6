"""A real browser, cut off from every network, in which a page must make no complaint."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    FloatRect,
    Locator,
    Page,
    Route,
    expect,
    sync_playwright,
)

from clearhead.drawing.page.page import write_page
from clearhead.drawing.page.payload import Payload

ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update "
    "--disable-sync --disable-extensions --no-first-run --mute-audio --renderer-process-limit=1"
)
AXE = Path(__file__).parents[2] / "frontend/node_modules/axe-core/axe.min.js"
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}

# In milliseconds: what is expected comes within a few, but for a machine that is busy elsewhere.
WAIT = 120_000
expect.set_options(timeout=WAIT)

# What is observed is laid out anew with a frame, and drawn by the next one.
TWO_FRAMES = "() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))"

Opens = Callable[..., Page]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Chromium of the system's packages, which `make test` installs."""
    known = ("chromium-headless-shell", "chromium", "chromium-browser")
    place = next(filter(None, map(shutil.which, known)), None)
    assert place is not None, "there is no chromium; `make test` installs it, or says how"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=place, args=ARGUMENTS.split())
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def window(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    """One window for all tests, in which each page is a page of its own, drawn by one warm process."""
    context = chromium.new_context(offline=True, accept_downloads=True)
    context.set_default_timeout(WAIT)
    # Between tests a page in a file keeps the process that draws pages in files.
    blank = tmp_path_factory.mktemp("window") / "blank.html"
    blank.write_text("<!doctype html><title>blank</title>", encoding="utf-8")
    context.new_page().goto(blank.as_uri())
    yield context
    context.close()


@pytest.fixture
def opens(window: BrowserContext, tmp_path: Path) -> Iterator[Opens]:
    """Opens pages for one test."""
    yield from opening(window, tmp_path)


@pytest.fixture(scope="module")
def opens_once(window: BrowserContext, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opens]:
    """Opens pages that all tests of a module share."""
    yield from opening(window, tmp_path_factory.mktemp("shared"))


def opening(window: BrowserContext, folder: Path) -> Iterator[Opens]:
    """Yield what opens a payload as a page in a file, or an address: `opens(payload, size=PHONE)`.

    Afterwards it fails for any error or warning of the console, and any request that is not for the file itself, or
    below `allowed`.
    """
    pages: list[Page] = []
    complaints: list[str] = []

    def open_page(
        what: Payload | str,
        *,
        dark: bool = False,
        size: dict[str, int] = DESKTOP,
        allowed: str | None = None,
        forced: bool = False,
    ) -> Page:
        if isinstance(what, Payload):
            path = write_page(folder / f"page{len(pages)}.html", what)
            address = path.as_uri()
        else:
            address = what
        window.set_offline(allowed is None)
        page = window.new_page()
        pages.append(page)
        page.set_viewport_size({"width": size["width"], "height": size["height"]})
        page.emulate_media(
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            forced_colors="active" if forced else "none",
        )

        def check(route: Route) -> None:
            url = route.request.url.partition("#")[0]
            known = url == address or url.startswith(("blob:", "data:"))
            if known or (allowed is not None and url.startswith(allowed)):
                route.continue_()
            else:
                complaints.append(f"asked for {url}")
                route.abort()

        page.route("**/*", check)
        page.on(
            "console",
            lambda said: (
                complaints.append(f"{said.type}: {said.text}")
                if said.type in ("error", "warning")
                else None
            ),
        )
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.goto(address)
        if isinstance(what, Payload):
            page.locator(".ch-shell, [role=alert]").first.wait_for()
            page.evaluate(TWO_FRAMES)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert not complaints, "\n".join(complaints)


def becomes(page: Page, read: str, right: Callable[[Any], bool]) -> None:
    """Wait for what a script reads, which is drawn in one of the next frames."""
    for _ in range(200):
        if right(page.evaluate(read)):
            return
        page.wait_for_timeout(25)
    assert right(page.evaluate(read)), page.evaluate(read)


def restart(page: Page) -> None:
    """Show what a page of heads or of a trace began with, without another load."""
    page.keyboard.press("Escape")
    page.mouse.move(0, 0)
    page.evaluate(
        """() => {
            document.querySelector("dialog")?.close();
            document.activeElement.blur();
            scrollTo(0, 0);
            history.replaceState(null, "", "#");
            dispatchEvent(new PopStateEvent("popstate"));
        }"""
    )
    page.evaluate(TWO_FRAMES)


def still(place: Locator) -> FloatRect:
    """The box of an element that moves no more: the same in three frames in a row."""
    place.evaluate(
        """async (each) => {
            const box = () => JSON.stringify(each.getBoundingClientRect());
            for (let [same, last, frame] = [0, box(), 0]; same < 3 && frame < 300; frame++) {
                await new Promise(requestAnimationFrame);
                const now = box();
                [same, last] = [now === last ? same + 1 : 0, now];
            }
        }"""
    )
    found = place.bounding_box()
    assert found is not None
    return found


@pytest.fixture(scope="session")
def violations() -> Callable[[Page], list[str]]:
    """The violations that axe (Deque's checks of accessibility) finds in a page, a line each."""
    assert AXE.is_file(), f"{AXE} is missing; `make lint` installs it"
    source = AXE.read_text(encoding="utf-8")

    def find(page: Page) -> list[str]:
        page.evaluate(source)  # by the debugger, which the page's policy does not bind
        # WCAG 2.2 has the size of a target; axe leaves it out unless asked.
        # A page from the disk cannot fetch its styles nor call into a frame, so that axe must not try; none of its
        # rules here reads styles, and pages that are framed have tests of their own.
        rules = {"target-size": {"enabled": True}}
        asked = {"rules": rules, "preload": False, "iframes": False}
        found = page.evaluate("async (asked) => (await axe.run(asked)).violations", asked)
        return [
            f"{each['id']}: {each['help']}: {', '.join(str(node['target']) for node in each['nodes'])}"
            for each in found
        ]

    return find
