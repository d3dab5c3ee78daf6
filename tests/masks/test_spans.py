import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead.masks.spans import (
    Extent,
    Spans,
    complement,
    every_key,
    intersection,
    one_run,
    union,
)
from tests.masks.expressions import Expression, expressions

CPU = torch.device("cpu")


def filled(spans: Spans, kv_len: int) -> Tensor:
    """The keys of the runs, (rows, query_len, kv_len)."""
    key = torch.arange(kv_len)
    inside = (spans.start[..., None] <= key) & (key < spans.stop[..., None])
    return inside.any(-2)


def assert_in_order(spans: Spans, kv_len: int) -> None:
    """Runs lie inside the keys, in order, and touch no key twice; empty ones come last."""
    assert spans.start.dtype == spans.stop.dtype == torch.int64
    assert spans.pieces == spans.start.shape[-1] >= 1
    assert (spans.start >= 0).all()
    assert (spans.start <= spans.stop).all()
    assert (spans.stop <= kv_len).all()
    assert (spans.start[..., 1:] >= spans.stop[..., :-1]).all()


@given(expressions)
def test_a_common_run_is_what_every_query_sees(expression: Expression) -> None:
    mask, sizes, expected = expression
    run = mask.common_run(Extent(*sizes, CPU))
    if run is None:
        return
    assert 0 <= run.start <= run.stop <= sizes.kv_len
    key = torch.arange(sizes.kv_len)
    assert torch.equal(((run.start <= key) & (key < run.stop)).expand(sizes), expected)


@pytest.mark.parametrize(
    ("mask", "query_len", "run"),
    [
        (ch.full(), 3, (0, 9)),
        (ch.causal(offset=4), 1, (0, 5)),
        (ch.sliding_window(left=2, right=1, offset=3), 1, (1, 5)),
        (ch.sliding_window(left=2), 2, None),
        (ch.causal(offset=2) & ch.padding(4, side="left"), 1, (5, 5)),
        (ch.padding([4, 4], side="left"), 5, (5, 9)),
        (ch.padding(torch.arange(9) > 5), 5, (6, 9)),
        (ch.padding(torch.stack([torch.arange(9) > 5, torch.arange(9) > 4])), 5, None),
        (ch.causal() | ch.padding(4), 1, None),
        (ch.dense(torch.arange(9)[None] < 7), 1, (0, 7)),
        (ch.dense((torch.arange(9) > 3).expand(2, 1, 8, 9)), 8, (4, 9)),
    ],
    ids=lambda each: each.describe() if isinstance(each, ch.Mask) else None,
)
def test_the_common_runs_that_are_known(
    mask: ch.Mask, query_len: int, run: tuple[int, int] | None
) -> None:
    assert mask.common_run(mask.extent(query_len, 9)) == (None if run is None else slice(*run))


def test_a_common_run_is_read_from_no_tensor_without_numbers() -> None:
    extent = Extent(2, 1, 1, 9, torch.device("meta"))
    lengths = torch.zeros(2, dtype=torch.int64, device="meta")
    assert ch.padding(lengths).common_run(extent) is None
    assert ch.padding(torch.zeros(2, 9, device="meta").bool()).common_run(extent) is None
    assert ch.dense(torch.zeros(1, 9, device="meta").bool()).common_run(extent) is None
    shown = torch.zeros(2, 1, 9).bool()
    assert torch.vmap(lambda mask: mask & (ch.dense(mask).common_run(extent) is None))(~shown).all()


@given(expressions)
def test_spans_agree_with_the_tensor(expression: Expression) -> None:
    mask, sizes, expected = expression
    spans = mask.spans(Extent(*sizes, CPU))
    if spans is None:
        return
    assert_in_order(spans, sizes.kv_len)
    assert spans.start.shape[:2] in ((1, sizes.query_len), (sizes.batch, sizes.query_len))
    assert torch.equal(filled(spans, sizes.kv_len)[:, None].expand(sizes), expected)


@pytest.mark.parametrize(
    "mask",
    [
        ch.dense(torch.ones(4, 4).bool()),
        ch.padding(torch.tensor([True, False, True, False])),
        ch.dense(torch.ones(4, 4).bool()) & ch.causal(),
        ~ch.padding(torch.tensor([True, False, True, False])) | ch.causal(),
    ],
    ids=ch.Mask.describe,
)
def test_what_is_any_set_of_pairs_has_none(mask: ch.Mask) -> None:
    assert mask.spans(mask.extent(4, 4)) is None


@st.composite
def runs(draw: st.DrawFn, kv_len: int = 11, query_len: int = 3) -> Spans:
    """Spans with up to three runs, some of them empty."""
    rows = draw(st.sampled_from([1, 2]))
    spans = complement(every_key(Extent(1, 1, query_len, kv_len, CPU)), kv_len)
    edges = st.lists(st.integers(0, kv_len), min_size=rows * query_len, max_size=rows * query_len)
    for _ in range(draw(st.integers(0, 3))):
        start, stop = (torch.tensor(draw(edges)).view(rows, query_len) for _ in range(2))
        spans = union(spans, one_run(start, stop, kv_len), kv_len)
    return spans


@given(runs(), runs())
def test_the_operators_of_spans_are_those_of_tensors(a: Spans, b: Spans) -> None:
    """And two sets of runs cut each other into at most as many pieces as they have edges."""
    left, right = filled(a, 11), filled(b, 11)
    for spans, expected in (
        (intersection(a, b, 11), left & right),
        (union(a, b, 11), left | right),
        (complement(a, 11), ~left),
    ):
        assert_in_order(spans, 11)
        assert torch.equal(filled(spans, 11), expected)
        assert spans.pieces <= a.pieces + b.pieces


@settings(max_examples=30)
@given(runs())
def test_runs_that_are_empty_everywhere_are_dropped(spans: Spans) -> None:
    twice = complement(complement(spans, 11), 11)
    used = (twice.stop > twice.start).sum(-1).max()
    assert twice.pieces == max(1, used)
