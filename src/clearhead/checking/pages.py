"""A report as HTML, for notebooks and as a page of its own."""

import linecache
from importlib import resources
from typing import TYPE_CHECKING

from clearhead._common.elements import Html, document, element

if TYPE_CHECKING:
    from clearhead.checking.report import Finding, Report


def page(title: str, *sections: str) -> str:
    """Return an HTML document that loads nothing, light or dark by the reader's setting.

    Args:
        title: of the page.
        sections: HTML, as `section` returns it.
    """
    head = [
        element("meta", name="viewport", content="width=device-width"),
        element("title", title),
        element("style", Html(":root { color-scheme: light dark; } body { margin: 2rem; }")),
    ]
    return str(document(head, map(Html, sections)))


def section(report: "Report") -> str:
    """Return a report as an HTML element with its style, for a notebook.

    What was not judged is left out if there are findings.
    """
    parts = [element("h3", element("code", report.name), f": {report.summary}")]
    parts += [_finding(each) for each in report.findings]
    for kind, texts in (
        ("passed", report.passed),
        ("unverified", () if report.findings else report.unverified),
        ("skipped", report.skipped),
        ("told", report.told),
    ):
        items = [element("li", *_remark(text)) for text in texts]
        parts += [element("ul", *items, class_=kind)] if items else []
    style = resources.files("clearhead.checking").joinpath("pages.css").read_text(encoding="utf-8")
    return str(element("div", element("style", Html(style)), *parts, class_="clearhead-check"))


def _remark(text: str) -> list[str]:
    """Return the children of a list item: the first line, and a <pre> of the other lines if there are any."""
    first, newline, drawing = text.partition("\n")
    return [first, element("pre", drawing, tabindex=0)] if newline else [first]


def _finding(finding: "Finding") -> Html:
    """Return a finding as an HTML section: its codes and sentence, then the rows of its details."""
    sentence = ["✗ ", element("code", finding.code)]
    rows: list[str] = []
    if finding.measured:
        drawn = element("pre", finding.measured, tabindex=0)
        rows += [element("dt", "measured"), element("dd", drawn)]
    if finding.likely:
        rows += [element("dt", "likely"), element("dd", finding.likely)]
    if finding.read and finding.place is not None:
        line = linecache.getline(*finding.place).strip()
        rows += [element("dt", f"line {finding.place[1]}"), element("dd", element("code", line))]
    if finding.read:
        rows += [element("dt", "read"), element("dd", finding.read)]
    if finding.see:
        rows += [element("dt", "see"), element("dd", element("code", finding.see))]
    return element(
        "section",
        element("p", element("b", *sentence), f" {finding.sentence}."),
        element("dl", *rows),
    )
