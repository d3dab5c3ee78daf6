"""The examination of a function of query, key and value."""

from collections.abc import Callable

import torch
from torch import Tensor

from clearhead.conformance.cases import Attempt, as_case, attempts, hides_anything
from clearhead.conformance.contract import Contract
from clearhead.conformance.judging import judge_explained, judge_unexplained
from clearhead.conformance.matching import Case, contracts, explain
from clearhead.conformance.notes import Notes
from clearhead.conformance.probes import weights
from clearhead.conformance.references import Mutant, bank
from clearhead.conformance.subject import Subject


def examine_qkv(subject: Subject, contract: Contract, notes: Notes, seed: int) -> dict[str, int]:
    """Everything that can be asked of f(query, key, value)."""
    tried = attempts(subject, contract, seed)
    made = [(each, as_case(each, contract, subject.dtype)) for each in tried]
    cases = [case for _, case in made if case is not None]
    explanation = explain(cases, contract, mutants_for(cases, subject.takes == "qkv,mask"))
    if explanation.mutants is not None:
        judge_explained(notes, cases, explanation)
    else:
        measured = weights.measure(subject, *tried[0].inputs)
        judge_unexplained(notes, tried, cases, contract, measured)
    main = tried[0].sizes
    return {"num_heads": main.num_heads, "head_dim": main.head_dim}


def mutants_for(cases: list[Case], given: bool) -> Callable[[Contract], list[Mutant]]:
    """The bank for these cases, under a contract."""

    def make(contract: Contract) -> list[Mutant]:
        masked = hides_anything([case.under(contract) for case in cases])
        return bank(contract, given=given, flat=cases[0].flat, masked=masked)

    return make


__all__ = ["Attempt", "Tensor", "contracts", "examine_qkv", "torch"]
