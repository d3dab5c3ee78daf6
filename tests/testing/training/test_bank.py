"""Every script of the bank: what is wrong is found by its code, what is right keeps every law."""

from collections import Counter

import pytest

import clearhead as ch
from clearhead.testing.trains import CODES, LAWS
from tests.testing.training.bank import ENTRIES, Entry

LAW_OF = {law.__name__: codes for law, codes in LAWS.items()}
NAMES = {"dropping": "dropout"}


@pytest.mark.parametrize("law", LAW_OF)
def test_each_law_by_its_scripts(law: str) -> None:
    entries = [each for each in ENTRIES if each.law == NAMES.get(law, law)]
    found = {each: _outcome(each) for each in entries}
    assert {e.name: f for e, f in found.items() if (e.code not in f if e.code else f)} == {}


def _outcome(entry: Entry) -> tuple[str, ...]:
    """The codes that are found, and what should have been judged and was not."""
    report = ch.testing.check_training(**entry.make())
    return (*(each.code for each in report.findings), *report.unverified)


def test_each_law_has_three_wrong_scripts_and_three_right_ones() -> None:
    counts = Counter((each.law, bool(each.code)) for each in ENTRIES)
    assert set(counts) == {
        (NAMES.get(law, law), wrong) for law in LAW_OF for wrong in (True, False)
    }
    assert min(counts.values()) >= 3
    for each in ENTRIES:
        law = next(law for law, codes in LAW_OF.items() if NAMES.get(law, law) == each.law)
        assert not each.code or each.code in LAW_OF[law], each.name


def test_each_code_has_a_script() -> None:
    assert {each.code for each in ENTRIES} - {""} | {"train.moved"} == set(CODES)
