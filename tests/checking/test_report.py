"""A report as text: lines are as wide as they may be, drawings are kept."""

import json

from clearhead._text import as_json
from clearhead.checking.judging.drawings import drawn
from clearhead.checking.report import WIDTH, Finding, Report, sarif

CAUSE = Finding("a.b", "one " * 40, "head\n● ●\n· ●", "do " * 60)
OTHER = Finding("e.f", "and so on")


def test_the_text_of_findings() -> None:
    lines = str(Report("mine", (CAUSE, OTHER))).splitlines()
    assert lines[0].startswith("✗ a.b   one one")
    assert lines[1].startswith("    one")
    assert all(len(line) <= WIDTH for line in lines)
    start = lines.index("    measured   head")
    assert lines[start + 1 : start + 3] == ["               ● ●", "               · ●"]
    assert lines[start + 3].startswith("    likely     do do")
    assert lines[start + 4].startswith("               do do")
    assert "    see        clearhead explain a.b" in lines
    assert lines[-2:] == ["✗ e.f   and so on", "    see        clearhead explain e.f"]


def test_a_file_whose_name_is_no_text() -> None:
    report = Report("caf\udce9", (CAUSE,), place=("/tmp/caf\udce9.py", 3))
    for text in (report.to_json(), report.to_sarif(), report.to_html(), sarif([report])):
        text.encode("utf-8")
    assert json.loads(report.to_json())["name"] == "caf\udce9"
    assert '"… 1/√16"' in as_json({"a": "… 1/√16"})


MANY = Report(
    "mine",
    (),
    ("causal", "heads"),
    ("first", "second\n● ·", "third"),
    ("dropout", "x" * 98),
)


def test_what_is_told_fits_in_three_lines() -> None:
    assert str(MANY).splitlines() == [
        "✓ causal   ✓ heads",
        "note  first",
        "      second",
        "      ● ·",
        "      … more with --all",
    ]


def test_everything_is_told_where_it_is_asked_for() -> None:
    assert MANY.text(everything=True).splitlines() == [
        "✓ causal   ✓ heads",
        "– dropout",
        "– " + "x" * 98,
        "note  first",
        "      second",
        "      ● ·",
        "      third",
    ]


def test_nothing() -> None:
    assert str(Report("mine", ())) == "nothing was measured"


def test_how_many() -> None:
    assert Report("mine", ()).summary == "no mistake found"
    assert Report("mine", (CAUSE,)).summary == "1 mistake found"
    assert Report("mine", (CAUSE, OTHER)).summary == "2 mistakes found"


def test_a_drawing() -> None:
    rows = [[True, True], [False, None]]
    assert drawn(rows) == "● ●\n· ×"
    assert drawn(rows, own=True) == "○ ●\n· ×"
