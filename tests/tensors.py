"""Tensors that tests draw, and when two of them are equal but for rounding."""

import torch
from torch import Tensor


def drawn(*shape: int) -> Tensor:
    """Normal numbers of float64."""
    return torch.randn(*shape, dtype=torch.float64)


def assert_close(
    actual: Tensor, expected: Tensor, *, terms: int, dtype: torch.dtype = torch.float64
) -> None:
    """Check that two tensors are equal but for the rounding of sums of so many terms, made in a dtype."""
    largest = max(1.0, float(expected.detach().abs().max()))
    atol = terms * torch.finfo(dtype).eps * largest
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)
