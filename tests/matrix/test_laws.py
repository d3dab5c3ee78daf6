"""The matrix of any problem, with whatever mask, bias, cap and sinks, held against all of its weights."""

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.matrix import parts
from clearhead.matrix.links import strongest_links
from clearhead.matrix.roles import summary_with_roles
from clearhead.matrix.rollout import WeightGradients
from clearhead.matrix.totals import totals_of
from tests.attention.kernels.definition import Tensors, defined
from tests.attention.kernels.problems import problems
from tests.matrix.tensors import tensors_of
from tests.matrix.test_reductions import CASES, close
from tests.matrix.test_sweep import SIZES, chunks_of, swept

LENGTHS = (1, 2, 3, 7)
chunked = st.sampled_from([*SIZES, (1 << 21, 64, 128)])
some = settings(max_examples=20)


class Drawn(NamedTuple):
    """A matrix, what it was made of, and its weights by the definition."""

    matrix: AttentionMatrix
    tensors: Tensors
    options: dict[str, Any]
    weights: Tensor

    @property
    def group(self) -> int:
        return self.tensors["query"].shape[1] // self.tensors["key"].shape[1]


def drawn(problem: tuple[Tensors, dict[str, Any]]) -> Drawn:
    tensors, options = problem
    matrix = AttentionMatrix(**tensors, **options)
    return Drawn(matrix, tensors, options, defined(**tensors, **options).weights)


any_problem = problems(LENGTHS, torch.float64).filter(lambda each: len(each[0]["query"]) > 0)
matrices = any_problem.map(drawn)
without_sinks = any_problem.filter(lambda each: "sinks" not in each[0]).map(drawn)


@st.composite
def places(draw: st.DrawFn, length: int) -> Any:
    """Places as an index takes them, and the same as a list."""
    listed = st.lists(st.integers(-length, length - 1), max_size=4)
    ends = st.none() | st.integers(-length - 2, length + 2)
    sliced = st.builds(slice, ends, ends, st.none() | st.sampled_from([1, 2, -1, -3]))
    return draw(
        st.integers(-length, length - 1)
        | listed
        | listed.map(lambda each: torch.tensor(each).long())
        | sliced
    )


def indexed(weights: Tensor, index: list[Any]) -> Tensor:
    """A rectangle, axis by axis, and then without the axes of single numbers."""
    for axis, each in enumerate(index):
        size = weights.shape[axis]
        listed = (
            [each]
            if isinstance(each, int)
            else range(size)[each]
            if isinstance(each, slice)
            else each
        )
        weights = weights.index_select(
            axis, torch.tensor([int(one) % size for one in listed]).long()
        )
    for axis in reversed(range(len(index))):
        if isinstance(index[axis], int):
            weights = weights.squeeze(axis)
    return weights


@given(matrices, st.booleans(), st.sampled_from([1, 60, parts.PORTION]), st.data())
def test_any_part_is_that_of_the_whole(
    each: Drawn, known: bool, portion: int, data: st.DataObject
) -> None:
    """From the logsumexp, or from the rows; at once, or in portions; with `...` for the axes in front."""
    matrix = each.matrix
    index = [data.draw(places(length)) for length in matrix.shape]
    first = data.draw(st.integers(0, 4))
    if known:
        assert matrix.logsumexp.shape == matrix.shape[:3]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "PORTION", portion)
        found = matrix[(..., *index[first:])] if first else matrix[tuple(index)]
    close(found, indexed(each.weights, [slice(None)] * first + index[first:]), matrix)


@given(matrices, st.booleans(), st.sampled_from([1, 60, parts.PORTION]), st.data())
def test_any_pairs_and_diagonals_are_those_of_the_whole(
    each: Drawn, known: bool, portion: int, data: st.DataObject
) -> None:
    matrix = each.matrix
    batch, _, query_len, kv_len = matrix.shape
    count = data.draw(st.integers(0, 5))
    shape = data.draw(st.sampled_from([(count,), (batch, count)]))
    queries, keys = (
        torch.tensor(
            data.draw(st.lists(st.integers(-length, length - 1), min_size=batch * count, max_size=batch * count))
        ).long()[: torch.Size(shape).numel()].view(shape)
        for length in (query_len, kv_len)
    )  # fmt: skip
    if known:
        assert matrix.logsumexp.shape == matrix.shape[:3]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "PORTION", portion)
        found = matrix.at(queries, keys)
        offset = data.draw(st.integers(-query_len - 2, kv_len + 2))
        close(
            matrix.diagonal(offset),
            each.weights.diagonal(max(-query_len, min(offset, kv_len)), 2, 3),
            matrix,
        )
    of_sample = [
        weights[:, row % query_len, column % kv_len]
        for weights, row, column in zip(
            each.weights, queries.expand(batch, count), keys.expand(batch, count), strict=True
        )
    ]
    close(found, torch.stack(of_sample), matrix)


