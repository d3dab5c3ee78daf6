"""The lines, titles and tables of things that draw themselves at the end of a notebook's cell."""

from collections.abc import Iterable

from clearhead._common.elements import Html, element

LINE = "1px solid rgba(128,128,128,0.35)"
"""A border that shows on dark and on light."""

FRAME = "font-family:system-ui,sans-serif;font-size:13px;line-height:1.45"


def frame(*children: str) -> str:
    """Return the whole drawing of a thing: a plain str, since marimo takes no other."""
    return str(element("div", *children, style=FRAME))


def line(*children: str, small: bool = False) -> Html:
    """A line of text."""
    style = "margin:2px 0"
    return element("div", *children, style=f"{style};font-size:12px" if small else style)


def title(*children: str) -> Html:
    """The title, above everything else."""
    return element("div", *children, style="margin:2px 0;font-weight:600")


def scrolling(*children: str, style: str = "") -> Html:
    """A box for what may be wider than its cell; the keyboard scrolls it as well."""
    return element("div", *children, style=f"{style}overflow-x:auto;max-width:100%", tabindex=0)


def table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> Html:
    """A table; the first cell of a row is its heading."""
    cell = (
        "padding:2px 8px;text-align:left;vertical-align:middle;background:none;white-space:nowrap"
    )
    head = [element("th", each, scope="col", style=f"{cell};font-weight:600") for each in heading]
    body = []
    for first, *others in rows:
        cells = [element("th", first, scope="row", style=f"{cell};font-weight:400")]
        cells += [element("td", each, style=cell) for each in others]
        body.append(element("tr", *cells, style=f"border-top:{LINE};background:none"))
    style = "border-collapse:collapse;margin:4px 0"
    top = element("thead", element("tr", *head))
    return element("table", top, element("tbody", *body), style=style)
