"""Blocks: which are visited, what they give, forward and backward, and what is never allocated."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import clearhead as ch
from clearhead import stages
from clearhead.attention.kernels import _blockwise_work, blockwise, eager
from clearhead.attention.problem import Problem, make_problem
from clearhead.masks import tiles
from clearhead.masks.spans import Extent
from tests.attention.kernels.definition import Tensors, assert_agrees, close, draw, flat, outcome
from tests.attention.kernels.problems import problems
from tests.attention.kernels.test_agreement import BIASES, MASKS
from tests.attention.kernels.test_hidden import assert_stays_hidden, poisoned
from tests.memory import LargestTensor
from tests.turns import in_turn

BATCH, HEADS = 3, 6
SMALL_SIZES = {"ROWS": 1, "LEAST_QUERIES": 4, "BUFFER": 1, "SMALL": 1, "WORTH_CUTTING": 0}

ways = pytest.mark.parametrize("parts", [False, True], ids=["whole", "in parts"])


def sizes_for(parts: bool, patch: pytest.MonkeyPatch) -> None:
    """Take small problems apart as only large ones are."""
    for name, size in SMALL_SIZES.items() if parts else ():
        patch.setattr(_blockwise_work, name, size)
    if parts:
        patch.setattr(tiles, "GAP", 0)


@pytest.fixture
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    sizes_for(request.param, monkeypatch)
    return request.param


indirect_ways = pytest.mark.parametrize(
    "parts", [False, True], ids=["whole", "in parts"], indirect=True
)


# Every mask with some tokens, and with few: both of them in both ways, in turn.
WAYS = [False, True, True, False]


@pytest.mark.parametrize(
    ("query_len", "more"), in_turn([63, 64, 65, 127, 128, 129], [-61, 0, 7, 0])
)
def test_around_the_edges_of_blocks(query_len: int, more: int) -> None:
    tensors = draw(1, 2, 2, query_len, query_len + more, 5, 3)
    for mask in (None, ch.causal(), ch.causal() & ch.sliding_window(left=17)):
        assert_agrees("blockwise", tensors, mask=mask, softcap=2.0)


TRAINED = [name for name, make in BIASES.items() if isinstance(make(), Tensor)]
TWO_RUNS = ch.causal() & (ch.sliding_window(left=3) | ch.prefix(2))
SOME_MASKS = [None, ch.causal(), ch.padding([23, 5, 0]), TWO_RUNS]


@pytest.mark.parametrize("name", TRAINED)
@indirect_ways
def test_trained_biases(parts: bool, name: str) -> None:
    tensors = draw(BATCH, HEADS, 2, 19, 23) | {"bias": BIASES[name]()}
    first = TRAINED.index(name) + 2 * parts
    assert_agrees("blockwise", tensors, mask=SOME_MASKS[first % 4])
    tensors["sinks"] = torch.randn(HEADS)
    assert_agrees("blockwise", tensors, mask=SOME_MASKS[(first + 1) % 4], softcap=1.3)


def test_one_column_for_runs_of_different_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of a single key beside a longer one, and a bias that is the same for every key."""
    monkeypatch.setattr(tiles, "GAP", 0)
    mask = ch.dense(torch.tensor([i < 5 or i == 11 for i in range(23)]).expand(19, 23))
    for shape in ((19, 1), (1, 1), (1, 23)):
        tensors = draw(BATCH, HEADS, 2, 19, 23) | {"bias": torch.randn(*shape)}
        assert_agrees("blockwise", tensors, mask=mask)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda numbers: ch.alibi(slopes=numbers), (HEADS,)),
        (ch.relative, (HEADS, 11)),
        (ch.relative, (1, 3)),
        (ch.relative, (HEADS, 101)),
    ],
    ids=["alibi", "relative", "relative of all heads", "relative beyond the text"],
)
@indirect_ways
def test_trained_numbers_of_a_bias(
    parts: bool, make: Callable[[Tensor], ch.Bias], shape: tuple[int, ...]
) -> None:
    tensors = draw(BATCH, HEADS, 2, 19, 23, dtype=torch.float64)
    tensors["numbers"] = torch.rand(shape)
    grad = torch.randn(BATCH, HEADS, 19, 5)

    def by(kernel: str) -> Tensors:
        def attended(numbers: Tensor, **given: Any) -> Tensor:
            bias = make(numbers)
            return ch.attend(**given, bias=bias, mask=TWO_RUNS, softcap=2.0, kernel=kernel)

        return outcome(attended, tensors, grad)

    ours, theirs = by("blockwise"), by("eager")
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("mask", [None, ch.causal(), ch.padding([31, 7, 0]), TWO_RUNS])
@indirect_ways
def test_sinks(parts: bool, mask: ch.Mask | None) -> None:
    """A sink that is next to nothing, one that takes nearly all, and some between."""
    sinks = torch.tensor([-torch.inf, -100.0, 0.0, 1.0, 5.0, 100.0])
    tensors = draw(BATCH, HEADS, 3, 31) | {"sinks": sinks}
    assert_agrees("blockwise", tensors, mask=mask, softcap=0.7 if parts else None)


