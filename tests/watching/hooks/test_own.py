"""The kernels of this package tell of their problems."""

import torch

import clearhead as ch
from clearhead.attention import planning
from clearhead.watching.hooks import own, sdpa
from tests.watching.hooks.recording import recorded


def test_a_problem_is_told_of_as_it_is() -> None:
    query, key = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4)
    with recorded(own) as problems:
        ch.attend(query, key, key, mask=ch.causal(), softcap=2.0)
    (problem,) = problems
    assert problem.query is query
    assert problem.softcap == 2.0
    assert planning.observers == []


def test_the_calls_that_a_kernel_makes_are_the_same_attention() -> None:
    query = torch.randn(1, 2, 5, 4)
    with recorded(own, sdpa) as problems:
        ch.attend(query, query, query, mask=ch.causal() & ch.padding([3]))
        torch.nn.functional.scaled_dot_product_attention(query, query, query)
    assert [problem.mask is None for problem in problems] == [False, True]
