"""How many mistakes of the open bank are found and named, with no false alarm."""

import pytest

from tests.checking import bank
from tests.checking.bank.entry import Entry
from tests.checking.rates import Outcome, Rates, rates


def test_every_mistake_is_found_and_nearly_every_one_is_named() -> None:
    found = rates(bank.ENTRIES)
    assert not found.uncallable, f"\n{found}"
    assert not found.missed, f"\n{found}"
    assert not found.alarms, f"\n{found}"
    assert len(found.misnamed) <= 0.03 * len(found.wrong), f"\n{found}"


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
