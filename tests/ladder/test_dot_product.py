import pytest
import torch

from clearhead.errors import ArgumentTypeError, DtypeError, ShapeError
from clearhead.ladder import dot_product
from tests.ladder.refusal import refused


@pytest.mark.parametrize("dim", [0, 1, 7])
def test_equals_torch_dot(dim: int) -> None:
    a, b = torch.randn(2, dim, dtype=torch.float64)
    torch.testing.assert_close(dot_product(a, b), torch.dot(a, b))


def test_gradient_of_one_vector_is_the_other() -> None:
    a, b = torch.randn(5, requires_grad=True), torch.randn(5)
    dot_product(a, b).backward()
    assert a.grad is not None
    assert torch.equal(a.grad, b)


def test_refusals() -> None:
    with refused(ShapeError, "rung.input", "b must have shape (dim=3,); got (2,)"):
        dot_product(torch.zeros(3), torch.zeros(2))
    with refused(ShapeError, "rung.input", "a must have shape (dim,); got (2, 3)"):
        dot_product(torch.zeros(2, 3), torch.zeros(3))
    with refused(ArgumentTypeError, "a.type", "a must be a torch.Tensor; got list"):
        dot_product([1.0], torch.zeros(1))  # pyright: ignore[reportArgumentType]
    with refused(DtypeError, "rung.dtype", "b must be floating; got torch.int64"):
        dot_product(torch.zeros(1), torch.zeros(1, dtype=torch.int64))
