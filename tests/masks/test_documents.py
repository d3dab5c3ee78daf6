from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead.masks.spans import Extent
from tests.masks.drawn import docstring_drawings, rows
from tests.masks.expressions import Expression, Sizes
from tests.masks.test_each_document import LENGTHS, WITHIN
from tests.memory import LargestTensor, numbers

CPU = torch.device("cpu")


def test_the_docstring_is_true() -> None:
    apart = ch.documents(lengths=[2, 3], queries=[1, 2])
    in_each = ch.documents(lengths=[2, 3], queries=[1, 2], mask=ch.causal())
    assert docstring_drawings(ch.documents) == [
        ch.documents([7, 7, 9, 9, 9]).draw(5, 5), apart.draw(3, 5), in_each.draw(3, 5)
    ]  # fmt: skip


@pytest.mark.parametrize("ids", [[4, 4, -1], (4, 4, -1), torch.tensor([4, 4, -1]).int()])
def test_ids_are_any_whole_numbers(ids: list[int] | Tensor) -> None:
    expected = rows("● ● ·", "● ● ·", "· · ●")
    assert torch.equal(ch.documents(ids).to_dense(3, 3), expected)


def test_packed_texts_are_what_the_padded_batch_is() -> None:
    lengths, offsets = [5, 1, 7], torch.tensor([0, 5, 6, 13])
    query, key, value = torch.randn(3, 3, 2, 7, 4).unbind()
    real = torch.arange(7) < torch.tensor(lengths)[:, None]
    padded = ch.attend(query, key, value, mask=ch.causal() & ch.padding(lengths))
    tokens = [each.transpose(1, 2)[real].transpose(0, 1)[None] for each in (query, key, value)]
    found = ch.attend(
        tokens[0], tokens[1], tokens[2], mask=ch.causal() & ch.documents(offsets=offsets)
    )
    torch.testing.assert_close(found[0].transpose(0, 1), padded.transpose(1, 2)[real])


def test_queries_are_the_last_tokens() -> None:
    assert torch.equal(ch.documents([1, 2, 2]).to_dense(1, 3), rows("· ● ●"))
    assert torch.equal(ch.documents([1, 2, 2]).to_dense(2, 3), rows("· ● ●", "· ● ●"))


def test_a_document_may_come_back() -> None:
    expected = rows("● · ●", "· ● ·", "● · ●")
    mask = ch.documents([5, 6, 5])
    assert torch.equal(mask.to_dense(3, 3), expected)
    spans = mask.spans(mask.extent(3, 3))
    assert spans is not None
    assert spans.pieces == 2


def test_one_that_keeps_coming_back_is_not_listed() -> None:
    ids = [0, 1] * 9
    assert ch.documents(ids).spans(Extent(1, 1, 18, 18, CPU)) is None
    alternating = torch.arange(18) % 2
    expected = alternating[:, None] == alternating
    assert torch.equal(ch.documents(ids).to_dense(18, 18), expected)


def test_one_that_keeps_coming_back_among_many_takes_no_memory() -> None:
    tokens = 2000
    ids = torch.where(torch.arange(tokens) % 2 == 0, 0, torch.arange(tokens))
    with LargestTensor() as memory:
        assert ch.documents(ids).spans(Extent(1, 1, tokens, tokens, CPU)) is None
    assert memory.largest <= numbers(4, tokens)


def test_no_tokens_and_an_empty_batch() -> None:
    assert ch.documents([]).to_dense(0, 0).shape == (0, 0)
    assert ch.documents([[], []]).to_dense(0, 0).shape == (2, 1, 0, 0)
    nobody = ch.documents(torch.zeros(0, 3, dtype=torch.int64))
    assert nobody.to_dense(2, 3).shape == (0, 1, 2, 3)
    assert nobody.blocks(2, 3, 2).kinds.shape == (0, 1, 1, 2)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_spans_list_every_token_of_the_document(ids: list[int]) -> None:
    tokens = len(ids)
    spans = ch.documents(ids).spans(Extent(1, 1, tokens, tokens, CPU))
    assert spans is not None
    for token, own in enumerate(ids):
        runs = zip(spans.start[0, token].tolist(), spans.stop[0, token].tolist(), strict=True)
        listed = [key for start, stop in runs for key in range(start, stop)]
        assert listed == [key for key in range(tokens) if ids[key] == own]


@given(st.lists(st.integers(0, 4), max_size=6))
def test_ids_lengths_and_offsets_say_the_same(lengths: list[int]) -> None:
    tokens = sum(lengths)
    ids = [place for place, length in enumerate(lengths) for _ in range(length)]
    offsets = [sum(lengths[:place]) for place in range(len(lengths) + 1)]
    expected = torch.block_diag(*(torch.ones(each, each) for each in lengths)).bool()
    expected = expected.view(tokens, tokens) if tokens else expected.new_zeros(0, 0)
    ways: list[dict[str, Any]] = [
        {"lengths": lengths}, {"lengths": tuple(lengths)}, {"lengths": torch.tensor(lengths).long()},
        {"offsets": offsets}, {"offsets": torch.tensor(offsets).int()},
        {"ids": ids}, {"ids": torch.tensor(ids).long()}, {"ids": [7 - each for each in ids]},
    ]  # fmt: skip
    for given_as in ways:
        assert torch.equal(ch.documents(**given_as).to_dense(tokens, tokens), expected), given_as


@given(LENGTHS, st.sampled_from([*WITHIN]))
def test_texts_packed_together_are_those_packed_apart_with_their_own_lengths(
    pairs: list[tuple[int, int]], name: str
) -> None:
    """A mask within each document is that of the row only where it goes by distances."""
    lengths = [pair[0] for pair in pairs]
    tokens = sum(lengths)
    together = ch.documents(lengths=lengths, mask=WITHIN[name]).to_dense(tokens, tokens)
    apart = ch.documents(lengths=lengths, queries=lengths, mask=WITHIN[name])
    assert torch.equal(together, apart.to_dense(tokens, tokens))
    if name in ("all", "causal", "window", "nothing"):
        within = ch.full() if name == "all" else WITHIN[name]
        assert within is not None
        assert torch.equal(
            together, (ch.documents(lengths=lengths) & within).to_dense(tokens, tokens)
        )


def test_it_says_how_it_was_made() -> None:
    assert ch.documents([1, 2]).describe() == "documents([1, 2])"
    assert ch.documents([[1, 2]]).describe() == "documents(<ids 1 × 2>)"
    assert ch.documents(range(17)).describe() == "documents(<ids 17>)"


def test_it_is_for_its_own_length_only() -> None:
    mask = ch.documents([1, 2, 2])
    assert mask.sizes() == (3, 3)
    assert Expression(mask, Sizes(1, 1, 3, 3), mask.to_dense(3, 3)[None, None])
