"""Elements of HTML: whatever is put into one is text, unless it is an element itself."""

import html
from collections.abc import Iterable

LINE = "1px solid rgba(128,128,128,0.35)"
"""A border that shows on dark and on light."""

FRAME = "font-family:system-ui,sans-serif;font-size:13px;line-height:1.45"
EMPTY = {"img"}


class Html(str):
    """Markup that is safe to stand where it is put."""

    __slots__ = ()


def element(tag: str, *children: "str | Html", **attributes: str | int) -> Html:
    """An element; children and attributes that are not markup are escaped.

    Example:
        >>> element("b", "a < b", element("i", "c"), title='"')
        '<b title="&quot;">a &lt; b<i>c</i></b>'
    """
    named = "".join(
        f' {name.rstrip("_")}="{html.escape(str(value))}"' for name, value in attributes.items()
    )
    if tag in EMPTY:
        return Html(f"<{tag}{named}>")
    return Html(f"<{tag}{named}>{joined(children)}</{tag}>")


def joined(children: Iterable["str | Html"]) -> Html:
    """Several children one after the other."""
    return Html(
        "".join(child if isinstance(child, Html) else html.escape(child) for child in children)
    )


def frame(*children: "str | Html") -> str:
    """What a thing draws itself as, whole: a plain str, since marimo takes no other."""
    return str(element("div", *children, style=FRAME))


def line(*children: "str | Html", small: bool = False) -> Html:
    """A line of text."""
    style = "margin:2px 0"
    return element("div", *children, style=f"{style};font-size:12px" if small else style)


def title(*children: "str | Html") -> Html:
    """What a thing is, above everything else."""
    return element("div", *children, style="margin:2px 0;font-weight:600")


def scrolling(*children: "str | Html", style: str = "") -> Html:
    """What may be wider than its cell; the keyboard moves it as well."""
    return element("div", *children, style=f"{style}overflow-x:auto;max-width:100%", tabindex=0)


def table(heading: Iterable["str | Html"], rows: Iterable[Iterable["str | Html"]]) -> Html:
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
