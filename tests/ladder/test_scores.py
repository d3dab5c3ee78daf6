import pytest
import torch

from clearhead.ladder import dot_product, scores_by_loops, scores_of_query
from tests.ladder.refusal import refused


@pytest.mark.parametrize("dim", [0, 1, 7])
def test_equals_torch_dot(dim: int) -> None:
    a, b = torch.randn(2, dim, dtype=torch.float64)
    torch.testing.assert_close(dot_product(a, b), torch.dot(a, b))


def test_one_query_is_one_row() -> None:
    query, key = torch.randn(3, 2), torch.randn(5, 2)
    assert torch.equal(scores_of_query(query[1], key), scores_by_loops(query, key)[1])


def test_refusals() -> None:
    with refused(ValueError, None, "zip() argument 2 is shorter than argument 1"):
        dot_product(torch.zeros(3), torch.zeros(2))
    with refused(ValueError, None, "zip() argument 2 is shorter than argument 1"):
        scores_by_loops(torch.zeros(4, 3), torch.zeros(5, 2))
    with refused(ValueError, None, "zip() argument 2 is shorter than argument 1"):
        scores_of_query(torch.zeros(3), torch.zeros(5, 2))
