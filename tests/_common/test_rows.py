"""MeasuredRows: columns, the order, the largest, as text and as a picture."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import clearhead as ch
from clearhead._common.rows import MeasuredRows
from tests.refusals import assert_refused, refusals, wrong


class Kind(NamedTuple):
    """A row of every kind of column."""

    layer: str
    head: int
    gain: float
    score: float | None
    none: float | None = None


class Kinds(MeasuredRows[Kind]):
    ROW = Kind
    UNITS = {"gain": "nats"}  # noqa: RUF012


ROWS = Kinds(
    [Kind("a.10", 0, -3.0, 0.5), Kind("a.2", 1, 2.0, None), Kind("a.2", 0, float("nan"), 0.75)]
)


def test_a_column_by_its_name() -> None:
    assert ROWS["layer"] == ["a.10", "a.2", "a.2"]
    assert ROWS["head"].tolist() == [0, 1, 0]
    assert ROWS["head"].dtype == torch.int64
    score = ROWS["score"]
    assert score.dtype == torch.float64
    assert score.nan_to_num(-1.0).tolist() == [0.5, -1.0, 0.75]
    assert ROWS["none"].isnan().all()
    assert ROWS.columns == ("layer", "head", "gain", "score", "none")
    empty = ROWS[:0]
    assert (empty["layer"], empty["score"].shape, len(empty.top(2, "gain"))) == ([], (0,), 0)


def test_a_column_that_is_not_there() -> None:
    for call in (
        lambda: ROWS["scores"],
        lambda: ROWS.sort("scores"),
        lambda: ROWS.top(1, "scores"),
    ):
        assert_refused(call, "rows.column", "'scores' // layer, head, gain, score, none")


def test_sorting_counts_as_people_do_and_keeps_the_order_of_equal_ones() -> None:
    assert [row.layer for row in ROWS.sort("layer")] == ["a.2", "a.2", "a.10"]
    assert [row.head for row in ROWS.sort("layer")] == [1, 0, 0]
    assert [row.head for row in ROWS.sort("layer", descending=True)] == [0, 1, 0]
    assert_refused(
        lambda: ROWS.sort("layer", descending=wrong(1)), "descending.type", "descending // 1"
    )


test_the_largest_of_what_has_no_numbers = refusals(
    lambda by: ROWS.top(1, by),
    (None, "rows.by", "head, gain, score // None"),
    ("layer", "rows.by", "head, gain, score // 'layer'"),
    ("none", "rows.by", "head, gain, score // 'none'"),
)


@pytest.mark.parametrize(("count", "code"), [(0, "argument.size"), (1.5, "argument.type")])
def test_how_many_must_be_a_number_of_rows(count: int, code: str) -> None:
    with pytest.raises(ch.errors.ClearheadError) as raised:
        ROWS.top(count, "score")
    assert raised.value.code == code


def test_the_text_leaves_out_what_nothing_has() -> None:
    assert repr(ROWS[:2]) == (
        "layer  head   gain  score\n"
        "              nats\n"
        "a.10      0  -3.00   0.50\n"
        "a.2       1   2.00"
    )  # fmt: skip


NUMBERS = st.none() | st.just(float("nan")) | st.floats(-3, 3) | st.integers(-3, 3).map(float)


@given(st.lists(NUMBERS, max_size=8), st.booleans(), st.integers(1, 9))
def test_the_order_is_that_of_the_numbers_and_then_the_one_before(
    scores: list[float | None], descending: bool, count: int
) -> None:
    rows = Kinds([Kind("a", place, 1.0, score) for place, score in enumerate(scores)])
    known = [row for row in rows if row.score is not None and row.score == row.score]
    found = rows.sort("score", descending=descending)
    expected = sorted(known, key=lambda row: row.score or 0.0, reverse=descending)
    assert [row.head for row in found][: len(known)] == [row.head for row in expected]
    left = [row.head for row in rows if row not in known]
    assert [row.head for row in found][len(known) :] == left
    if known:
        largest = sorted(known, key=lambda row: -abs(row.score or 0.0))[:count]
        assert [row.head for row in rows.top(count, "score")] == [row.head for row in largest]
