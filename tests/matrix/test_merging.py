"""Summaries of chunks and of shards, against that of the whole."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.errors import (
    ArgumentError,
    SelectionError,
)
from clearhead.matrix.merging import tensors_of
from clearhead.matrix.summary import each_tensor
from clearhead.types import Summary
from tests.matrix.test_reductions import close
from tests.refusals import refusals


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_chunks_of_a_text_are_merged(leading: tuple[int, ...]) -> None:
    """As a long text is read through a KV cache, chunk by chunk, with padding on the left."""
    query, key, value = torch.randn(3, *leading, 12, 5, dtype=torch.float64).unbind()
    tokens = torch.randint(4, (12,))
    segments = torch.arange(12) % 3

    def of(start: int, stop: int) -> tuple[AttentionMatrix, Summary]:
        weights = AttentionMatrix(query[..., start:stop, :], key[..., :stop, :], mask=ch.causal())
        found = weights.summary(
            value=value[..., :stop, :], top_k=4, pool=((stop - start) // 2, stop // 2),
            segments=segments[:stop],
        )  # fmt: skip
        return weights, replace(found, roles=ch.roles(weights, tokens=tokens[:stop]))

    weights, whole = of(0, 12)
    (_, first), (_, second), (_, third) = of(0, 4), of(4, 6), of(6, 12)
    merged = first.merge(second).merge(third)
    assert repr(merged) == repr(whole)
    for mine, theirs in zip(tensors_of(merged), tensors_of(whole), strict=True):
        if mine.is_floating_point():
            close(mine, theirs, weights)
        else:
            assert torch.equal(mine, theirs)


def test_samples_and_their_padding_are_merged() -> None:
    mask = ch.causal() & ch.padding([7, 4])
    query = key = torch.randn(2, 3, 7, 5, dtype=torch.float64)
    weights = AttentionMatrix(query, key, mask=mask)
    roles = ch.roles(weights)
    whole = replace(weights.summary(top_k=2), roles=roles, real=weights.real)
    assert whole.sample(-1).real is not None
    for index in (2, -3, None, 1.0, True):
        with pytest.raises(SelectionError, match=r"\[summary.sample\] there is no sample .* of 2."):
            whole.sample(index)  # pyright: ignore[reportArgumentType]
    one, two = whole.sample(0), replace(whole.sample(1), real=None)
    merged = one.merge(replace(two, real=whole.sample(1).real), along="batch")
    for mine, theirs in zip(tensors_of(merged), tensors_of(whole), strict=True):
        assert torch.equal(mine, theirs)
    alone = one.merge(two, along="batch").real
    assert alone is not None
    assert alone.tolist() == [[True] * 7] * 2


def chunk(start: int = 3, stop: int = 7, heads: int = 3, **options: Any) -> Summary:
    query = key = torch.randn(heads, 7, 5)
    weights = AttentionMatrix(query[:, start:stop], key[:, :stop], mask=ch.causal())
    return weights.summary(**options)


VALUE = torch.zeros(7, 2)


def first() -> Summary:
    return chunk(0, 3, value=VALUE[:3], top_k=1, pool=(2, 2))


test_what_cannot_be_merged = refusals(
    lambda other: first().merge(other()),
    (lambda: torch.zeros(1), "merge.type", "Tensor"),
    (lambda: chunk(start=2), "merge.shape", "3 // 5 // 8 // 7"),
    (lambda: chunk(heads=2), "merge.shape", "logsumexp // queries // (3, 3) // (2, 4)"),
    (lambda: chunk(top_k=1, pool=(2, 2)), "merge.fields", "context // this one"),
    (
        lambda: chunk(value=VALUE, top_k=1, pool=(4, 7)),
        "merge.shape",
        "2 // 2 // 3 // 3 // 4 // 7 // 4 // 7",
    ),
    (
        lambda: chunk(value=VALUE, top_k=2, pool=(3, 5)),
        "merge.shape",
        "top_k // queries // (3, 3, 1) // (3, 4, 2)",
    ),
    (
        lambda: each_tensor(chunk(), torch.Tensor.double),
        "merge.dtype",
        "logsumexp // torch.float32 // torch.float64",
    ),
    (
        lambda: each_tensor(chunk(), lambda tensor: tensor.to("meta")),
        "merge.device",
        "logsumexp // cpu // meta",
    ),
)
test_where_it_cannot_be_merged_along = refusals(
    lambda along: first().merge(chunk(), along=along),
    ("keys", "merge.along", "'keys'"),
    (
        "batch",
        "merge.shape",
        "Summary [num_heads=3, query_len=3, kv_len=3] with context, top_k, pooled",
    ),
)


def test_roles_without_their_counts_are_not_merged() -> None:
    roles = ch.roles(AttentionMatrix(*torch.zeros(2, 3, 4, 5).unbind(), mask=ch.causal()))
    one, two = (replace(chunk(*ends), roles=roles) for ends in ((0, 3), (3, 7)))
    with pytest.raises(
        ArgumentError, match=re.escape("[merge.fields] both summaries must have the")
    ):
        one.merge(replace(two, roles=replace(roles, counts=None)))
