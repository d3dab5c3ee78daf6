"""flex_attention is checked without a compiler, at the first check of a process and at every later one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

import clearhead as ch


def past(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return torch.where(query >= key, score, -torch.inf)


def plain(query: Tensor, key: Tensor, value: Tensor) -> Any:
    return flex_attention(query, key, value)


def causal(query: Tensor, key: Tensor, value: Tensor) -> Any:
    return flex_attention(query, key, value, score_mod=past)


def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Any:
    return flex_attention(query, key, value, scale=1.0)


compiled = torch.compile(flex_attention, backend="eager")


def by_compiler(query: Tensor, key: Tensor, value: Tensor) -> Any:
    return compiled(query, key, value)


@pytest.mark.parametrize("time", range(2))
@pytest.mark.parametrize(
    ("subject", "declared", "codes"),
    [
        (plain, False, []),
        (by_compiler, False, []),
        (causal, True, ["mask.top-left"]),
        (unscaled, False, ["scale.missing"]),
    ],
)
def test_nothing_is_compiled(
    subject: Callable[..., Any], declared: bool, codes: list[str], time: int
) -> None:
    from torch._dynamo.utils import counters

    counters.clear()
    report = ch.check(subject, takes="qkv", causal=declared)
    assert [each.code for each in report.findings] == codes
    assert report.ok is not bool(codes)
    assert not counters["frames"]