@given(matrices, chunked)
def test_every_weight_comes_by_once(each: Drawn, sizes: tuple[int, int, int]) -> None:
    with chunks_of(*sizes):
        whole = swept(each.matrix.problem)
    assert bool((whole.times == 1).all())
    close(whole.weights, each.weights, each.matrix)


@settings(max_examples=25)
@given(matrices, chunked)
def test_every_statistic_is_that_of_the_whole(each: Drawn, sizes: tuple[int, int, int]) -> None:
    with chunks_of(*sizes):
        for of, (ask, define) in CASES.items():
            found = ask(each.matrix)
            close(found, define(each.weights, each.group), each.matrix, of)
            # Not even −0, which would be printed.
            assert of == "transposed" or not bool(torch.signbit(found).any()), of


@given(matrices, chunked, st.data())
def test_the_largest_are_those_that_a_sort_finds(
    each: Drawn, sizes: tuple[int, int, int], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, each.weights.shape[3]))
    with chunks_of(*sizes):
        found = each.matrix.top_k(k)
    close(found.weights, each.weights.sort(dim=-1, descending=True).values[..., :k], each.matrix)
    assert torch.equal(found.keys == -1, found.weights == 0)
    taken = each.weights.gather(-1, found.keys.clamp(min=0)).masked_fill(found.keys == -1, 0.0)
    close(found.weights, taken, each.matrix)
    keys = found.keys.sort(dim=-1).values
    assert not bool(((keys[..., 1:] == keys[..., :-1]) & (keys[..., 1:] >= 0)).any())


@some
@given(matrices, chunked, st.data())
def test_a_summary_is_the_single_calls(
    each: Drawn, sizes: tuple[int, int, int], data: st.DataObject
) -> None:
    matrix, (_, _, query_len, kv_len) = each.matrix, each.matrix.shape
    k, rows, columns = (data.draw(st.integers(1, most)) for most in (kv_len, query_len, kv_len))
    segments = torch.tensor(
        data.draw(st.lists(st.integers(-1, kv_len - 1), min_size=kv_len, max_size=kv_len))
    )
    with chunks_of(*sizes):
        found = matrix.summary(
            value=each.tensors["value"], top_k=k, pool=(rows, columns), segments=segments
        )
        asked = {
            "context": matrix @ each.tensors["value"], "mass": matrix.mass(segments),
            "pooled": matrix.pool(rows, columns), "logsumexp": matrix.logsumexp,
        } | {name: getattr(matrix, name)() for name in (
            "entropy", "max", "max_score", "distance", "received",
        )}  # fmt: skip
        for of, expected in asked.items():
            close(getattr(found, of), expected, matrix, of)
        largest = matrix.top_k(k)
    assert found.top_k is not None
    assert torch.equal(found.top_k.keys, largest.keys)
    close(found.top_k.weights, largest.weights, matrix)
    close(found.first, each.weights[..., 0], matrix)


