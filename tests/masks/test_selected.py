import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead.masks.selected import Selected
from clearhead.masks.spans import Extent
from tests.masks.test_spans import filled

BATCH, HEADS, QUERIES, KEYS = 3, 4, 11, 13
IDS = torch.arange(KEYS) // 4
MASKS = [
    ch.causal(),
    ch.causal() & ch.sliding_window(left=2),
    ch.documents(IDS) | ch.prefix(2),
    ~ch.sliding_window(left=1, right=1),
    ch.padding([5, 0, 13]),
    ch.padding((torch.arange(KEYS) % 3 > 0).expand(BATCH, -1)),
    ch.dense(
        torch.arange(BATCH * HEADS * QUERIES * KEYS).view(BATCH, HEADS, QUERIES, KEYS) % 5 > 1
    ),
]


def some_of(length: int) -> st.SearchStrategy[Tensor | None]:
    """Some places, in whatever order and more than once."""
    listed = st.lists(st.integers(0, length - 1), max_size=7)
    in_order = listed.map(lambda each: sorted({*each}))
    return st.none() | (listed | in_order).map(lambda each: torch.tensor(each, dtype=torch.int64))


heads_of = st.none() | st.sampled_from([slice(1, 3), slice(2, 4), torch.tensor([3, 0, 1])])


@settings(max_examples=30)
@given(st.sampled_from(MASKS), some_of(QUERIES), some_of(KEYS), heads_of)
def test_some_pairs_of_a_mask(
    mask: ch.Mask, rows: Tensor | None, columns: Tensor | None, heads: slice | Tensor | None
) -> None:
    some = Selected(mask, QUERIES, KEYS, rows, columns, heads)
    expected = mask.to_dense(QUERIES, KEYS).expand(BATCH, HEADS, QUERIES, KEYS)
    expected = expected if rows is None else expected[:, :, rows]
    expected = expected if columns is None else expected[..., columns]
    expected = expected if heads is None else expected[:, heads]
    batch, left, query_len, kv_len = expected.shape
    extent = Extent(batch, left, query_len, kv_len, torch.device("cpu"))
    some.check(extent)
    queries, keys = (slice(0, length) for length in (query_len, kv_len))
    assert torch.equal(some.block(queries, keys, extent).expand(expected.shape), expected)
    assert some.leading == (mask.leading[0], 1 if mask.heads is None else left)
    spans = some.spans(extent)
    if spans is None:
        in_order = columns is None or bool((columns.diff() > 0).all())
        assert not in_order or mask.spans(mask.extent(QUERIES, KEYS)) is None
    else:
        assert torch.equal(filled(spans, kv_len)[:, None].expand(expected.shape), expected)


def test_it_combines_and_says_what_it_is_of() -> None:
    some = Selected(ch.causal(), 4, 4, torch.tensor([1, 3]))
    both = some & ch.dense(torch.tensor([[True, False, True, True]] * 2))
    assert both.to_dense(2, 4).tolist() == [[True, False, False, False], [True, False, True, True]]
    assert some.describe() == "causal()"
