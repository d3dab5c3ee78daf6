"""Lines, titles and tables for results that render as HTML in notebooks."""

from collections.abc import Iterable, Sequence

from clearhead._common.elements import Html, element

LINE = "1px solid rgba(128,128,128,0.35)"
"""A border that shows on dark and on light."""

FRAME = "font-family:system-ui,sans-serif;font-size:13px;line-height:1.45"
CELL = "padding:2px 8px;vertical-align:middle;background:none;white-space:nowrap"


def frame(*children: str) -> str:
    """Return a complete HTML output as a plain str, because marimo takes nothing else."""
    return str(element("div", *children, style=FRAME))


def line(*children: str, small: bool = False) -> Html:
    """Return a line of text, in smaller letters if it is `small`."""
    style = "margin:2px 0"
    return element("div", *children, style=f"{style};font-size:12px" if small else style)


def title(*children: str) -> Html:
    """Return the title, above everything else."""
    return element("div", *children, style="margin:2px 0;font-weight:600")


def scrolling(*children: str, style: str = "") -> Html:
    """Return a box for content that may be wider than its cell; the keyboard scrolls it as well."""
    return element("div", *children, style=f"{style}overflow-x:auto;max-width:100%", tabindex=0)


def table(
    headings: Sequence[Iterable[str]],
    rows: Iterable[Iterable[str]],
    sides: Sequence[str] = (),
    styles: Iterable[Iterable[str]] = (),
) -> Html:
    """Return a table of rows of text; the first cell of a row is its heading.

    Args:
        headings: rows above the others, the first of them bold.
        rows: the cells, row by row.
        sides: the text alignment of each column; left without.
        styles: further styles of each cell but the first, row by row; none without.
    """

    def row(tag: str, cells: Iterable[str], weight: int, further: Iterable[str] = ()) -> Html:
        styled = ["", *further]
        drawn = [
            element(
                "th" if at == 0 else tag,
                cell,
                scope="col" if tag == "th" else "row" if at == 0 else None,
                style=f"{CELL};text-align:{sides[at] if sides else 'left'};font-weight:{weight}"
                + (styled[at] if at < len(styled) else ""),
            )
            for at, cell in enumerate(cells)
        ]
        return element("tr", *drawn, style=f"border-top:{LINE};background:none")

    head = [row("th", cells, 400 if at else 600) for at, cells in enumerate(headings)]
    further = iter(styles)
    body = [row("td", cells, 400, next(further, ())) for cells in rows]
    style = "border-collapse:collapse;margin:4px 0"
    parts = [element("thead", *head)] if head else []
    return element("table", *parts, element("tbody", *body), style=style)
