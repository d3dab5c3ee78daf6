from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

import clearhead as ch
from clearhead.masks.spans import Extent
from tests.masks.drawn import docstring_drawings
from tests.masks.test_each_document import LENGTHS, WITHIN
from tests.memory import LargestTensor, numbers

CPU = torch.device("cpu")


def test_the_docstring_is_true() -> None:
    apart = ch.documents(lengths=[2, 3], queries=[1, 2])
    in_each = ch.documents(lengths=[2, 3], queries=[1, 2], mask=ch.causal())
    assert docstring_drawings(ch.documents) == [
        ch.documents([7, 7, 9, 9, 9]).draw(5, 5), apart.draw(3, 5), in_each.draw(3, 5)
    ]  # fmt: skip


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
