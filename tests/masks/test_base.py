"""Properties that masks of all kinds have in common: the rectangles, the sizes, the drawings."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead._common.kinds import ANSWERS
from clearhead.masks.spans import Extent
from tests.masks.drawn import rows
from tests.masks.expressions import Expression, expressions
from tests.memory import held_bytes

CPU = torch.device("cpu")


@settings(max_examples=30)
@given(expressions, st.data())
def test_a_rectangle_is_a_slice_of_the_whole(expression: Expression, data: st.DataObject) -> None:
    sizes = expression.sizes
    queries, keys = (
        slice(*sorted(data.draw(st.tuples(st.integers(0, length), st.integers(0, length)))))
        for length in (sizes.query_len, sizes.kv_len)
    )
    part = expression.mask.block(queries, keys, Extent(*sizes, CPU))
    assert part.ndim == 4
    assert part.dtype == torch.bool
    expected = expression.expected[:, :, queries, keys]
    assert torch.equal(part.expand(expected.shape), expected)


@settings(max_examples=25)
@given(expressions.filter(lambda e: min(e.sizes) > 0), st.data())
def test_chosen_pairs(expression: Expression, data: st.DataObject) -> None:
    """Any pairs, other ones for each sample and head, not only rectangles."""
    batch, heads, query_len, kv_len = expression.sizes
    count = 4
    leading = [data.draw(st.sampled_from([1, size])) for size in (batch, heads)]
    shape, amount = (*leading, count, 1), leading[0] * leading[1] * count
    numbers = st.lists(st.integers(0, 10**6), min_size=amount, max_size=amount)
    query, key = (
        torch.tensor(data.draw(numbers)).view(shape) % length for length in (query_len, kv_len)
    )
    seen = expression.mask.visible(query, key, Extent(*expression.sizes, CPU)).expand(
        batch, heads, count, 1
    )
    samples = torch.arange(batch).view(-1, 1, 1, 1)
    head = torch.arange(heads).view(1, -1, 1, 1)
    assert torch.equal(seen, expression.expected[samples, head, query, key])


@settings(max_examples=30)
@given(expressions)
def test_the_tensor_has_the_dimensions_that_differ(expression: Expression) -> None:
    mask, sizes = expression.mask, expression.sizes
    dense = mask.to_dense(sizes.query_len, sizes.kv_len)
    leading = () if mask.batch is None and mask.heads is None else mask.leading
    assert dense.shape == (*leading, sizes.query_len, sizes.kv_len)
    assert dense.is_contiguous()
    assert mask.batch in (None, sizes.batch)
    assert mask.heads in (None, sizes.heads)


@settings(max_examples=30)
@given(expressions)
def test_a_drawing_says_every_pair(expression: Expression) -> None:
    """Row by row; samples and heads that differ come one after the other, each under its name."""
    mask, sizes = expression.mask, expression.sizes
    batch, heads = mask.leading
    parts = []
    for sample in range(batch):
        for head in range(heads):
            rows = expression.expected[sample, head].tolist()
            parts.append("\n".join(" ".join("·●"[seen] for seen in row) for row in rows))
            if mask.batch is not None or mask.heads is not None:
                title = f"batch {sample}" + (f", head {head}" if heads > 1 else "")
                parts[-1] = f"{title}\n{parts[-1]}"
    assert mask.draw(sizes.query_len, sizes.kv_len) == "\n".join(parts)


def test_a_small_mask_is_drawn_by_its_repr() -> None:
    mask = ch.causal() & ch.dense(rows("● ●", "· ●"))
    assert repr(mask) == "causal() & dense(<1 × 1 × 2 × 2>)\n● ·\n· ●"
    assert repr(~ch.causal()).splitlines()[1] == "· ● ● ● ● ●"


@pytest.mark.parametrize(
    "mask",
    [
        ch.padding([7]),
        ch.dense(torch.ones(2, 2).bool()) & ch.documents([1, 2, 3]),
        ch.dense(torch.ones(3, 2, 2, 2).bool()),
        ch.padding(torch.ones(1, 13).bool()),
        ch.dense(torch.ones(2, 2, device="meta").bool()),
        ch.padding(torch.ones(1, 2, device="meta").bool()),
        ch.padding(torch.ones(2, device="meta").long()),
        ch.documents(torch.ones(2, device="meta").long()),
        ch.causal(offset=torch.ones(2, device="meta").long()) & ch.full(),
    ],
    ids=ch.Mask.describe,
)
def test_repr_never_fails(mask: ch.Mask) -> None:
    """Too long, too many, of sizes that only the query will tell, or without numbers."""
    assert repr(mask) == mask.describe()


def test_a_mask_stays_where_its_tensors_are() -> None:
    tied = ch.causal() & ~ch.dense(torch.ones(2, 2, device="meta").bool())
    assert tied.device == torch.device("meta")
    assert tied.to_dense(2, 2).is_meta
    free = ch.causal(offset=[1, 2]) & ch.padding([1, 2])
    assert free.device is None
    assert free.to_dense(2, 2).device == CPU
    assert free.to_dense(2, 2, device="meta").is_meta
    assert ch.dense(rows("●")).to_dense(1, 1, device="meta").is_meta


def test_a_mask_is_neither_true_nor_false() -> None:
    with pytest.raises(ch.errors.ArgumentTypeError, match="neither true nor false"):
        bool(ch.full())


LONG = 100_000

DESCRIPTIONS: dict[str, tuple[Callable[[], ch.Mask], int]] = {
    "window": (lambda: ch.sliding_window(left=4096), 0),
    "lengths": (lambda: ch.padding([LONG, 5]), 16),
    "valid": (lambda: ch.padding(torch.rand(LONG) > 0.5), LONG),
    "documents": (lambda: ch.documents(torch.arange(LONG) // 1000), 8 * LONG),
    "offsets": (lambda: ch.causal(offset=[1, 2, 3]), 24),
}


@pytest.mark.parametrize(("make", "allowed"), DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_a_description_holds_no_more_than_its_tokens(
    make: Callable[[], ch.Mask], allowed: int
) -> None:
    mask = make()
    mask.describe()
    # What is worked out and kept is a few numbers per row of the batch.
    assert held_bytes(mask) <= allowed + 64
    assert held_bytes(~(mask & ch.causal())) <= allowed + 64


def test_nothing_to_draw() -> None:
    assert ch.causal().draw(0, 3) == ""
    assert ch.causal().draw(2, 0) == "\n"
    assert ch.padding([]).draw(2, 2) == ""


VALID = torch.arange(6) < torch.tensor([5, 3, 4])[:, None]
MADE: dict[str, tuple[Callable[[Tensor], ch.Mask], Tensor]] = {
    "valid": (ch.padding, VALID),
    "lengths": (ch.padding, VALID.sum(1)),
    "lengths on the left": (lambda lengths: ch.padding(lengths, side="left"), VALID.sum(1)),
    "prefix": (ch.prefix, VALID.sum(1)),
    "offset": (lambda offset: ch.causal(offset=offset), VALID.sum(1)),
    "window": (lambda offset: ch.sliding_window(left=2, right=0, offset=offset), VALID.sum(1)),
    "documents": (ch.documents, VALID.long()),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_mask_is_made_inside_vmap(name: str) -> None:
    make, given = MADE[name]
    query, key, value = torch.randn(3, 3, 4, 6, 8).unbind()

    def run(query: Tensor, key: Tensor, value: Tensor, each: Tensor) -> Tensor:
        return ch.attend(query, key, value, mask=make(each))

    mapped = torch.vmap(run)(query, key, value, given)
    alone = [run(*each) for each in zip(query, key, value, given, strict=True)]
    torch.testing.assert_close(mapped, torch.stack(alone))


@pytest.mark.parametrize("make", [ch.padding, ch.prefix])
@pytest.mark.parametrize("given", [[5, 3, 4], torch.tensor([5, 3, 4])], ids=["list", "tensor"])
def test_a_mask_is_made_inside_one_graph(make: Callable[..., ch.Mask], given: object) -> None:
    inputs = torch.randn(3, 3, 4, 6, 8).unbind()

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return ch.attend(query, key, value, mask=make(given))

    torch.compiler.reset()
    found = torch.compile(run, fullgraph=True, backend="eager")(*inputs)
    torch.testing.assert_close(found, run(*inputs))


@pytest.mark.parametrize("name", [*MADE, "apart"])
def test_a_copy_and_a_pickle_of_a_mask_that_was_used_are_those_of_a_new_one(name: str) -> None:
    if name == "apart":
        mask = ch.documents(lengths=[2, 4], queries=torch.tensor([3, 3]), mask=ch.causal())
    else:
        make, given = MADE[name]
        mask = make(given)
    fresh = pickle.dumps(mask)
    query, key, value = torch.randn(3, 3, 2, 6, 4).unbind()
    for each in (mask, mask & ch.full()):
        for _ in range(3):
            ch.attend(query, key, value, mask=each)
    mask.blocks(6, 6, 2)
    if name != "valid":  # whose runs are kept
        assert len(pickle.dumps(mask)) == len(fresh)
    for again in (pickle.loads(pickle.dumps(mask)), copy.deepcopy(mask), copy.copy(mask)):
        assert ANSWERS not in vars(again)
        assert torch.equal(again.to_dense(6, 6), mask.to_dense(6, 6))
