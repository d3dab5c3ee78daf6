"""Coarser maps, held against the pool of a matrix."""

import torch

import clearhead as ch
from clearhead.drawing.pooling import bin_sums, coarser, row_means


def test_a_coarser_map_is_the_pool_of_the_matrix() -> None:
    query, key = torch.randn(2, 211, 5), torch.randn(2, 223, 5)
    matrix = ch.AttentionMatrix(query, key)
    for rows, columns in [(7, 11), (211, 11), (1, 1)]:
        shares = row_means(matrix.pool(rows, columns), 211)
        torch.testing.assert_close(coarser(matrix.dense(), rows, columns), shares)


def test_there_are_no_more_bins_than_asked_for() -> None:
    numbers = torch.randn(3, 7)
    assert bin_sums(numbers, 1, 7) is numbers
    assert bin_sums(numbers, 1, 9) is numbers
    parts = numbers.split([3, 2, 2], dim=1)
    torch.testing.assert_close(
        bin_sums(numbers, 1, 3), torch.stack([part.sum(dim=1) for part in parts], dim=1)
    )
