"""Reading a call of PyTorch's function."""

from typing import Any

import torch
import torch.nn.functional as F

from clearhead.attention.biases import DenseBias
from clearhead.masks.dense import Dense
from clearhead.watching.hooks import sdpa
from tests.watching.hooks.recording import recorded, weights_of


def test_small_masks_stay_small() -> None:
    """A mask that is the same for all samples, heads or queries is not written out for each."""
    query, key = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4)
    hidden = torch.tensor([True, False, True, True, False, True, True])
    added = torch.linspace(-1, 1, 35).view(5, 7)
    cases: list[tuple[torch.Tensor, tuple[int, ...]]] = [
        (hidden.view(1, 7), (1, 1, 1, 7)),
        (hidden.expand(2, 1, 5, 7), (2, 1, 5, 7)),
        (added, (1, 1, 5, 7)),
        (added[:, :1], (1, 1, 5, 7)),
        (added.expand(3, 5, 7), (1, 3, 5, 7)),
    ]
    for given, shape in cases:
        with recorded(sdpa) as problems:
            unit = torch.eye(7).expand(2, 3, 7, 7)
            expected = F.scaled_dot_product_attention(query, key, unit, attn_mask=given)
        (problem,) = problems
        held: Any = problem.mask if problem.bias is None else problem.bias
        assert isinstance(held, Dense | DenseBias)
        assert held.tensor.shape == shape
        torch.testing.assert_close(weights_of(problem), expected)


def test_masks_of_fewer_dimensions() -> None:
    """Three dimensions are (batch, len, dim)."""
    query, key = torch.randn(2, 5, 4), torch.randn(2, 7, 4)
    unit, added = torch.eye(7).expand(2, 7, 7), torch.randn(2, 5, 7)
    for given in (added, added[0], added[:, :, :1], added > 0, added[0] > 0, None):
        with recorded(sdpa) as problems:
            expected = F.scaled_dot_product_attention(query, key, unit, attn_mask=given)
        torch.testing.assert_close(weights_of(problems[0])[:, 0], expected)
    with recorded(sdpa) as problems:
        single = F.scaled_dot_product_attention(query[0], key[0], unit[0], attn_mask=added[0])
    torch.testing.assert_close(weights_of(problems[0])[0, 0], single)
