"""Every script of the bank: what is wrong is found by its code, what is right keeps every law."""

import pytest

import clearhead as ch
from clearhead.testing.training.training_laws import LAWS
from tests.testing.training.bank import ENTRIES, Entry


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda each: f"{each.law}: {each.name}")
def test_what_is_wrong_is_found_and_what_is_right_is_held(entry: Entry) -> None:
    report = ch.testing.check_training(**entry.make())
    # The codes that are found, and what should have been judged and was not.
    found = (*(each.code for each in report.findings), *report.unverified)
    assert entry.code in found if entry.code else not found


def test_each_code_has_a_script() -> None:
    assert {each.code for each in ENTRIES} - {""} == set(LAWS)