@some
@given(matrices, st.data())
def test_products_are_those_of_the_whole(each: Drawn, data: st.DataObject) -> None:
    """With values of key heads, of query heads, or for all; and of the transposed with vectors of queries."""
    matrix, (batch, heads, query_len, kv_len) = each.matrix, each.matrix.shape
    leading = data.draw(st.sampled_from([(), (batch, heads), (batch, heads // each.group)]))
    value = torch.randn(*leading, kv_len, 2, dtype=torch.float64)
    full = value if not leading else value.repeat_interleave(heads // value.shape[1], dim=1)
    close(matrix @ value, each.weights @ full, matrix)
    if not leading:
        close(matrix @ value[:, 0], each.weights @ value[:, 0], matrix)
    vectors = torch.randn(query_len, 2, dtype=torch.float64)
    close(matrix.mT @ vectors, each.weights.mT @ vectors, matrix)


@some
@given(matrices)
def test_a_batch_is_its_samples(each: Drawn) -> None:
    """The summary of each, and the totals of all, merged."""
    whole = summary_with_roles(each.matrix)
    total, *others = [totals_of(whole.sample(place)) for place in range(each.matrix.shape[0])]
    for other in others:
        total = total.merge(other)
    expected = totals_of(whole)
    for name in ("queries", "entropy", "max", "max_score", "distance"):
        torch.testing.assert_close(getattr(total, name), getattr(expected, name))


@some
@given(without_sinks)
def test_weights_from_elsewhere_are_the_matrix_that_they_are_of(each: Drawn) -> None:
    found = AttentionMatrix.from_weights(each.weights)
    assert found.shape == each.matrix.shape
    close(found.dense(), each.weights, each.matrix)
    for ask in ("entropy", "max", "distance"):
        close(getattr(found, ask)(), getattr(each.matrix, ask)(), each.matrix)
    close(found.received(), each.weights.sum(dim=2), each.matrix)  # every head has keys of its own
    unseen = each.weights.sum(dim=-1) == 0
    zero = torch.zeros(unseen.shape, dtype=torch.float64)
    close(found.logsumexp, zero.masked_fill(unseen, -torch.inf), each.matrix)


@some
@given(matrices, st.integers(0, 3), st.data())
def test_norms_are_weights_times_the_norms_of_values(
    each: Drawn, width: int, data: st.DataObject
) -> None:
    """Of the values, or of what an output projection makes of them."""
    matrix = each.matrix
    heads, value_dim = matrix.shape[1], each.tensors["value"].shape[3]
    value = each.tensors["value"].repeat_interleave(each.group, dim=1)
    output = torch.randn(width, heads * value_dim, dtype=torch.float64) if width else None
    if output is not None:
        value = value @ output.view(width, heads, value_dim).permute(1, 2, 0)
    norms, expected = matrix.norms(output), each.weights * value.norm(dim=-1)[:, :, None]
    close(norms.dense(), expected, matrix)
    close(norms.total(), expected.sum(dim=-1), matrix)
    close(norms.received(), expected.sum(dim=-2), matrix)
    close(norms.top_k(1).weights, expected.amax(dim=-1, keepdim=True), matrix)
    close(norms.pool(*matrix.shape[2:]), expected, matrix)
    queries, keys = (
        [data.draw(st.integers(-length, length - 1)) for _ in range(3)]
        for length in matrix.shape[2:]
    )
    close(norms.at(queries, keys), expected[:, :, queries, keys], matrix)
    index = [data.draw(places(length)) for length in matrix.shape]
    close(norms[tuple(index)], indexed(expected, index), matrix)


@some
@given(matrices)
def test_gradients_of_weights_pass_rows_on(each: Drawn) -> None:
    value, query = each.tensors["value"], each.tensors["query"]
    grad = torch.randn(*query.shape[:3], value.shape[3], dtype=torch.float64)
    found = WeightGradients(each.matrix, value, grad)
    expected = grad @ value.repeat_interleave(each.group, dim=1).mT
    rows = torch.randn(query.shape[0], query.shape[2], 2, dtype=torch.float64)
    passed = (each.weights * expected).relu().mean(dim=1).mT @ rows
    close(found.pass_on(rows), passed, each.matrix)


@some
@given(st.integers(1, 7), st.integers(0, 2), st.floats(0, 1), st.integers(1, 3))
def test_rollout_goes_layer_by_layer(tokens: int, head: int, residual: float, count: int) -> None:
    """The rows of all layers are those of the last ones, passed on to the first ones; and each sums to 1."""
    query, key = torch.randn(2, count, 1, 3, tokens, 2, dtype=torch.float64).unbind()
    layers = [AttentionMatrix(*pair, mask=ch.causal()) for pair in zip(query, key, strict=True)]
    options: Any = {"residual": residual, "head": head}
    every = range(tokens)
    found = ch.reading.rollout(layers, output=every, **options)
    close(found.sum(dim=-1), torch.ones(1, tokens, dtype=torch.float64), layers[0])
    product = torch.eye(tokens, dtype=torch.float64)
    for layer in layers:
        product = ch.reading.rollout([layer], output=every, **options) @ product
    close(found, product, layers[0])
    close(ch.reading.rollout(layers, **options), found[:, -1], layers[0])


@some
@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 12), st.data())
def test_the_strongest_links_are_the_largest_weights(
    queries: int, keys: int, count: int, data: st.DataObject
) -> None:
    numbers = st.lists(st.integers(0, 5), min_size=queries * keys, max_size=queries * keys)
    weights = torch.tensor(data.draw(numbers)).view(queries, keys) / 5
    allowed = torch.tensor(data.draw(numbers)).view(queries, keys) > 1
    known = [
        (-float(weights[query, key]), query, key)
        for query in range(queries) for key in range(keys) if allowed[query, key] and weights[query, key] > 0
    ]  # fmt: skip
    found = strongest_links(weights, allowed, count)
    assert [(-link.weight, link.query, link.key) for link in found] == sorted(known)[:count]


@some
@given(matrices.filter(lambda each: each.options.get("mask") is None))
def test_fewer_dimensions_are_the_same_matrix(each: Drawn) -> None:
    bias = each.options["bias"]
    options: dict[str, Any] = each.options | {
        "bias": bias[:1] if isinstance(bias, Tensor) else bias
    }
    tensors: Tensors = {
        name: tensor if name == "sinks" else tensor[:1] for name, tensor in each.tensors.items()
    }
    whole = AttentionMatrix(**tensors, **options)
    fewer: Tensors = {
        name: tensor if name == "sinks" else tensor[0] for name, tensor in tensors.items()
    }
    found = AttentionMatrix(**fewer, **options)
    close(found.dense(), whole.dense()[0], each.matrix)
    for mine, theirs in zip(tensors_of(found.summary()), tensors_of(whole.summary()), strict=True):
        close(mine, theirs[0], each.matrix)
