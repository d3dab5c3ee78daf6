"""A report as HTML, for notebooks and as a page of its own."""

import linecache
from typing import TYPE_CHECKING

from clearhead._common.elements import Html, document, element

if TYPE_CHECKING:
    from clearhead.checking.report import Finding, Report

# White on a dark colour can be read on any ground; the rest is inherited, so that a dark notebook
# stays dark.
STYLE = """
.clearhead-check { font-family: system-ui, sans-serif; line-height: 1.45; max-width: 60rem; }
.clearhead-check h3 { margin: 0 0 .6rem; font-size: 1.1rem; }
.clearhead-check section { border-left: .25rem solid #d64550; padding: .1rem 0 .1rem .8rem;
  margin: 0 0 .9rem; }
.clearhead-check section.follows { border-left: .25rem dotted #b8860b; margin-left: 1.5rem; }
.clearhead-check p { margin: 0 0 .3rem; }
.clearhead-check code, .clearhead-check pre { font-family: ui-monospace, monospace;
  font-size: .9em; color: inherit; background: none; }
.clearhead-check section b code { color: #fff; background: #b00020; padding: .05rem .35rem;
  border-radius: .2rem; }
.clearhead-check section.follows b code { background: #7a5200; }
.clearhead-check dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem .8rem;
  margin: 0; }
.clearhead-check dt { font-weight: 600; }
.clearhead-check dd { margin: 0; min-width: 0; }
.clearhead-check pre { margin: 0; padding: .3rem .5rem; white-space: pre-wrap;
  background: rgba(127, 127, 127, .14); border-radius: .25rem; }
.clearhead-check ul { list-style: none; margin: 0 0 .5rem; padding: 0; }
.clearhead-check .passed li { display: inline-block; margin-right: 1.2rem; }
.clearhead-check .passed li::before { content: "✓ "; }
.clearhead-check .skipped li::before { content: "– "; }
.clearhead-check .told li::before { content: "note "; font-weight: 600; }
.clearhead-check .unverified li::before { content: "not judged "; font-weight: 600; }
"""


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
    return str(element("div", element("style", Html(STYLE)), *parts, class_="clearhead-check"))


def _remark(text: str) -> list[str]:
    """Return the children of a list item: the first line, and a <pre> of the other lines if there are any."""
    first, newline, drawing = text.partition("\n")
    return [first, element("pre", drawing, tabindex=0)] if newline else [first]


def _finding(finding: "Finding") -> Html:
    """Return a finding as an HTML section: its codes and sentence, then the rows of its details."""
    sentence = [f"{'↳' if finding.follows_from else '✗'} ", element("code", finding.code)]
    follows: list[str] = []
    if finding.follows_from:
        follows = [" Follows from ", element("code", finding.follows_from), "."]
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
    if not finding.follows_from and finding.see:
        rows += [element("dt", "see"), element("dd", element("code", finding.see))]
    return element(
        "section",
        element("p", element("b", *sentence), f" {finding.sentence}.", *follows),
        element("dl", *rows),
        class_="follows" if finding.follows_from else None,
    )
