"""Norms of query and key: of each head, or of all heads of a token together."""

import torch
from torch import nn

import clearhead as ch
from clearhead.layers import QueryKeyNorm
from tests.refusals import assert_refused

BATCH, TOKENS, HEADS, KV_HEADS, DIM = 2, 5, 6, 3, 4


def test_all_heads_of_a_token_together() -> None:
    norm = QueryKeyNorm(DIM, eps=1e-3, num_heads=HEADS, num_kv_heads=KV_HEADS).double()
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    query = torch.randn(BATCH, HEADS, TOKENS, DIM, dtype=torch.float64)
    key = torch.randn(BATCH, KV_HEADS, TOKENS, DIM, dtype=torch.float64)
    places = torch.arange(TOKENS)
    results = norm.transform_query_key(query, key, places, places)
    weights = norm.query_norm.weight, norm.key_norm.weight
    for heads, result, weight in zip((query, key), results, weights, strict=True):
        for row in range(BATCH):
            for token in range(TOKENS):
                numbers = heads[row, :, token].flatten()
                expected = numbers / (numbers.square().mean() + 1e-3).sqrt() * weight
                torch.testing.assert_close(result[row, :, token].flatten(), expected)


def test_what_is_refused() -> None:
    assert_refused(lambda: QueryKeyNorm(DIM, num_heads=0), "argument.size", "num_heads // 0")
    layer = ch.MultiHeadAttention(8, num_heads=2, parts=[QueryKeyNorm(3, num_heads=2)])
    assert_refused(lambda: layer(torch.zeros(1, 2, 8)), "part.width", "QueryKeyNorm // 3 // 4")
