"""Plans over ranks: what they say is sent, held against what real groups send."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import clearhead as ch
from clearhead.attention.problem import make_problem
from clearhead.attention.sharded import by_gather
from clearhead.sharding import collectives
from tests.sharding import ranks
from tests.sharding.calls import CALLS

PLANNED = ("causal", "cross", "one key head", "few tokens", "no tokens")


@contextmanager
def counted(group: Any) -> Iterator[list[int]]:
    """The bytes that this rank hands to PyTorch for other ranks; the first number is their sum."""
    sent = [0]
    gather, exchange, passing = (
        collectives._all_gather,
        dist.all_to_all_single,
        dist.batch_isend_irecv,
    )

    def all_gather(out: Any, tensor: Any, **options: Any) -> None:
        sent[0] += tensor.nbytes * (group.size() - 1)
        gather(out, tensor, **options)

    def all_to_all(out: Any, tensor: Any, received: Any, split: Any, **options: Any) -> None:
        row = tensor.nbytes // max(1, len(tensor))
        sent[0] += row * (sum(split) - split[group.rank()])
        exchange(out, tensor, received, split, **options)

    def pass_on(operations: list[Any]) -> Any:
        sent[0] += sum(each.tensor.nbytes for each in operations if each.op is dist.isend)
        return passing(operations)

    with (
        mock.patch.object(collectives, "_all_gather", all_gather),
        mock.patch.object(dist, "all_to_all_single", all_to_all),
        mock.patch.object(dist, "batch_isend_irecv", pass_on),
    ):
        yield sent


def sends(group: Any) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
    """The bytes that the plan announces, and those that are counted, forward and backward."""
    found = []
    for name in PLANNED:
        for how in ("gather", "portions", "ring", "heads"):
            call = CALLS[name]
            tensors, options = call.tensors(), call.options()
            query_len, kv_len = tensors["query"].shape[-2], tensors["key"].shape[-2]
            way = "gather" if how == "portions" else how
            of_queries = ch.across(group, tokens=query_len, layout="zigzag", how=way)
            of_keys = ch.across(group, tokens=kv_len, layout="zigzag", how=way)
            held = {"query": of_queries, "key": of_keys, "value": of_keys}
            leaves = {name: held[name].shard(tensors[name]).requires_grad_() for name in held}
            pair = of_queries, of_keys
            most = 1 if how == "portions" else by_gather.GATHERED
            with mock.patch.object(by_gather, "GATHERED", most):
                plan = ch.plan(**leaves, **options, across=pair)
                assert isinstance(plan, ch.types.ShardedPlan)
                with counted(group) as forward:
                    context = ch.attend(**leaves, **options, across=pair)
                with counted(group) as backward:
                    context.sum().backward()
            cost = plan.ways[way]
            found.append(
                (f"{name}, {how}", (cost.forward, cost.backward), (forward[0], backward[0]))
            )
    return found


@pytest.mark.parametrize("world", [2, 3])
def test_what_a_plan_says_is_what_is_sent(world: int) -> None:
    for found in ranks.run(world, sends):
        assert len(found) == 4 * len(PLANNED)
        for name, planned, sent in found:
            assert planned == sent, name


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
    text = str(plan)
    assert text.startswith("gather over 1024 ranks: sends ")
    assert "\nnot ring: it sends " in text
    assert "\nnot heads: 8 heads are fewer than 1024 ranks" in text
    assert plan.ways["ring"].memory < plan.ways["gather"].memory / 100
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
