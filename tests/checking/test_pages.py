"""A report as HTML: everything in it, escaped, and nothing loaded."""

import re
from pathlib import Path

from clearhead.checking.report import Finding, Report

CAUSE = Finding("a.b", "x < y", "● ·\n· ●", "use <this>")
OTHER = Finding("e.f", "and so on")
REPORT = Report("<mine>", (CAUSE, OTHER), ("heads",), ("a band\n● ·",), ("dropout",))


def test_two_findings() -> None:
    section = REPORT._repr_html_()
    one, two = re.findall(r"<section.*?</section>", section, re.S)
    assert "<b>✗ <code>a.b</code></b> x &lt; y." in one
    assert '<pre tabindex="0">● ·\n· ●</pre>' in one
    assert "use &lt;this&gt;" in one
    assert "<dt>see</dt><dd><code>clearhead explain a.b</code></dd>" in one
    assert "<b>✗ <code>e.f</code></b>" in two
    assert "measured" not in two


def test_a_lesson_shows_the_line_and_what_to_read_again(tmp_path: Path) -> None:
    file = tmp_path / "lesson_01.py"
    file.write_text("first\nx < y\n")
    told = Finding("a.b", "so", place=(str(file), 2), read="lesson 1")
    section = Report("mine", (told,), lesson=1)._repr_html_()
    assert "<dt>line 2</dt><dd><code>x &lt; y</code></dd>" in section
    assert "<dt>read</dt><dd>lesson 1</dd>" in section
    assert "<dt>line" not in Report("mine", (CAUSE,))._repr_html_()


def test_remarks() -> None:
    section = REPORT._repr_html_()
    assert '<ul class="passed"><li>heads</li></ul>' in section
    assert '<ul class="skipped"><li>dropout</li></ul>' in section
    assert '<ul class="told"><li>a band<pre tabindex="0">● ·</pre></li></ul>' in section
    unverified = Report("mine", (), unverified=("scale: why",))._repr_html_()
    assert '<ul class="unverified"><li>scale: why</li></ul>' in unverified
    assert "<h3><code>mine</code>: not judged: scale</h3>" in unverified
    assert "<ul" not in Report("mine", (CAUSE,))._repr_html_()


def test_a_page_is_light_or_dark_and_loads_nothing() -> None:
    page = REPORT.to_html()
    assert "color-scheme: light dark" in page
    assert "<title>check: &lt;mine&gt;</title>" in page
    assert "<mine>" not in page
    assert not re.search(r"http|src=|url\(|@import", page)
    assert REPORT._repr_html_() in page
