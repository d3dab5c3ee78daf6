"""Queries that grow with their position."""

import math

import torch

import clearhead as ch
from clearhead.layers import Temperature
from tests.refusals import assert_refused


def test_temperature() -> None:
    part = Temperature(0.3, every=4)
    query, key = torch.randn(2, 3, 9, 5, dtype=torch.float64), torch.randn(2, 1, 9, 5)
    places = torch.arange(9) + 2
    grown, same = part.transform_query_key(query, key, places, places)
    by_hand = [1 + 0.3 * math.log(1 + (place + 1) // 4) for place in range(2, 11)]
    torch.testing.assert_close(grown, query * torch.tensor(by_hand).double()[:, None])
    assert same is key
    rows = torch.stack([places, places + 40])
    by_row, _ = part.transform_query_key(query, key, rows, rows)
    assert torch.equal(by_row[0], grown[0])
    assert bool((by_row[1].abs() > grown[1].abs()).all())
    assert_refused(lambda: Temperature(0.0, every=4), "temperature.gain", "0.0")
    assert_refused(lambda: Temperature(math.inf, every=4), "temperature.gain", "inf")
    assert_refused(lambda: Temperature(-1.0, every=4), "temperature.gain", "-1.0")
    layer = ch.MultiHeadAttention(10, num_heads=2, mask=ch.causal(), parts=[part]).double()
    x, cache = torch.randn(1, 9, 10, dtype=torch.float64), ch.layers.GrowingCache()
    with torch.no_grad():
        steps = [layer(token, cache=cache) for token in x.split(1, dim=1)]
        torch.testing.assert_close(torch.cat(steps, dim=1), layer(x))
