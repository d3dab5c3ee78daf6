"""The cost of a look at the weights: against one call of PyTorch's attention, which gives none."""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import clearhead as ch
from benchmarks.harness import Sides, case

SHAPE = (1, 4, 8192, 64)
SAMPLED = [0, 1, 7, 500, 4093, 8191]
"""The queries whose numbers are held against their rows of the matrix, formed in float64."""

PEER = "scaled_dot_product_attention(is_causal=True)"


def _inputs() -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = torch.randn(3, *SHAPE, generator=torch.Generator().manual_seed(0)).unbind()
    return query, key, value


def _rows() -> Tensor:
    """Some rows of the matrix by the definition, (batch, num_heads, rows, kv_len), float64."""
    query, key, _ = (each.double() for each in _inputs())
    scores = query[..., SAMPLED, :] @ key.mT * SHAPE[3] ** -0.5
    later = torch.arange(SHAPE[2]) > torch.tensor(SAMPLED)[:, None]
    return scores.masked_fill(later, -torch.inf).softmax(dim=-1)


def _columns() -> Tensor:
    """The sums of the columns by the definition, some queries at a time, float64."""
    query, key, _ = (each.double() for each in _inputs())
    total = torch.zeros(*SHAPE[:3], dtype=torch.float64)
    for some in torch.arange(SHAPE[2]).split(512):
        scores = query[..., some, :] @ key.mT * SHAPE[3] ** -0.5
        later = torch.arange(SHAPE[2]) > some[:, None]
        total += scores.masked_fill(later, -torch.inf).softmax(dim=-1).sum(dim=-2)
    return total


def _near(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


def _entropy(rows: Tensor) -> Tensor:
    return torch.special.entr(rows).sum(dim=-1)


def _distance(rows: Tensor) -> Tensor:
    steps = (torch.tensor(SAMPLED)[:, None] - torch.arange(SHAPE[2])).abs().double()
    return (rows * steps).sum(dim=-1)


def _same(number: Callable[[Tensor], Tensor]) -> Callable[[Any, Any], None]:
    """A comparison of one number a query with that of the sampled rows. PyTorch's side gives a
    context and no such number: it is only timed."""

    def compare(ours: Tensor, theirs: Tensor) -> None:
        _near(ours[..., SAMPLED], number(_rows()))
        if theirs.shape == ours.shape:
            _near(theirs[..., SAMPLED], number(_rows()))

    return compare


def _against_attention(look: Callable[[ch.AttentionMatrix], Any], **others: Any) -> Sides:
    query, key, value = _inputs()
    mask = ch.causal()
    sides: Sides = {
        "clearhead": lambda: look(ch.AttentionMatrix(query, key, mask=mask)),
        PEER: lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True),
    }
    return sides | others


def _compare_summary(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, Tensor):
        torch.testing.assert_close(ours.context, theirs)
    rows = _rows()
    _near(ours.entropy[..., SAMPLED], _entropy(rows))
    _near(ours.distance[..., SAMPLED], _distance(rows))
    _near(ours.max[..., SAMPLED], rows.amax(dim=-1))
    assert ours.top_k is not None
    assert ours.pooled is not None
    _near(ours.top_k.weights[..., SAMPLED, :], rows.topk(8, dim=-1).values)
    _near(ours.received, _columns())
    _near(ours.pooled.sum(dim=(-2, -1)), torch.full((1, 4), 8192.0, dtype=torch.float64))


@case(
    "summary-causal-8192",
    reach="<= 3x",
    work="context, entropy, maximum, received, distance, top 8, map of 128 × 128; causal, (1, 4, 8192, 64)",
    compare=_compare_summary,
    limit="On one thread 2.2 x: the two products run at 53 GFLOP/s, since weights go to the third cache and back, "
    "where the fused call keeps them in the second and runs at 74; they alone are 1.4 x. Two threads share that "
    "cache, and take 1.15 to 1.3 times the time of the cores that one takes, the fused call 1.1 times.",
)
def summary() -> Sides:
    value = _inputs()[2]
    return _against_attention(
        lambda weights: weights.summary(value=value, top_k=8, pool=(128, 128))
    )


@case(
    "statistic-entropy-8192",
    reach="<= 1.3x",
    work="entropy of each query; causal, (1, 4, 8192, 64)",
    compare=_same(_entropy),
)
def entropy() -> Sides:
    query, key, _ = _inputs()

    def by_identity() -> Tensor:
        """The value is the key: entropy = logsumexp − scale · query · context."""
        weights = ch.AttentionMatrix(query, key, mask=ch.causal())
        return weights.logsumexp - SHAPE[3] ** -0.5 * torch.linalg.vecdot(query, weights @ key)

    return _against_attention(
        lambda weights: weights.entropy(), **{"identity over fused calls": by_identity}
    )


@case(
    "statistic-maximum-8192",
    reach="<= 1.3x",
    work="largest weight of each query; causal, (1, 4, 8192, 64)",
    compare=_same(lambda rows: rows.amax(dim=-1)),
)
def maximum() -> Sides:
    return _against_attention(lambda weights: weights.max())


@case(
    "statistic-distance-8192",
    reach="<= 1.3x",
    work="mean distance of each query; causal, (1, 4, 8192, 64)",
    compare=_same(_distance),
)
def distance() -> Sides:
    query, key, _ = _inputs()
    place = torch.arange(8192.0)

    def by_identity() -> Tensor:
        """The value is the position; causal, so that every distance is a difference."""
        weights = ch.AttentionMatrix(query, key, mask=ch.causal())
        return place - weights @ place

    return _against_attention(
        lambda weights: weights.distance(), **{"identity over fused calls": by_identity}
    )


def _compare_received(ours: Tensor, theirs: Tensor) -> None:
    _near(ours, _columns())


@case(
    "statistic-received-8192",
    reach="<= 1.3x",
    work="what each key gets from all queries; causal, (1, 4, 8192, 64)",
    compare=_compare_received,
)
def received() -> Sides:
    return _against_attention(lambda weights: weights.received())


def _compare_pool(ours: Tensor, theirs: Tensor) -> None:
    _near(ours.sum(dim=-2), _columns().unflatten(-1, (128, 64)).sum(dim=-1))


@case(
    "statistic-pool-8192",
    reach="<= 1.3x",
    work="map of 128 × 128; causal, (1, 4, 8192, 64)",
    compare=_compare_pool,
)
def pool() -> Sides:
    return _against_attention(lambda weights: weights.pool(128, 128))


@case(
    "statistic-top-8-8192",
    work="the 8 largest weights of each query and their keys; causal, (1, 4, 8192, 64)",
    compare=lambda ours, theirs: _near(
        ours.weights[..., SAMPLED, :], _rows().topk(8, dim=-1).values
    ),
)
def top_k() -> Sides:
    return _against_attention(lambda weights: weights.top_k(8))


def _same_context(ours: Any, theirs: Tensor) -> None:
    torch.testing.assert_close(ours.context, theirs)


@case(
    "summary-window-65536",
    reach="<= 5x",
    work="all statistics, the context and the top 8; a causal window of 256, (1, 1, 65 536, 32)",
    compare=_same_context,
    clock=time.process_time,
    rounds=3,
)
def of_a_window() -> Sides:
    query, key, value = torch.randn(3, 1, 1, 65536, 32).unbind()
    mask = ch.sliding_window(left=255, right=0)
    weights = ch.AttentionMatrix(query, key, mask=mask)
    return {
        "summary": lambda: weights.summary(value=value, top_k=8),
        "attend": lambda: ch.attend(query, key, value, mask=mask),
    }
