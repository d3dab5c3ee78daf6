"""The laws that every rung shows, and the loops that are one product."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead import stages
from clearhead.ladder import (
    context_by_loops,
    merge_heads,
    naive_softmax,
    scores_by_loops,
    split_heads,
    weights_by_sum,
)

lengths = st.integers(0, 5)
few = settings(max_examples=20)


@few
@given(lengths, lengths, st.integers(0, 7))
def test_loops_are_one_product_and_have_its_gradients(
    query_len: int, kv_len: int, dim: int
) -> None:
    query, key, value = (
        torch.randn(*shape, dtype=torch.float64).requires_grad_()
        for shape in ((query_len, dim), (kv_len, dim), (kv_len, 3))
    )
    scores, expected = scores_by_loops(query, key), stages.scores(query, key)
    torch.testing.assert_close(scores, expected)
    weights = torch.rand(query_len, kv_len, dtype=torch.float64).requires_grad_()
    context, product = context_by_loops(weights, value), stages.context(weights, value)
    torch.testing.assert_close(context, product)
    if query_len and kv_len and dim:
        for found, whole, leaves in (
            (scores, expected, (query, key)),
            (context, product, (weights, value)),
        ):
            grads = torch.autograd.grad(found.sin().sum(), leaves)
            torch.testing.assert_close(grads, torch.autograd.grad(whole.sin().sum(), leaves))


@few
@given(lengths, st.integers(1, 7), st.floats(-40, 40))
def test_shares_of_a_row_sum_to_one_and_forget_what_all_have(
    rows: int, keys: int, shift: float
) -> None:
    scores = torch.randn(2, rows, keys, dtype=torch.float64)
    found = naive_softmax(scores)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, rows, dtype=torch.float64))
    torch.testing.assert_close(naive_softmax(scores + shift), found)
    torch.testing.assert_close(stages.weights(scores + shift), found)
    torch.testing.assert_close(weights_by_sum(scores.exp() * 3), found)


@few
@given(st.lists(st.integers(1, 3), max_size=2), lengths, st.integers(1, 4), st.integers(1, 4))
def test_splitting_and_merging_are_opposites(
    leading: list[int], tokens: int, heads: int, dim: int
) -> None:
    x = torch.randn(*leading, tokens, heads * dim)
    found = split_heads(x, heads)
    assert found.shape == (*leading, heads, tokens, dim)
    assert torch.equal(merge_heads(found), x)
    for head in range(heads):
        assert torch.equal(found[..., head, :, :], x[..., head * dim : (head + 1) * dim])
