"""Every mistake of a fixed tenth of the banks is found and named, with no false alarm; `make banks` checks all."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.checking import bank
from tests.checking.bank import laws
from tests.checking.bank.entry import Entry
from tests.checking.bank.lessons import first_entries, later_entries
from tests.checking.rates import Outcome, Rates, outcome
from tests.surface import ROOT

# What is found under another name than that of the mistake.
OTHERWISE = {"first:softmax_by_hand: weights = scores"}


@pytest.mark.parametrize(
    "entry",
    [each for held in (bank, laws, first_entries, later_entries) for each in held.ENTRIES][::10],
    ids=lambda each: each.name,
)
def test_every_mistake_is_named_and_what_is_right_is_called_right(entry: Entry) -> None:
    found = outcome(entry)
    assert not found.error
    if entry.code is None:
        assert not found.codes
    else:
        assert found.named or (found.found and entry.name in OTHERWISE), found.codes


def entry(name: str, code: str | None, *also: str) -> Entry:
    return Entry(name, lambda: None, "qkv", {}, code, also)


OUTCOMES = [
    Outcome(entry("named", "a"), ("a", "b"), "", 1.0),
    Outcome(entry("otherwise named", "a", "b"), ("b",), "", 2.0),
    Outcome(entry("misnamed", "a"), ("b", "a"), "", 3.0),
    Outcome(entry("missed", "a"), (), "", 4.0),
    Outcome(entry("refused", "a"), (), "[check.call] no", 5.0),
    Outcome(entry("clean", None), (), "", 6.0),
    Outcome(entry("alarm", None), ("a",), "", 70.0),
]


@pytest.mark.parametrize(
    ("count", "names"),
    [
        ("missed", ["missed", "refused"]),
        ("misnamed", ["misnamed"]),
        ("alarms", ["alarm"]),
        ("uncallable", ["refused"]),
    ],
)
def test_outcomes_are_counted(count: str, names: list[str]) -> None:
    assert [each.entry.name for each in getattr(Rates(OUTCOMES), count)] == names


def test_the_counts_as_text() -> None:
    assert str(Rates(OUTCOMES)).splitlines() == [
        "5 wrong: 3 found (60.0%), 2 named (40.0%)",
        "2 right: 1 false alarms",
        "1 could not be called",
        "CPU seconds a check: median 4.00, at most 70.00 (alarm), in all 91",
        "missed: missed, wanted a, got nothing",
        "missed: refused, wanted a, got [check.call] no",
        "misnamed: misnamed, wanted a, got b, a",
        "false alarm: alarm, wanted right, got a",
        "not callable: refused, wanted a, got [check.call] no",
    ]


PUBLIC = json.loads((Path(bank.__file__).parent / "public.json").read_text(encoding="utf-8"))


def is_named(row: dict[str, Any]) -> bool:
    """A mistake without a name in the bank is named by any finding that says what it is."""
    return bool(row["found"]) and (row["found"][0] in row["codes"] or "kind" in row)


def test_the_page_shows_the_rates_of_public_code() -> None:
    tried = [row for row in PUBLIC["found"] if row["outcome"] is not None]
    wrong = [row for row in tried if row["verdict"] == "wrong"]
    right = Counter(row["outcome"] for row in tried if row["verdict"] == "right")
    page = (ROOT / "docs" / "check_findings.md").read_text(encoding="utf-8")
    assert {row["outcome"] for row in tried} <= {"right", "wrong", "not judged"}
    for title, rows, beside in (
        ("public code", wrong, f"{right.total()} | {right['wrong']} | {right['not judged']}"),
        ("put into public code", PUBLIC["injected"], "| |"),
    ):
        found = Counter(row["outcome"] for row in rows)
        named = sum(map(is_named, rows))
        counts = [len(rows), named, found["wrong"] - named, found["not judged"], found["right"]]
        assert f"| {title} | {' | '.join(map(str, counts))} | {beside} |\n" in page
        assert found["right"] == 0
    assert len({row["repo"] for row in PUBLIC["found"]}) == 116
