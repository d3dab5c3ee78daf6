import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.masks.selected import Selected
from clearhead.masks.spans import Extent, Spans

QUERIES, KEYS = 11, 13
IDS = torch.arange(KEYS) // 4
MASKS = {
    "causal": ch.causal(),
    "window": ch.causal() & ch.sliding_window(left=2),
    "documents": ch.documents(IDS) | ch.prefix(2),
    "not": ~ch.sliding_window(left=1, right=1),
    "padding": ch.padding([5, 0, 13]),
    "holes": ch.padding((torch.arange(KEYS) % 3 > 0).expand(3, -1)),
    "dense": ch.dense(torch.arange(3 * 4 * QUERIES * KEYS).view(3, 4, QUERIES, KEYS) % 5 > 1),
}
ROWS = torch.tensor([9, 0, 4, 10])
COLUMNS = torch.tensor([0, 3, 4, 8, 12])


def of_spans(spans: Spans, keys: int) -> Tensor:
    key = torch.arange(keys)[:, None]
    return ((key >= spans.start[..., None, :]) & (key < spans.stop[..., None, :])).any(-1)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("rows", [None, ROWS])
@pytest.mark.parametrize("columns", [None, COLUMNS, COLUMNS.flip(0)])
@pytest.mark.parametrize("heads", [None, slice(1, 3)])
def test_some_pairs_of_a_mask(
    name: str, rows: Tensor | None, columns: Tensor | None, heads: slice | None
) -> None:
    mask = MASKS[name]
    some = Selected(mask, QUERIES, KEYS, rows, columns, heads)
    expected = mask.to_dense(QUERIES, KEYS)
    expected = expected[(None,) * (4 - expected.ndim)]
    if rows is not None:
        expected = expected[:, :, rows]
    if columns is not None:
        expected = expected[..., columns]
    if heads is not None and mask.heads is not None:
        expected = expected[:, heads]
    lengths = expected.shape[2], expected.shape[3]
    queries, keys = (slice(0, length) for length in lengths)
    seen = some.block(queries, keys, some.extent(*lengths))
    assert torch.equal(seen.expand(expected.shape), expected)
    assert some.leading == tuple(expected.shape[:2])
    some.check(Extent(3, 4 if heads is None else 2, *lengths, torch.device("cpu")))
    spans = some.spans(some.extent(*lengths))
    if spans is None:
        in_order = columns is None or bool((columns.diff() > 0).all())
        assert not in_order or mask.spans(mask.extent(QUERIES, KEYS)) is None
    else:
        assert torch.equal(of_spans(spans, lengths[1])[:, None].expand(expected.shape), expected)


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
