"""Empty, partial and full blocks: against the tensor, and without ever forming it."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead.masks import blocks as blocks_module
from tests.masks.expressions import BLOCKS, Expression, expressions
from tests.memory import LargestTensor, numbers


def counted(dense: Tensor, query_block: int, kv_block: int) -> tuple[Tensor, Tensor]:
    """The kinds, and the share of its pairs that each block shows, from the tensor of the mask."""
    starts = [range(0, dense.shape[2], query_block), range(0, dense.shape[3], kv_block)]
    share = torch.zeros(*dense.shape[:2], len(starts[0]), len(starts[1]))
    for row, query in enumerate(starts[0]):
        for column, key in enumerate(starts[1]):
            part = dense[:, :, query : query + query_block, key : key + kv_block].flatten(2)
            share[:, :, row, column] = part.sum(-1) / part.shape[-1]
    return ((share > 0).int() + (share == 1)).to(torch.uint8), share


def assert_agrees(expression: Expression, block: int | tuple[int, int]) -> None:
    mask, sizes, expected = expression
    query_block, kv_block = block if isinstance(block, tuple) else (block, block)
    found = mask.blocks(sizes.query_len, sizes.kv_len, block)
    kinds, share = counted(expected, query_block, kv_block)
    leading = () if mask.batch is None and mask.heads is None else mask.leading
    assert found.kinds.shape == (*leading, *kinds.shape[2:])
    assert torch.equal(found.kinds.expand(kinds.shape), kinds)
    assert found.share.shape == found.kinds.shape
    assert torch.equal(found.share.expand(share.shape), share)
    assert torch.equal(found.empty, found.kinds == 0)
    assert torch.equal(found.partial, found.kinds == 1)
    assert torch.equal(found.full, found.kinds == 2)
    assert found.block == (query_block, kv_block)
    assert (found.query_len, found.kv_len) == (sizes.query_len, sizes.kv_len)


@given(expressions, BLOCKS)
def test_blocks_agree_with_the_tensor(expression: Expression, block: int | tuple[int, int]) -> None:
    assert_agrees(expression, block)


@settings(max_examples=25)
@given(expressions, BLOCKS, st.sampled_from([1, 3, 1 << 22]))
def test_so_they_do_when_read_row_by_row(
    expression: Expression, block: int | tuple[int, int], portion: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "_count_from_spans", lambda *args: None)
        patch.setattr(blocks_module, "PORTION", portion)
        assert_agrees(expression, block)


@pytest.mark.parametrize("block", [1, 2, 13, 14, (5, 3), (100, 1), [4, 4]])
def test_lengths_and_blocks_of_any_size(block: int | tuple[int, int]) -> None:
    query_block, kv_block = (block, block) if isinstance(block, int) else block
    for query_len, kv_len in product((0, 1, 13), repeat=2):
        for mask in (ch.causal(), ch.full(), ~ch.full(), ch.sliding_window(left=2, right=1)):
            dense = mask.to_dense(query_len, kv_len)[None, None]
            found = mask.blocks(query_len, kv_len, block).kinds
            assert torch.equal(found, counted(dense, query_block, kv_block)[0][0, 0]), mask


LONG = 100_000
BLOCK = 512
EVERYTHING_AT_ONCE: dict[str, Callable[[], ch.Mask]] = {
    "lengths": lambda: ch.causal() & ch.padding([LONG, 77]),
    "returning documents": lambda: ch.documents((torch.arange(LONG) // 25_000) % 2),
    "all of them": lambda: (
        (ch.causal() & ch.sliding_window(left=4096) | ch.prefix(100))
        & ~ch.documents(torch.arange(LONG) // 777)
    ),
}


@pytest.mark.parametrize("make", EVERYTHING_AT_ONCE.values(), ids=EVERYTHING_AT_ONCE)
def test_memory_grows_with_tokens_and_blocks(
    make: Callable[[], ch.Mask], monkeypatch: pytest.MonkeyPatch
) -> None:
    # All pairs would be read for minutes.
    monkeypatch.setattr(blocks_module, "_count_pair_by_pair", None)
    mask = make()
    batch = mask.leading[0]
    per_side = -(-LONG // BLOCK)
    with LargestTensor() as memory:
        found = mask.blocks(LONG, LONG, BLOCK)
    assert found.kinds.shape[-2:] == (per_side, per_side)
    allowed = numbers(batch, 8 * LONG + 2 * per_side**2)
    assert memory.largest <= allowed < LONG**2 / 100


@pytest.mark.parametrize(
    "make",
    [
        lambda tokens: ch.documents(torch.arange(tokens) % 2),
        lambda tokens: ch.dense(torch.ones(tokens, 1, dtype=torch.bool).expand(-1, tokens)),
    ],
    ids=["ids that keep coming back", "a tensor"],
)
def test_what_has_no_runs_is_read_in_portions(
    make: Callable[[int], ch.Mask], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where a single block is the whole matrix."""
    monkeypatch.setattr(blocks_module, "PORTION", 10_000)
    tokens = 1500
    mask = make(tokens)
    with LargestTensor() as memory:
        mask.blocks(tokens, tokens, tokens)
    assert memory.largest <= numbers(10_000)


def test_known_blocks() -> None:
    window = ch.sliding_window(left=2, right=2)
    assert window.blocks(6, 6, 2).kinds.tolist() == [[2, 1, 0], [1, 2, 1], [0, 1, 2]]
    assert ch.causal().blocks(5, 5, 2).kinds.tolist() == [[1, 0, 0], [2, 1, 0], [2, 2, 2]]
    assert ch.padding([1, 4]).blocks(2, 4, 2).kinds.tolist() == [[[[1, 0]]], [[[2, 2]]]]


def test_a_block_map_is_drawn_while_it_fits() -> None:
    assert repr(ch.causal().blocks(5, 5, (2, 3))) == (
        "3 × 2 blocks of 2 × 3: 3 full, 2 partial, 1 empty\n◪ ·\n■ ◪\n■ ■"
    )
    long = repr(ch.causal().blocks(130, 130, 2))
    assert long == "65 × 65 blocks of 2 × 2: 2080 full, 65 partial, 2080 empty"
    assert repr(ch.full().blocks(2, 2, 2)).endswith("1 full, 0 partial, 0 empty\n■")
    several = repr(ch.padding([1, 4]).blocks(2, 4, 2))
    assert several == "2 × 1 × 1 × 2 blocks of 2 × 2: 2 full, 1 partial, 1 empty"
    assert repr(ch.full().blocks(0, 4, 2)) == "0 × 2 blocks of 2 × 2: 0 full, 0 partial, 0 empty"
