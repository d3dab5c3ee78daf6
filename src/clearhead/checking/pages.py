"""A report as HTML, for notebooks and as a page of its own."""

import html
from typing import TYPE_CHECKING

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
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>:root {{ color-scheme: light dark; }} body {{ margin: 2rem; }}</style>
</head><body>{sections}</body></html>
"""


def page(title: str, *sections: str) -> str:
    """A page of its own, which loads nothing; light or dark as the reader's screen is."""
    return PAGE.format(title=html.escape(title), sections="".join(sections))


def section(report: "Report") -> str:
    """The report as a notebook shows it."""
    parts = [f"<h3><code>{html.escape(report.name)}</code>: {report.summary}</h3>"]
    parts += [_finding(each) for each in report.findings]
    for kind, texts in (
        ("passed", report.passed),
        ("unverified", () if report.findings else report.unverified),
        ("skipped", report.skipped),
        ("told", (*report.told, *report.minor)),
    ):
        items = "".join(f"<li>{_remark(text)}</li>" for text in texts)
        parts += [f'<ul class="{kind}">{items}</ul>'] if items else []
    return f'<div class="clearhead-check"><style>{STYLE}</style>{"".join(parts)}</div>'


def _remark(text: str) -> str:
    """One line, and a drawing below it if there is one."""
    first, newline, drawing = text.partition("\n")
    return html.escape(first) + (
        f"<pre tabindex='0'>{html.escape(drawing)}</pre>" if newline else ""
    )


def _finding(finding: "Finding") -> str:
    names = " or ".join(
        f"<code>{html.escape(code)}</code>" for code in (finding.code, *finding.also)
    )
    follows = ""
    if finding.follows_from:
        follows = f" Follows from <code>{html.escape(finding.follows_from)}</code>."
    rows = ""
    if finding.measured:
        rows += f"<dt>measured</dt><dd><pre tabindex='0'>{html.escape(finding.measured)}</pre></dd>"
    if finding.likely:
        rows += f"<dt>likely</dt><dd>{html.escape(finding.likely)}</dd>"
    if not finding.follows_from:
        rows += f"<dt>see</dt><dd><code>{html.escape(finding.see)}</code></dd>"
    kind = ' class="follows"' if finding.follows_from else ""
    return (
        f"<section{kind}><p><b>{'↳' if kind else '✗'} {names}</b> {html.escape(finding.sentence)}.{follows}</p>"
        f"<dl>{rows}</dl></section>"
    )
