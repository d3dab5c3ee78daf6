"""Neighbours put together: in bins, and in blocks."""

import torch

from clearhead.matrix.pooling import bin_sums, block_sums, in_blocks


def test_there_are_no_more_bins_than_asked_for() -> None:
    numbers = torch.randn(3, 7)
    assert bin_sums(numbers, 1, 7) is numbers
    assert bin_sums(numbers, 1, 9) is numbers
    parts = numbers.split([3, 2, 2], dim=1)
    torch.testing.assert_close(
        bin_sums(numbers, 1, 3), torch.stack([part.sum(dim=1) for part in parts], dim=1)
    )


def test_blocks_keep_shares() -> None:
    weights = torch.softmax(torch.randn(7, 7), dim=-1)
    small = in_blocks(weights, 3, 3)
    assert small.shape == (3, 3)
    torch.testing.assert_close(small.sum(dim=-1), torch.ones(3))
    torch.testing.assert_close(small[0, 1], weights[:3, 3:6].sum() / 3)
    torch.testing.assert_close(small[2, 2], weights[6, 6])
    assert block_sums(weights, 1) is weights
    torch.testing.assert_close(block_sums(weights, 9), weights.sum(dim=0, keepdim=True))
