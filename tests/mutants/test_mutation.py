"""Mutants: what changes, what stays, and what is found again after an edit."""

import ast

import pytest

import clearhead as ch
from tests.mutants.__main__ import read
from tests.mutants.mutation import GoneError, Mutant, apply, functions, head, mutants, mutated, text

MODULE = "clearhead.masks.causal"
CHANGED = Mutant(
    MODULE,
    "Causal.visible",
    "return key_index <= query_index + offset",
    "return key_index < query_index + offset",
)


def test_every_mutant_of_a_module_is_another_code() -> None:
    every = list(mutants(MODULE))
    assert CHANGED in every
    assert len(set(every)) == len(every)
    assert all(each.statement != each.becomes for each in every)
    codes = {mutated(each) for each in every}
    assert len(codes) == len(every)


def test_a_mutant_is_at_once_everywhere_and_goes_again() -> None:
    among = functions(MODULE)
    before = {function: function.__code__ for function in among}
    mask = ch.causal()
    try:
        assert apply(mutated(CHANGED), among) == 1
        assert mask.draw(2, 2) == "· ·\n● ·"
    finally:
        for function, code in before.items():
            function.__code__ = code
    assert mask.draw(2, 2) == "● ·\n● ●"


def test_what_stands_no_longer_is_gone() -> None:
    other = Mutant(MODULE, CHANGED.function, "return key_index", "return query_index")
    with pytest.raises(GoneError):
        mutated(other)
    with pytest.raises(GoneError):
        mutated(Mutant(MODULE, CHANGED.function, CHANGED.statement, CHANGED.becomes, nth=1))


@pytest.mark.parametrize(
    "words", ["if x < 3:", "while True:", "for each in range(3):", "with a as b:", "x = 3", "try:"]
)
def test_a_statement_and_its_words(words: str) -> None:
    assert text(head(words)) == words


def test_the_list_is_of_statements_that_change_and_says_what_becomes_of_each() -> None:
    for each in read():
        mutant = each.mutant
        assert ast.dump(head(mutant.statement)) != ast.dump(head(mutant.becomes)), mutant
        assert not (each.killed_by and each.equivalent), mutant
