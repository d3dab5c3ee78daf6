"""Some of the random calls of `make soak`, and what was found in long ones."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.soak.cases import KINDS, Case, cases, hold, run, soak


@pytest.mark.parametrize("what", KINDS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_random_calls(what: str, data: st.DataObject) -> None:
    hold(data.draw(cases(what)))


def test_a_soak_of_no_time_runs_nothing() -> None:
    assert soak(0.0, first=7) == 6


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
