"""What a test reads of a figure: its cells, and the numbers that they say."""

from playwright.sync_api import Locator, Page

SPOKEN = """(all) => all.map((each) =>
  each.getAttribute("aria-valuetext") ?? each.getAttribute("aria-label").split(": ").at(-1))"""


def cell(page: Page | Locator, at: str) -> Locator:
    return page.locator(f'[data-at="{at}"]')


def numbers(page: Page | Locator, stage: str) -> list[str]:
    """The numbers of a stage to four decimals, as a screen reader says them."""
    return page.locator(f'[data-at^="{stage}."]').evaluate_all(SPOKEN)


def reading(page: Page | Locator) -> str:
    """How the number comes about that is pointed at."""
    return page.locator(".reading").inner_text()


def point_at(page: Page, stage: str, row: int, column: int) -> str:
    """The reading of a cell while the pointer is over it."""
    cell(page, f"{stage}.{row}.{column}").dispatch_event(
        "pointerover", {"bubbles": True, "composed": True}
    )
    return reading(page)


def middle(place: Locator) -> tuple[float, float]:
    """The middle of an element on the screen, into which it is scrolled."""
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
