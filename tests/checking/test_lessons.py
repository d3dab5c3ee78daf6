"""What learners write in the lessons of the course is graded: right is right, and each mistake has its name."""

import pytest

import clearhead as ch
from tests.checking.bank.course import Case, parts

CASES = [*parts.CASES]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_right_is_right_and_what_is_wrong_is_named(case: Case) -> None:
    report = ch.check(case.make(), lesson=case.lesson)
    if not case.codes:
        assert report.outcome == "right", f"\n{report}"
        return
    assert report.findings, report.summary
    finding = report.findings[0]
    assert finding.code in case.codes, f"\n{report}"
    assert finding.place is not None, f"\n{report}"
    assert finding.read.startswith("lesson ")
    assert finding.measured
