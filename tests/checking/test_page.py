"""docs/check.md explains every name that a report can hold."""

import re
import runpy
from collections import Counter

from clearhead.checking.rules import RULES
from clearhead.checking.words import catalogue
from tests.checking.bank import BANKS, entries
from tests.checking.bank.course import CASES
from tests.surface import ROOT

MISTAKES = catalogue()["mistake"]


def headings() -> list[str]:
    page = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    return [
        each for each in re.findall(r"^## (\S+)$", page, re.M) if "." in each or each == "differs"
    ]


def test_every_name_has_a_rule_and_is_explained() -> None:
    assert (
        set(headings())
        == set(MISTAKES)
        == {each.code for each in RULES} | {"call.raises", "ranks.stuck"}
    )
    assert len(headings()) == len(set(headings()))


def test_every_name_is_folded_under_its_first_sentence() -> None:
    generator = runpy.run_path(str(ROOT / "docs" / "generate_mistakes.py"))
    page = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    assert page == generator["page"](), "write it anew: python docs/generate_mistakes.py"
    assert re.findall(r"<summary><code>(\S+)</code>: \S", page) == headings()


def test_every_name_is_in_a_bank_or_on_the_page_in_two_styles() -> None:
    held = [each for bank in BANKS for each in entries(bank) if each.codes]
    counts = Counter(headings()) + Counter(each.codes[0] for each in held)
    counts += Counter(code for each in CASES for code in each.codes)
    assert {code: counts[code] for code in headings() if counts[code] < 2} == {
        "call.raises": 1,
        "ranks.stuck": 1,
    }


def test_every_way_says_what_it_does_and_what_is_right() -> None:
    for code, mistake in MISTAKES.items():
        assert mistake["says"], code
        for way, said in mistake["says"].items():
            assert len(said) == 2, (code, way)
            assert not said[0].endswith("."), (code, way)
