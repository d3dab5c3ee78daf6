"""Some of the random calls of `make soak`, and that it finds and shrinks what is wrong."""

from typing import Any

import pytest
import torch

import clearhead as ch
from tests.soak import cases
from tests.soak.cases import Case, random_case, run, shrunk, soak


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_calls(first: int) -> None:
    count, failed = soak(600, first, 20)
    assert count == 20
    assert not failed, "\n\n".join(map(str, failed))


def test_random_edits() -> None:
    count, failed = soak(600, most=24, what="edit")
    assert count == 24
    assert not failed, "\n\n".join(map(str, failed))


FOUND = [
    # Scores of 16-bit numbers are exact until they are scaled; scaled before, they were off by ten times as much.
    Case(50019837, "matrix", num_heads=2, query_len=65, dtype="bfloat16", scale=0.3, softcap=0.5, spread=8.0),
    Case(50028859, "matrix", 3, 6, 3, 7, 7, 64, dtype="bfloat16", scale=-0.7, softcap=30.0,
         strides="overlapping", spread=8.0),
    # A prefix far from the query, where ALiBi takes 47 off every score: PyTorch's kernel rounds the logsumexp.
    Case(771005322, batch=3, num_heads=3, kv_len=257, bias="ch.alibi(3)", spread=0.0,
         mask="(ch.prefix([69, 256, 80]) | ch.causal(offset=[6, 8, 2]))"),
]  # fmt: skip


@pytest.mark.parametrize("case", FOUND, ids=lambda case: str(case.seed))
def test_what_was_found_in_a_long_soak(case: Case) -> None:
    run(case)


def test_a_case_is_the_same_at_every_run() -> None:
    assert random_case(7) == random_case(7)
    assert {random_case(seed).what for seed in range(90)} == {
        "attend", "matrix", "cache", "norms", "gradients", "edit",
    }  # fmt: skip


def test_a_failure_is_shrunk_to_lines_that_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = ch.attend

    def wrong(*given: torch.Tensor, **options: Any) -> torch.Tensor:
        context = attend(*given, **options)
        return context if options["softcap"] is None else context + 1

    monkeypatch.setattr(cases.ch, "attend", wrong)
    found = shrunk(Case(3, batch=3, num_heads=2, mask="ch.causal()", softcap=0.5, scale=0.3))
    assert found == Case(3, softcap=0.5)
    lines = str(found).splitlines()
    assert lines[1:] == ["case = Case(seed=3, softcap=0.5)", "run(case)"]
    with pytest.raises(AssertionError, match="the context"):
        exec(str(found), {})
    monkeypatch.undo()
    run(found)