@pytest.mark.parametrize(
    ("number", "mask"),
    [
        (torch.nan, None),
        (torch.nan, ch.padding(0)),
        (torch.inf, ch.causal()),
        (-torch.inf, None),
        (-torch.inf, ch.causal()),
    ],
)
@indirect_ways
def test_a_bias_that_is_no_number(parts: bool, number: float, mask: ch.Mask | None) -> None:
    """It shows to those who see it, and its query passes nothing on."""
    bias = torch.randn(19, 23)
    bias[7, 3] = bias[2, 22] = number
    assert_agrees("blockwise", draw(BATCH, HEADS, 2, 19, 23), mask=mask, bias=bias)
    assert_agrees("blockwise", draw(BATCH, HEADS, 2, 19, 23), mask=mask, bias=bias, softcap=1.0)


@ways
@settings(max_examples=25)
@given(case=poisoned())
def test_anything_not_finite_stays_hidden(parts: bool, case: tuple[Tensors, ch.Mask]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        sizes_for(parts, patch)
        assert_stays_hidden("blockwise", *case)


@ways
@settings(max_examples=30)
@given(problem=problems())
def test_any_problem(parts: bool, problem: tuple[Tensors, dict[str, Any]]) -> None:
    tensors, options = problem
    with pytest.MonkeyPatch.context() as patch:
        sizes_for(parts, patch)
        assert_agrees("blockwise", tensors, **options)


def scores_of(posed: Problem) -> int:
    """The number of scores that are computed for a head."""
    shapes = [tile.shape for tile in _blockwise_work.work_of(posed).tiles]
    return sum(queries * keys for queries, keys in shapes)


@pytest.mark.parametrize(
    ("mask", "share"),
    [
        (ch.causal(), 0.52),
        (ch.causal() & ch.sliding_window(left=255), 320 / 4096),
        (TWO_RUNS, 80 / 4096),
        (ch.causal() & ch.documents([i // 500 for i in range(4096)]), 0.08),
        (ch.padding(1000), 1000 / 4096),
        (ch.padding(torch.arange(4096) % 1000 < 9), 45 / 4096),
    ],
    ids=lambda each: each.describe() if isinstance(each, ch.Mask) else "",
)
def test_what_nobody_sees_is_not_visited(mask: ch.Mask, share: float) -> None:
    posed = make_problem(*draw(1, 8, 8, 4096, head_dim=1).values(), mask=mask)
    assert scores_of(posed) <= share * 4096 * 4096


def test_small_samples_share_a_block() -> None:
    posed = make_problem(*draw(8, 2, 2, 19).values(), mask=ch.padding(list(range(8, 16))))
    assert [tile.rows for tile in _blockwise_work.work_of(posed).tiles] == [slice(0, 8)]


def dropped(posed: Problem, seed: int) -> Tensor:
    """The weights that dropout leaves: the context of an identity."""
    identity = torch.eye(posed.kv_len, dtype=posed.value.dtype)
    identity = identity.expand(*posed.value.shape[:2], -1, -1)
    torch.manual_seed(seed)
    return blockwise.attend(posed.replace(value=identity))


@pytest.mark.parametrize(("mask", "dropout"), in_turn(SOME_MASKS, [0.5, 0.1, 0.9]))
@indirect_ways
def test_dropout_is_the_same_in_both_passes(
    parts: bool, mask: ch.Mask | None, dropout: float
) -> None:
    tensors = draw(BATCH, HEADS, 2, 19, 23, dtype=torch.float64)
    tensors |= {"sinks": torch.randn(HEADS).double(), "bias": torch.randn(19, 23).double()}
    options: dict[str, Any] = {"mask": mask, "softcap": 1.3}
    left = dropped(make_problem(**tensors, **options, dropout=dropout), seed=5) != 0
    factors = left.double() / (1 - dropout)
    visible = None if mask is None else mask.to_dense(19, 23)

    def attended(**given: Any) -> Tensor:
        torch.manual_seed(5)
        return ch.attend(**given, **options, dropout=dropout, kernel="blockwise")

    def by_the_pattern(query: Tensor, key: Tensor, value: Tensor, **more: Any) -> Tensor:
        key, value = (stages.repeat_kv_heads(each, HEADS) for each in (key, value))
        weights = stages.compute(
            query, key, value, scale=5**-0.5, visible=visible, softcap=1.3, **more
        ).weights
        return (weights * factors) @ value

    grad = torch.randn(BATCH, HEADS, 19, 5)
    actual, truth = (outcome(way, tensors, grad) for way in (attended, by_the_pattern))
    close(flat(actual), flat(truth), flat(truth), "dropout")


@indirect_ways
def test_gradients_with_dropout_are_those_of_differences(parts: bool) -> None:
    tensors = draw(1, 2, 1, 5, 6, 2, 1, dtype=torch.float64)
    tensors |= {"bias": torch.randn(5, 6).double(), "sinks": torch.randn(2).double()}

    def attended(*given: Tensor) -> Tensor:
        torch.manual_seed(3)
        options: Tensors = dict(zip(tensors, given, strict=True))
        return ch.attend(**options, mask=ch.causal(), softcap=2.0, dropout=0.4, kernel="blockwise")

    leaves = [tensor.requires_grad_() for tensor in tensors.values()]
    assert torch.autograd.gradcheck(attended, leaves)


@pytest.mark.parametrize("dropout", [1e-9, 0.1, 0.5, 0.999])
@indirect_ways
def test_survivors_are_scaled(parts: bool, dropout: float) -> None:
    posed = make_problem(**draw(2, 4, 2, 41, 43, dtype=torch.float64), dropout=dropout)
    weights = dropped(posed.replace(dropout=None), seed=1)
    left = dropped(posed, seed=1)
    kept = left != 0
    torch.testing.assert_close(left[kept], weights[kept] / (1 - dropout))
    # Five standard deviations of a number of independent throws.
    count, expected = kept.numel(), kept.numel() * (1 - dropout)
    assert abs(int(kept.sum()) - expected) <= 5 * (count * dropout * (1 - dropout)) ** 0.5 + 1


@indirect_ways
def test_patterns_differ_between_parts_and_calls(parts: bool) -> None:
    posed = make_problem(**draw(2, 4, 2, 41, 43), dropout=0.5)
    first, again, other = (dropped(posed, seed) != 0 for seed in (1, 1, 2))
    assert torch.equal(first, again)
    rows = torch.cat([first, other]).flatten(0, 2)
    assert len(rows.unique(dim=0)) == len(rows)


def test_nothing_is_drawn_without_dropout() -> None:
    posed = make_problem(**draw(1, 2, 2, 19), mask=ch.causal(), dropout=0.5)
    before = torch.get_rng_state()
    blockwise.how(posed)
    blockwise.attend(posed.replace(dropout=None))
    blockwise.logsumexp(posed)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "heads", "parts"),
    in_turn(MASKS, [6, 1], WAYS),
    indirect=["parts"],
)
def test_logsumexp_and_its_gradient(parts: bool, name: str, heads: int) -> None:
    given = draw(BATCH, HEADS, heads, 19, 23, dtype=torch.float64)
    bias = torch.randn(19, 23).double().requires_grad_()
    options: dict[str, Any] = {"mask": MASKS[name](19, 23), "bias": bias, "softcap": 3.0}
    posed = make_problem(**given, **options, sinks=torch.ones(HEADS), dropout=0.5)
    leaves = [t.requires_grad_() for t in (posed.query, posed.key)] + [bias]
    ours, theirs = blockwise.logsumexp(posed), eager.logsumexp(posed)
    torch.testing.assert_close(ours, theirs)
    toward = torch.randn_like(theirs).masked_fill(theirs == -torch.inf, 0.0)
    mine, other = (
        torch.autograd.grad((total.nan_to_num(neginf=0.0) * toward).sum(), leaves)
        for total in (ours, theirs)
    )
    torch.testing.assert_close(mine, other)


def test_logsumexp_of_what_is_not_finite() -> None:
    given = draw(2, 4, 2, 19)
    given["key"][0, 0, 7, 1] = torch.nan
    given["query"][1, 3, 5, 0] = torch.inf
    posed = make_problem(**given, mask=ch.sliding_window(left=2, right=0))
    torch.testing.assert_close(blockwise.logsumexp(posed), eager.logsumexp(posed), equal_nan=True)


def test_a_bias_changed_between_the_passes_is_noticed() -> None:
    bias = torch.randn(7, 7)
    tensors = {name: tensor.requires_grad_() for name, tensor in draw(1, 2, 2, 7).items()}
    result = ch.attend(**tensors, bias=bias, kernel="blockwise")
    bias.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_refusals() -> None:
    tensors = draw(1, 2, 2, 7)
    assert blockwise.refusals(make_problem(**tensors, softcap=1.0, dropout=0.5)) == []
    unread = (
        "tensors that cannot be read: blocks are found by reading the mask, which "
        "torch.compile, torch.func and the meta device do not allow"
    )
    elsewhere = {name: tensor.to("meta") for name, tensor in tensors.items()}
    assert blockwise.refusals(make_problem(**elsewhere)) == [unread]
    found = []
    torch.func.grad(
        lambda query: (
            found.extend(blockwise.refusals(make_problem(query, tensors["key"], tensors["value"])))
            or query.sum()
        )
    )(tensors["query"])
    assert found == [unread]
    assert blockwise.refusals(
        make_problem(**tensors, bias=Learned(torch.ones(1, requires_grad=True)))
    ) == [
        "bias that is trained: this kernel has gradients for a tensor, for alibi and for relative; "
        "got Learned"
    ]
    fixed = Learned(torch.ones(1))
    assert blockwise.refusals(make_problem(**tensors, bias=fixed)) == []
    assert_agrees("blockwise", tensors, bias=fixed)


class Learned(ch.Bias):
    """A bias of somebody else: the same number for every pair."""

    def __init__(self, number: Tensor) -> None:
        self.number = number

    def at(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        return self.number.view(1, 1, 1, 1)

    def describe(self) -> str:
        return "learned"

    @property
    def requires_grad(self) -> bool:
        return self.number.requires_grad


LONG: dict[str, Callable[[int], dict[str, Any]]] = {
    "window": lambda n: {"mask": ch.sliding_window(left=100, right=0)},
    "softcap": lambda n: {"mask": ch.causal(), "softcap": 2.0},
    "dropout": lambda n: {"mask": ch.causal() & ch.padding([n, n // 3]), "dropout": 0.5},
    "alibi": lambda n: {"bias": ch.alibi(2)},
    "documents": lambda n: {"mask": ch.documents([i // 160 for i in range(n)])},
    "a bias for each key": lambda n: {"bias": torch.randn(1, n, requires_grad=True)},
}


@pytest.mark.parametrize("name", LONG)
def test_no_tensor_of_queries_by_keys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while it runs, and not between the passes; a tensor of scores has a bound of its own."""
    monkeypatch.setattr(_blockwise_work, "BUFFER", 1 << 16)
    tokens = 701
    tensors = draw(2, 2, 1, tokens, head_dim=4) | {"sinks": torch.randn(2)}
    leaves = {key: tensor.requires_grad_() for key, tensor in tensors.items()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    posed = make_problem(**leaves, **LONG[name](tokens))
    with LargestTensor() as seen:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            result = blockwise.attend(posed)
        result.sum().backward()
    bound = max(4 * _blockwise_work.BUFFER, 4 * _blockwise_work.ROWS * tokens)
    assert seen.largest <= bound
    assert sum(kept.values()) <= 4 * tokens * 2 * 2 * (4 * 4 + 8)


@pytest.mark.parametrize("size", [1e3, 1e18])
def test_large_scores(size: float) -> None:
    tensors = draw(2, 4, 2, 37)
    tensors["query"] *= size
    assert_agrees("blockwise", tensors, mask=ch.causal())
