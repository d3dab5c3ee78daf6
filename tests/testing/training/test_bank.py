"""Every script of the bank: what is wrong is found by its code, what is right keeps every law."""

from collections import Counter

import pytest

import clearhead as ch
from clearhead.testing.training.laws import LAWS
from tests.testing.training.bank import ENTRIES, Entry


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda each: f"{each.law}: {each.name}")
def test_what_is_wrong_is_found_and_what_is_right_is_held(entry: Entry) -> None:
    report = ch.testing.check_training(**entry.make())
    # The codes that are found, and what should have been judged and was not.
    found = (*(each.code for each in report.findings), *report.unverified)
    assert entry.code in found if entry.code else not found


def test_each_group_of_laws_has_three_wrong_scripts_and_three_right_ones() -> None:
    counts = Counter((each.law, bool(each.code)) for each in ENTRIES)
    assert len(counts) == 2 * len({each.law for each in ENTRIES})
    assert min(counts.values()) >= 3


def test_each_code_has_a_script() -> None:
    assert {each.code for each in ENTRIES} - {""} == set(LAWS)
