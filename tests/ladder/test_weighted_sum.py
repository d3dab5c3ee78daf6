import pytest
import torch

from clearhead import stages
from clearhead.ladder import context_by_loops
from tests.ladder.refusal import refused


@pytest.mark.parametrize(("query_len", "kv_len"), [(3, 5), (1, 1), (0, 2), (2, 0)])
def test_loops_equal_one_matrix_product(query_len: int, kv_len: int) -> None:
    weights = torch.rand(query_len, kv_len, dtype=torch.float64)
    value = torch.randn(kv_len, 7, dtype=torch.float64)
    torch.testing.assert_close(context_by_loops(weights, value), stages.context(weights, value))


def test_gradients_equal_those_of_the_product() -> None:
    weights = torch.rand(3, 5, dtype=torch.float64, requires_grad=True)
    value = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(
        torch.autograd.grad(context_by_loops(weights, value).sin().sum(), (weights, value)),
        torch.autograd.grad(stages.context(weights, value).sin().sum(), (weights, value)),
    )


def test_refusals() -> None:
    with refused(ValueError, None, "zip() argument 2 is shorter than argument 1"):
        context_by_loops(torch.zeros(3, 5), torch.zeros(4, 7))
