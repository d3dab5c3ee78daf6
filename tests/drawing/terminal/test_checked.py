"""The output of `clearhead check`, in colour."""

import io
from typing import Any

from clearhead.checking.report import Finding, Report
from clearhead.drawing.terminal.scanned import print_report
from clearhead.drawing.terminal.shading import Console

CAUSE = Finding("mask.inverted", "[red] the future is visible", "● ·", "~mask")
REPORT = Report("mine", (CAUSE, Finding("a.b", "so")), ("heads",))


def printed(**options: Any) -> str:
    file = io.StringIO()
    print_report(Console(file=file, width=40, **options), REPORT)
    return file.getvalue()


def test_the_text_is_that_of_the_report() -> None:
    assert printed() == f"{REPORT}\nmine: 2 mistakes found\n"


def test_a_terminal_gets_colours() -> None:
    coloured = printed(force_terminal=True, color_system="standard", legacy_windows=False)
    assert "\x1b[1;31m✗ mask.inverted\x1b[0m" in coloured
    assert "\x1b[1;31m✗ a.b\x1b[0m" in coloured
    assert "\x1b[32m✓\x1b[0m" in coloured
