"""The law of length: where it is asked, and what the report says of it."""

import pytest
import torch

import clearhead as ch
from clearhead.checking.evidence.lengths import affordable_lengths, estimate_operations
from clearhead.checking.thresholds import LAW_LENGTHS
from tests.checking.bank import defined

CacheOfSixteen = defined("laws.CacheOfSixteen")
Dots = defined("laws.Dots")
MaskUpToSixteen = defined("laws.MaskUpToSixteen")
Right = defined("laws.Right")
blocks_of_512 = defined("laws.blocks_of_512")


def test_operations_grow_as_a_loop_makes_them() -> None:
    assert estimate_operations([], 1025) == 1
    assert estimate_operations([(7, 40), (5, 39)], 1025) == 40
    assert estimate_operations([(10, 200), (5, 100)], 100) == pytest.approx(2000)
    assert estimate_operations([(10, 400), (5, 100)], 100) == pytest.approx(40_000)


def test_it_is_asked_at_every_length_that_costs_little() -> None:
    assert affordable_lengths([(7, 40), (5, 40)], 2, 1000, None) == list(LAW_LENGTHS)
    assert affordable_lengths([(7, 40), (5, 40)], 2, 1000, 64) == [1, 2, 7, 16, 17, 64]
    assert affordable_lengths([(7, 490), (5, 250)], 2, 1000, None) == [1, 2, 7]
    assert max(affordable_lengths([(7, 40), (5, 40)], 64, 1000, None)) == 257
    assert max(affordable_lengths([(7, 40), (5, 40)], 2, 500_000, None)) == 65


def test_the_report_ticks_the_laws_that_held_and_says_how_far() -> None:
    torch.manual_seed(0)
    report = ch.check(Right(causal=True), takes="x", causal=True)
    assert report.ok, report
    (laws,) = (each for each in report.passed if each.startswith("laws: "))
    assert laws == "laws: scores, again, samples, pairs, length to 1 025"


def test_a_loop_is_asked_at_fewer() -> None:
    torch.manual_seed(0)
    report = ch.check(Dots(), takes="x2d", causal=True)
    assert not report.findings, report
    assert any("length to 17" in each or "length to 16" in each for each in report.passed)


def test_more_tokens_than_the_mask_has_are_asked_of_the_last_one() -> None:
    torch.manual_seed(0)
    (finding,) = ch.check(MaskUpToSixteen(), takes="x", causal=True).findings
    assert (finding.code, "24 tokens" in finding.measured) == ("law.length", True)


def test_a_broken_law_says_at_how_many_tokens() -> None:
    (finding,) = ch.check(blocks_of_512, takes="qkv", causal=True).findings
    assert (finding.code, "1025 tokens" in finding.measured) == ("law.length", True)
    torch.manual_seed(0)
    (finding,) = ch.check(CacheOfSixteen(), takes="decode", causal=True).findings
    assert "64 tokens, in chunks of 32, 30, 1, 1" in finding.measured
