import torch
from hypothesis import given
from hypothesis import strategies as st

import clearhead as ch
from tests.masks.drawn import docstring_drawings
from tests.masks.expressions import Sizes, sizes


def test_the_docstring_is_true() -> None:
    drawn = [ch.causal().draw(4, 4), ch.causal().draw(2, 5), ch.causal().draw(5, 2)]
    assert docstring_drawings(ch.causal) == drawn


@given(sizes.filter(lambda each: each.query_len > 0), st.integers(-4, 31), st.data())
def test_queries_that_come_later_have_an_offset_so_much_larger(
    sizes: Sizes, offset: int, data: st.DataObject
) -> None:
    """As the next chunk of a text beside a cache."""
    _, _, query_len, kv_len = sizes
    first = data.draw(st.integers(0, query_len))
    whole = ch.causal(offset=offset).to_dense(query_len, kv_len)
    later = ch.causal(offset=offset + first)
    assert torch.equal(later.to_dense(query_len - first, kv_len), whole[first:])
    usual = ch.causal().to_dense(query_len, kv_len)
    assert torch.equal(ch.causal().to_dense(query_len - first, kv_len), usual[first:])


def test_it_says_how_it_was_made() -> None:
    assert ch.causal().describe() == "causal()"
    assert ch.causal(offset=3).describe() == "causal(offset=3)"
    assert ch.causal(offset=[1, 2]).describe() == "causal(offset=[1, 2])"
