"""mistakes.md explains every code that a report can have, and words.toml has its sentences."""

import re

from clearhead.checking.rules import CODES
from clearhead.checking.words import catalogue, likely, sentence
from tests.surface import ROOT

WORDS = catalogue()
SOURCES = [*(ROOT / "src" / "clearhead" / "checking").rglob("*.py")]
TEXT = "\n".join(each.read_text(encoding="utf-8") for each in SOURCES)


def headings() -> list[str]:
    page = ROOT / "src" / "clearhead" / "checking" / "mistakes.md"
    return re.findall(r"^## (\S+)$", page.read_text(encoding="utf-8"), re.M)


def test_every_code_has_a_rule_and_is_explained() -> None:
    assert len(headings()) == len(set(headings()))
    assert set(headings()) == set(WORDS["mistake"]) == set(CODES) | {"call.raises"}


def test_there_are_few_codes_and_few_sentences() -> None:
    assert len(WORDS["mistake"]) <= 45
    assert (
        len(WORDS["mistake"]) + sum(len(each.get("when", ())) for each in WORDS["mistake"].values())
        <= 120
    )


def test_an_alias_is_a_code_of_before_and_no_source_uses_it() -> None:
    assert set(WORDS["alias"].values()) <= set(WORDS["mistake"])
    assert not set(WORDS["alias"]) & set(WORDS["mistake"])
    assert [each for each in WORDS["alias"] if f'"{each}"' in TEXT] == []


def test_every_sentence_is_of_a_kind_that_a_source_names() -> None:
    for code, mistake in WORDS["mistake"].items():
        assert not mistake["says"].endswith("."), code
        for ways in mistake.get("when", {}):
            for way in ways.split():
                assert f'"{way}"' in TEXT, (code, way)


def test_a_kind_without_a_sentence_of_its_own_has_that_of_the_code() -> None:
    assert sentence("scale.missing", "anything", {}) == "the scores are not scaled"
    assert sentence("scale.missing", "declared", {"wanted": 2}).endswith("and 2 is declared")
    assert likely("scale.missing", "declared", {"wanted": 2}) == "scores * 2"
