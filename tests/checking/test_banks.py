"""The verdicts on a fixed tenth of the banks are as good as the stored ones; `make banks` checks all."""

import json
from collections import Counter
from typing import Any

import pytest

from tests.checking.bank import BANKS, HERE, entries
from tests.checking.bank.entry import Entry
from tests.checking.freeze import frozen, is_hard, rates, verdict, worse
from tests.surface import ROOT

FROZEN = frozen()
# Mistakes that are found, and reported at another line than that at fault, or at none.
ELSEWHERE = {
    "held_out: layers.NarrowedToStart", "open: wrong_heads.EveryHeadFirstSlice", "open: wrong_heads.ExpandedHead",
    "open: wrong_heads.PackedFirstHead", "open: layers.Gemma(base=500000.0)", "open: layers.Gemma(turned='k')",
    "open: layers.Gemma(turned='q')", "laws: laws.sum_not_rescaled",
    "tutorials: first:SeveralHeads: [Head(d_in, head_size, context_length)] * num_heads",
    "open: layers.Gemma(bend='not divided')", "held_out: layers.SumOfExponentials",
    "open: layers.Ways(lambda q, k, v: softmax(q, k).mT @ v)", "laws: wrong_bias.sink_behind_first_dropped",
    "tutorials_held_out: later:VisionAttention: x = (attn.transpose(-2, -1) @ v).transpose(1, 2).reshape(B, N, C)",
}  # fmt: skip
EVERYTHING = [(f"{bank}: {each.name}", each) for bank in BANKS for each in entries(bank)]


@pytest.mark.parametrize(("name", "entry"), EVERYTHING[::10])
def test_a_verdict_is_as_good_as_the_stored_one(name: str, entry: Entry) -> None:
    lines = worse(entry, FROZEN[name], verdict(entry))
    assert not [each for each in lines if is_hard(each)]


def test_every_entry_has_a_stored_verdict_and_these_keep_the_contract() -> None:
    assert {name for name, _ in EVERYTHING} == set(FROZEN)
    assert {name for name, each in EVERYTHING if each.line != FROZEN[name]["line"]} == ELSEWHERE
    totals = rates(dict(EVERYTHING), FROZEN, FROZEN)
    assert not any(each.partition(":")[0].isupper() for each in totals)


ROW = {"outcome": "wrong", "codes": ["mask.missing"], "line": "a = b"}


@pytest.mark.parametrize(
    ("codes", "was", "now", "line"),
    [
        ([], {"outcome": "right", "codes": []}, {}, "ACCUSED: ['mask.missing']"),
        ([], {"outcome": "right"}, {"outcome": "not judged", "codes": []}, "UNSURE: []"),
        ([], {}, {}, None),
        (["mask.missing"], {}, {}, None),
        (["mask.missing"], {}, {"outcome": "right", "codes": []}, "CALLED RIGHT: ['mask.missing']"),
        (["mask.missing"], {}, {"codes": ["differs"]}, "name: ['mask.missing'] -> ['differs']"),
        (["mask.inverted"], {}, {"codes": ["differs"]}, None),
        (["mask.missing"], {}, {"line": ""}, "line: a = b"),
        (["mask.missing"], {"line": ""}, {}, None),
    ],
)
def test_what_is_worse(
    codes: list[str], was: dict[str, Any], now: dict[str, Any], line: str | None
) -> None:
    entry = Entry("", "", "x", {}, tuple(codes), "", "", {}, "")
    assert list(worse(entry, ROW | was, ROW | now)) == ([] if line is None else [line])


PUBLIC = json.loads((HERE / "public.json").read_text(encoding="utf-8"))


def is_named(row: dict[str, Any]) -> bool:
    """A mistake without a name in the bank is named by any finding that says what it is."""
    return bool(row["found"]) and (row["found"][0] in row["codes"] or "kind" in row)


def test_the_page_shows_the_rates_of_public_code() -> None:
    tried = [row for row in PUBLIC["found"] if row["outcome"] is not None]
    wrong = [row for row in tried if row["verdict"] == "wrong"]
    right = Counter(row["outcome"] for row in tried if row["verdict"] == "right")
    page = (ROOT / "docs" / "check_findings.md").read_text(encoding="utf-8")
    assert {row["outcome"] for row in tried} <= {"right", "wrong", "not judged"}
    for title, rows, beside in (
        ("public code", wrong, f"{right.total()} | {right['wrong']} | {right['not judged']}"),
        ("put into public code", PUBLIC["injected"], "| |"),
    ):
        found = Counter(row["outcome"] for row in rows)
        named = sum(map(is_named, rows))
        counts = [len(rows), named, found["wrong"] - named, found["not judged"], found["right"]]
        assert f"| {title} | {' | '.join(map(str, counts))} | {beside} |\n" in page
        assert found["right"] == 0
    assert len({row["repo"] for row in PUBLIC["found"]}) == 116
