"""Plans over ranks, which need no processes."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

import clearhead as ch
from clearhead.attention.problem import make_problem
from clearhead.attention.sharded import by_gather


def test_as_many_key_heads_are_gathered_at_a_time_as_fit() -> None:
    query, key = torch.zeros(2, 6, 5, 7), torch.zeros(2, 3, 5, 7)
    call: Any = SimpleNamespace(problem=make_problem(query, key, key))
    head = 2 * key[:, 0].nbytes
    for most, portions in ((1, 3), (head, 3), (2 * head, 2), (3 * head - 1, 2), (3 * head, 1)):
        with mock.patch.object(by_gather, "GATHERED", most):
            found = by_gather.head_portions(call)
        assert len(found) == portions
        assert [head for part in found for head in range(part.start, part.stop)] == [0, 1, 2]


def test_a_plan_needs_no_processes() -> None:
    where = ch.across(world=1024, tokens=100_003, mask=ch.causal())
    query = where.shard(torch.empty(1, 8, 100_003, 64, device="meta"))
    key = where.shard(torch.empty(1, 2, 100_003, 64, device="meta"))
    plan = ch.plan(query, key, key, mask=ch.causal(), across=where)
    assert isinstance(plan, ch.types.ShardedPlan)
    assert plan.way == "gather"
    assert plan.balance < 1.01
    assert int(plan.pairs.sum()) == 100_003 * 100_004 // 2
    assert str(plan).startswith("gather over 1024 ranks\n  rank 0 has ")
    assert "bias=alibi(8)" in str(ch.plan(query, key, key, bias=ch.alibi(8), across=where))


def test_a_plan_refuses_what_the_call_would() -> None:
    where = ch.across(world=4, tokens=11, how="heads")
    x = where.shard(torch.zeros(2, 11, 4))
    with pytest.raises(ch.errors.UnsupportedError, match="2 heads are fewer than 4 ranks"):
        ch.plan(x, x, x, across=where)
    with pytest.raises(
        ch.errors.ShapeError, match=r"across.rows\] query must have the tokens of rank 0, 3 of"
    ):
        ch.plan(x[:, :2], x, x, across=where)
