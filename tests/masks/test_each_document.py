"""Packed texts whose queries and keys are packed apart, held against each text alone."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead.masks.each_document import advice_for_rest
from tests.masks.drawn import rows

WITHIN: dict[str, ch.Mask | None] = {
    "all": None,
    "causal": ch.causal(),
    "window": ch.sliding_window(left=1, right=2),
    "prefix": ch.causal() | ch.prefix(2),
    "outside": ~(ch.causal() & ch.sliding_window(left=1)),
    "nothing": ~ch.full(),
}
LENGTHS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=6)


def alone(pairs: list[tuple[int, int]], within: ch.Mask | None) -> Tensor:
    """The masks of single texts as the blocks of a large one."""
    within = ch.full() if within is None else within
    dense = [within.to_dense(*pair) for pair in pairs]
    return torch.block_diag(*dense).bool() if dense else torch.zeros(0, 0, dtype=torch.bool)


def apart(pairs: list[tuple[int, int]], within: ch.Mask | None) -> ch.Mask:
    queries, keys = ([pair[side] for pair in pairs] for side in (0, 1))
    return ch.documents(lengths=keys, queries=queries, mask=within)


@pytest.mark.parametrize("name", WITHIN)
@settings(max_examples=20)
@given(pairs=LENGTHS)
def test_each_is_what_it_is_alone(name: str, pairs: list[tuple[int, int]]) -> None:
    mask, expected = apart(pairs, WITHIN[name]), alone(pairs, WITHIN[name])
    sizes = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    assert torch.equal(mask.to_dense(*sizes), expected.view(sizes))
    assert mask.sizes() == sizes
    spans = mask.spans(mask.extent(*sizes))
    assert spans is not None
    for start, stop, seen in zip(spans.start[0], spans.stop[0], expected.tolist(), strict=True):
        listed = [key for a, b in zip(start, stop, strict=True) for key in range(int(a), int(b))]
        assert listed == [key for key, visible in enumerate(seen) if visible]


def test_offsets_are_those_of_flash_attention() -> None:
    of_keys, of_queries = torch.tensor([0, 2, 5]).int(), torch.tensor([0, 1, 3]).int()
    mask = ch.documents(offsets=of_keys, queries=of_queries, mask=ch.causal())
    # As its causal flag: the last query of each text sits on its last key.
    assert torch.equal(mask.to_dense(3, 5), rows("● ● · · ·", "· · ● ● ·", "· · ● ● ●"))


@pytest.mark.parametrize("kernel", ["auto", "blockwise", "eager"])
@pytest.mark.parametrize("name", WITHIN)
def test_packed_texts_are_what_the_padded_batch_is(kernel: str, name: str) -> None:
    of_queries, of_keys, heads = [3, 1, 7, 0, 2], [5, 6, 7, 3, 0], 4
    query = torch.randn(5, heads, 7, 3, dtype=torch.float64, requires_grad=True)
    key, value = (
        torch.randn(5, 2, 7, dim, dtype=torch.float64, requires_grad=True) for dim in (3, 5)
    )
    real_queries, real_keys = (
        torch.arange(7) < torch.tensor(lengths)[:, None] for lengths in (of_queries, of_keys)
    )
    tokens = [
        each.transpose(1, 2)[real].transpose(0, 1)[None]
        for each, real in ((query, real_queries), (key, real_keys), (value, real_keys))
    ]
    mask = ch.documents(lengths=of_keys, queries=of_queries, mask=WITHIN[name])
    found = ch.attend(tokens[0], tokens[1], tokens[2], mask=mask, kernel=kernel)
    shown = torch.zeros(5, 1, 7, 7, dtype=torch.bool)
    for sample, pair in enumerate(zip(of_queries, of_keys, strict=True)):
        shown[sample, 0, : pair[0], : pair[1]] = alone([pair], WITHIN[name])
    padded = ch.attend(query, key, value, mask=shown, kernel="eager")
    expected = padded.transpose(1, 2)[real_queries].transpose(0, 1)[None]
    torch.testing.assert_close(found, expected)
    grad = torch.randn_like(expected)
    leaves = (query, key, value)
    ours = torch.autograd.grad(found, leaves, grad, retain_graph=True)
    for one, other in zip(ours, torch.autograd.grad(expected, leaves, grad), strict=True):
        torch.testing.assert_close(one, other)


def test_statistics_know_no_place_before() -> None:
    mask = ch.documents(lengths=[3, 4], queries=[5, 2])
    matrix = ch.AttentionMatrix(torch.randn(7, 3), torch.randn(7, 3), mask=mask)
    assert matrix.cross
    summary = matrix.summary()
    assert summary.cross
    assert ch.roles(matrix).previous is None
    torch.testing.assert_close(summary.received, matrix.dense().sum(0))
    same = ch.documents(lengths=[3, 4], mask=ch.causal())
    assert not ch.AttentionMatrix(torch.randn(7, 3), torch.randn(7, 3), mask=same).cross


def test_a_tensor_as_bias_goes_and_tokens_of_the_same_texts_have_distances() -> None:
    query, key, value = torch.randn(3, 4, 5, 3).unbind()
    same = ch.documents(lengths=[2, 3], mask=ch.causal())
    expected = ch.documents(lengths=[2, 3]) & ch.causal()
    for bias in (torch.randn(5, 5), ch.alibi(4)):
        found = ch.attend(query, key, value, mask=same, bias=bias)
        torch.testing.assert_close(found, ch.attend(query, key, value, mask=expected, bias=bias))
    apart = ch.documents(lengths=[2, 3], queries=[4, 1])
    ch.attend(query, key, value, mask=apart, bias=torch.randn(5, 5))


def test_it_says_how_it_was_made() -> None:
    assert ch.documents(lengths=[2, 3], queries=[1, 2]).describe() == (
        "documents(lengths=[2, 3], queries=[1, 2])"
    )
    assert ch.documents(offsets=range(10), mask=ch.causal()).describe() == (
        "documents(lengths=<9 numbers>, mask=causal())"
    )


@pytest.mark.parametrize(
    "made", [{"lengths": [2, 3]}, {"offsets": [0, 2, 5]}, {"ids": [0, 0, 1, 1, 1]}]
)
def test_plain_numbers_go_to_the_device_of_the_query(made: dict[str, Any]) -> None:
    expected = ch.documents(**made).to_dense(5, 5)
    with torch.device("meta"):
        mask = ch.documents(**made)
        pair = ch.documents(lengths=[2, 3], queries=[2, 3])
    query = torch.randn(5, 3)
    for each in (mask, pair):
        assert ch.attend(query, query, query, mask=each).device.type == "cpu"
        assert torch.equal(each.to_dense(5, 5), expected)


@pytest.mark.parametrize(("known", "advice"), [(7, "length 1."), (8, ""), (9, "")])
def test_the_advice_for_documents_that_end_before_the_keys(known: int, advice: str) -> None:
    assert advice_for_rest(known, 8).endswith(advice)
    assert bool(advice_for_rest(known, 8)) == bool(advice)
