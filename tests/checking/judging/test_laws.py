# pyright: basic
"""What is said of a law that is broken, and of what cannot be judged."""

import pytest

import clearhead as ch
from tests.checking.bank import defined, entries

WINDOW = {"d_in": 8, "context_length": 9}
MadeFor = defined("kinds.MadeFor")
NeverFilled = defined("kinds.NeverFilled")
PlusInfinity = defined("kinds.PlusInfinity")
TableOfBiases = defined("kinds.TableOfBiases")
a_line_in_the_distance = defined("kinds.a_line_in_the_distance")
keys_weighted = defined("kinds.keys_weighted")
queries_flipped = defined("kinds.queries_flipped")
value_added = defined("kinds.value_added")
values_centred = defined("kinds.values_centred")
last_block_dropped = defined("laws.last_block_dropped")
sum_not_rescaled = defined("laws.sum_not_rescaled")
zero_is_hidden = defined("laws.zero_is_hidden")

NOT_JUDGED = ("OverChannels", "NeverFilled")


def test_what_is_right_is_called_right_but_for_what_the_definition_says_nothing_of():
    for entry in entries("laws"):
        if entry.codes or not entry.name.startswith("kinds."):
            continue
        report = ch.check(entry.make(), takes=entry.takes, **entry.options())
        expected = "not judged" if any(word in entry.name for word in NOT_JUDGED) else "right"
        assert report.outcome == expected, f"{entry.name}\n{report}"


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (queries_flipped, "law.pairs"),
        (values_centred, "law.value"),
        (a_line_in_the_distance, "differs"),
        (keys_weighted, "parameter.dead"),
        (value_added, "differs"),
        (last_block_dropped, "differs"),
        (sum_not_rescaled, "softmax.missing"),
        (lambda q, k, v: queries_flipped(q.flip(2), k, v * v), "differs"),
    ],
)
def test_a_function_has_the_law_that_it_breaks(function, code):
    assert ch.check(function, takes="qkv").findings[0].code == code


def test_a_score_of_zero_that_hides_says_so():
    (finding,) = ch.check(zero_is_hidden, takes="qkv", causal=True).findings
    assert finding.code == "law.scores"
    assert "it differs from the definition by up to" in finding.measured


def test_a_fill_with_infinity_is_called_that():
    finding = ch.check(PlusInfinity(), takes="x", causal=True).findings[0]
    assert finding.code == "output.non-finite"


@pytest.mark.parametrize(("found", "words"), [(1e30, "never written to"), (0.0, "is 0 throughout")])
def test_parameters_that_nobody_filled_are_the_reason_why_nothing_is_judged(found, words):
    report = ch.check(NeverFilled(found=found), takes="x")
    assert not report.findings
    assert any("query, key, value" in each and words in each for each in report.unverified)


def test_an_activation_before_the_projection_is_a_layer():
    assert not ch.check(TableOfBiases(), takes="x", sizes=WINDOW).findings


def test_a_head_dim_that_nobody_declares_is_that_which_it_was_made_for():
    report = ch.check(MadeFor(), takes="qkv")
    assert report.ok
    assert "it is made for a head_dim of 81" in report.told
