import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead.masks.selected import Selected
from clearhead.masks.spans import Extent
from tests.masks.expressions import Expression, expressions
from tests.masks.test_spans import filled

KEYS = 13
IDS = torch.arange(KEYS) // 4


def some_of(length: int) -> st.SearchStrategy[Tensor | None]:
    """Some places, in whatever order and more than once."""
    places = st.lists(st.integers(0, length - 1), max_size=7) if length else st.just([])
    in_order = places.map(lambda each: sorted({*each}))
    return st.none() | (places | in_order).map(lambda each: torch.tensor(each, dtype=torch.int64))


@given(expressions, st.data())
def test_some_pairs_of_a_mask(expression: Expression, data: st.DataObject) -> None:
    mask, sizes, expected = expression
    rows, columns = (data.draw(some_of(each)) for each in (sizes.query_len, sizes.kv_len))
    heads = data.draw(
        st.none() | st.integers(0, sizes.heads - 1).map(lambda at: slice(at, sizes.heads))
    )
    some = Selected(mask, sizes.query_len, sizes.kv_len, rows, columns, heads)
    expected = expected if rows is None else expected[:, :, rows]
    expected = expected if columns is None else expected[..., columns]
    expected = expected if heads is None else expected[:, heads]
    lengths = expected.shape[2], expected.shape[3]
    extent = Extent(*expected.shape, torch.device("cpu"))
    some.check(extent)
    queries, keys = (slice(0, length) for length in lengths)
    assert torch.equal(some.block(queries, keys, extent).expand(expected.shape), expected)
    assert some.leading == (mask.leading[0], 1 if mask.heads is None else expected.shape[1])
    spans = some.spans(extent)
    if spans is None:
        in_order = columns is None or bool((columns.diff() > 0).all())
        assert not in_order or mask.spans(Extent(*sizes, torch.device("cpu"))) is None
    else:
        assert torch.equal(filled(spans, lengths[1])[:, None].expand(expected.shape), expected)


def test_it_combines_and_says_what_it_is_of() -> None:
    some = Selected(ch.causal(), 4, 4, torch.tensor([1, 3]))
    both = some & ch.dense(torch.tensor([[True, False, True, True]] * 2))
    assert both.to_dense(2, 4).tolist() == [[True, False, False, False], [True, False, True, True]]
    assert some.describe() == "causal()"


def test_it_is_checked_for_the_sizes_of_all() -> None:
    some = Selected(ch.documents(IDS), KEYS, KEYS, torch.tensor([1, 3]))
    some.check(some.extent(2, KEYS))
    other = Selected(ch.documents(IDS), 7, 7, torch.tensor([1, 3]))
    with pytest.raises(ch.MaskError, match="is for 13 keys"):
        other.check(other.extent(2, 7))
