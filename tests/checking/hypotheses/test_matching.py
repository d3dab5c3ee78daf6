"""Results side by side."""

import math

import pytest
import torch

from clearhead.checking.hypotheses.matching import distance

NAN, INFINITY = math.nan, math.inf


@pytest.mark.parametrize(
    ("found", "target", "gap"),
    [
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([NAN, 2.0], [NAN, 4.0], 0.5),
        ([NAN, NAN], [NAN, NAN], 0.0),
        ([INFINITY, 1.0], [NAN, 1.0], 0.0),
        ([NAN, 1.0], [1.0, 1.0], INFINITY),
        ([1.0], [1.0, 1.0], INFINITY),
        ([], [], 0.0),
    ],
)
def test_a_distance_is_a_share_of_the_largest_number_that_is_one(
    found: list[float], target: list[float], gap: float
) -> None:
    assert distance(torch.tensor(found), torch.tensor(target)) == gap
