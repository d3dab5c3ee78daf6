"""The tokens that each rank holds, and what ranks agree on before they send."""

from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import clearhead as ch
from clearhead._common.layouts import LAYOUTS
from clearhead.attention.sharded import sharded_call
from clearhead.sharding import sharding
from clearhead.sharding.sharding import MOST_RANKS
from tests.refusals import refusals, wrong
from tests.sharding import ranks

CPU = torch.device("cpu")

MASKS = {
    "full": None,
    "causal": ch.causal(),
    "window": ch.causal() & ch.sliding_window(left=7),
    "documents": ch.causal() & ch.documents(lengths=[601, 9, 391]),
    "prefix": ch.causal() | ch.prefix(333),
    "padding": ch.causal() & ch.padding([700]),
    "hole": ch.causal() & ch.padding(torch.arange(1001) % 7 > 2),
    "one row": ch.dense(torch.arange(1001)[:, None] == torch.full((1, 1001), 5)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tokens", [0, 1, 3, 101])
@pytest.mark.parametrize("world", [1, 2, 4, 7])
def test_every_token_is_held_once(layout: str, tokens: int, world: int) -> None:
    held = [
        ch.across(world=world, tokens=tokens, layout=layout, rank=rank) for rank in range(world)
    ]
    every = torch.cat([each.positions for each in held])
    assert every.sort().values.tolist() == list(range(tokens))
    assert [each.count for each in held] == list(held[0].counts)
    assert all(bool((each.positions.diff() > 0).all()) for each in held)
    assert max(held[0].counts) - min(held[0].counts) <= 1 or layout in ("contiguous", "zigzag")


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("world", [2, 3, 4, 64, 1024])
def test_balanced_gives_every_rank_as_many_pairs(name: str, world: int) -> None:
    mask = MASKS[name]
    where = ch.across(world=world, tokens=1001, mask=mask)
    counts = (ch.full() if mask is None else mask).to_dense(1001, 1001).sum(-1).flatten()
    pairs = torch.stack([counts[where.positions_of(rank)].sum() for rank in range(world)])
    spread, mean = int(pairs.max() - pairs.min()), float(pairs.double().mean())
    assert spread <= max(0.02 * mean, int(counts.max()))


def test_neighbours_stay_together_where_that_is_balanced() -> None:
    assert ch.across(world=4, tokens=11).positions.tolist() == [0, 1, 2]
    causal = ch.across(world=4, tokens=8000, mask=ch.causal()).positions
    assert int((causal.diff() > 1).sum()) == 1, "a run from the beginning and one from the end"


def test_positions_of_each_rank_may_be_given() -> None:
    given = [torch.tensor([4, 0]), torch.tensor([1]), torch.tensor([3, 2])]
    where = ch.across(world=3, tokens=5, layout=given, rank=2)
    assert where.positions.tolist() == [3, 2]
    assert where.shard(torch.arange(5.0)[:, None])[:, 0].tolist() == [3.0, 2.0]


X = torch.zeros(2, 5, 4)
test_refusals = refusals(
    lambda options: ch.across(**{"tokens": 5} | options),
    ({}, "across.world", f"… // {MOST_RANKS} // … // None // 0 //  torch.distributed.group.WORLD is None until "
     "init_process_group."),
    ({"world": 0}, "across.world", f"… // {MOST_RANKS} // … // 0 // 0 // "),
    ({"world": 2, "rank": 2}, "across.world", f"… // {MOST_RANKS} // … // 2 // 2 // "),
    ({"mesh": "cp"}, "across.mesh", "str"),
    ({"mesh": 1, "world": 2}, "across.world", "…"),
    ({"world": 2, "tokens": -1}, "length.negative", "tokens // -1"),
    ({"world": 2, "layout": "snake"}, "across.layout", '"balanced", "contiguous", "zigzag" // \'snake\''),
    ({"world": 2, "layout": 3}, "across.layout", "int"),
    ({"world": 2, "how": "star"}, "across.how", '"gather", "ring", "heads" // \'star\''),
    ({"world": 2, "layout": [torch.tensor([0, 1]), torch.tensor([1])]}, "across.positions", "2 // 4 // 3 // 2 // 2"),
    ({"world": 1, "layout": [torch.tensor([0.5])]}, "across.layout", "torch.float32 // (1,)"),
    ({"world": 2, "mask": ch.documents([1, 2])}, "mask.kv-len", "documents([1, 2]) // 2 // 5 // 5 // Let what comes "
     "behind them, such as padding, be a document of its own, of length 3."),
)  # fmt: skip
test_what_a_sharding_refuses = refusals(
    lambda call: call(ch.across(world=2, tokens=5)),
    *((lambda it, at=at: it.positions_of(at), "across.no-rank", f"1 // {at!r}") for at in (2, -1, 1.0, True, None)),
    (lambda it: it.shard(X, dim=3), "across.rows", "all ranks together have // 5 // (2, 5, 4) // 3"),
    (lambda it: it.shard(X[:, :4]), "across.rows", "all ranks together have // 5 // (2, 4, 4) // -2"),
    (lambda it: ch.attend(*[X[:, :3]] * 3, across=it), "across.group", "2 // …"),
    (lambda it: it.gather(X[:, :3]), "across.group", "2 // …"),
    (lambda it: ch.plan(X[:, :3], X, X, across=it), "across.rows", "key // 0 // 3 // 5 // 5"),
    (lambda it: ch.plan(X[:, :3], X, wrong([1.0]), across=it), "value.type", "value // a torch.Tensor // list"),
)  # fmt: skip


def test_no_transformation_goes_through_the_exchange() -> None:
    whole = ch.across(world=1, tokens=5)
    where = ch.across(world=1, tokens=5, layout=[torch.tensor([1, 0, 2, 3, 4])])
    x = torch.randn(3, 2, 5, 4)
    for transform in (torch.vmap, torch.func.jacrev):
        with pytest.raises(
            ch.errors.UnsupportedError, match=r"\[across.transformed\] across= does not go"
        ):
            transform(lambda x: ch.attend(x, x, x, across=where))(x)
    found = torch.vmap(lambda x: ch.attend(x, x, x, across=whole, kernel="eager"))(x)
    torch.testing.assert_close(found, ch.attend(x, x, x))


def disagreements(group: Any) -> list[str]:
    """The error of this rank for calls on which the ranks disagree."""
    rank, world = group.rank(), group.size()
    where = ch.across(group, tokens=11, layout="zigzag")
    x = torch.zeros(2, where.count, 4)
    y = torch.zeros(2, 11, 4)
    found = []

    def refused(call: Any) -> None:
        try:
            call()
        except ch.errors.ClearheadError as error:
            found.append(f"{type(error).__name__} {error}")
        else:
            found.append("nothing")

    last = rank == world - 1
    refused(lambda: ch.attend(x, x, x[:, :1] if last else x, across=where))
    refused(lambda: ch.attend(x, x, x, across=where, softcap=2.0 if last else None))
    refused(lambda: ch.attend(*[x.half() if last else x] * 3, across=where))
    other = ch.across(group, tokens=11, layout="contiguous" if last else "zigzag")
    mine = other.shard(y)
    refused(lambda: ch.attend(mine, mine, mine, across=other))
    refused(
        lambda: ch.attend(x, x, x, across=where, mask=ch.full() if last else ch.causal(offset=0))
    )
    refused(lambda: ch.attend(x, x, x, across=where, kernel="no" if last else "auto"))
    refused(lambda: ch.attend(x, x, x, across=where, dropout=0.5))
    refused(lambda: where.gather(x[:, :1] if last else x))
    few = ch.across(group, tokens=11, layout="zigzag", how="heads")
    one = torch.zeros(1, few.count, 4)
    refused(lambda: ch.attend(one, one, one, across=few))
    ring = ch.across(group, tokens=11, layout="zigzag", how="ring")
    refused(lambda: ch.attend(x, x, x, across=ring, kernel="fused"))
    refused(lambda: ch.attend(x, x, x, across=(where, ring)))
    refused(lambda: ch.attend(x, x, x, across=group))
    more = ch.across(group, tokens=11 + rank, layout="zigzag")
    z = torch.zeros(2, more.count, 4)
    refused(lambda: ch.attend(z, z, z, across=more))
    refused(lambda: where.gather(x[:1] if last else x))
    refused(
        lambda: ch.attend(
            x, x, x, across=where, mask=ch.documents([0] * (6 + rank) + [1] * (5 - rank))
        )
    )
    return found


CALLS_DIFFER, LAYOUTS_DIFFER = (
    f"RankError [across.differ] the {what} of the ranks differ. " for what in ("calls", "layouts")
)


def test_ranks_that_disagree_are_refused_on_every_rank() -> None:
    first, last = ranks.run(2, disagreements)
    expected = [
        "[across.rank] rank 1 refused this call: [across.rows] value must have the tokens",
        "[across.differ] the calls of the ranks differ. Give across and the call the same arguments on each.\n"
        "  rank 0: 11 tokens, how=gather, kernel=auto, batch=1, num_heads=2, num_kv_heads=2, ",
        CALLS_DIFFER,
        LAYOUTS_DIFFER,
        CALLS_DIFFER,
        "[across.rank] rank 1 refused this call: [kernel.name]",
        "UnsupportedError [across.dropout] dropout must be None where ranks share a matrix",
        "[across.rank] rank 1 refused this call: [across.rows] rank 1 has 6 tokens",
        'UnsupportedError [across.refused] how="heads" cannot run this call.\n'
        "  - 1 heads are fewer than 2 ranks",
        'UnsupportedError [across.refused] how="ring" cannot run this call.\n'
        '  - kernel="fused": a ring merges contexts',
        "ArgumentError [across.pair] the shardings of queries and keys must be of one process group",
        "ArgumentTypeError [across.type] across must be what clearhead.across(…) returns",
        LAYOUTS_DIFFER,
        CALLS_DIFFER,
        CALLS_DIFFER,
    ]
    assert len(first) == len(last) == len(expected)
    for place, text in enumerate(expected):
        assert text in first[place], first[place]
    assert "softcap=2" in first[1]
    assert last[0].startswith("ShapeError [across.rows]"), last[0]
    assert last[5].startswith("ArgumentError [kernel.name]")
    assert [text for text in last[1:5] if "RankError [across.differ]" not in text] == []


def other_numbers(group: Any) -> list[str]:
    """Options that differ in numbers that no description shows."""
    rank, found = group.rank(), []
    where = ch.across(group, tokens=13)
    x = torch.zeros(2, 1, where.count, 4)
    real = torch.ones(2, 13, dtype=torch.bool)
    real[1, 7 + rank] = False
    ids = torch.arange(13) // 3
    ids[9:] += rank
    options: list[dict[str, Any]] = [
        {"mask": ch.padding(real)},
        {"mask": ch.causal() & ~ch.documents(ids)},
        {"mask": torch.ones(13, 13, dtype=torch.bool).tril(rank)},
        {"scale": 0.3 + 1e-9 * rank},
        {"bias": torch.zeros(1, 13) + 1e-9 * rank},
        {
            "bias": ch.relative(torch.zeros(1, 3)),
            "sinks": torch.zeros(1).fill_(rank).requires_grad_(),
        },
        {"bias": ch.alibi(slopes=torch.ones(1) + rank)},
        {
            "bias": ch.alibi(1),
            "sinks": torch.ones(1),
            "mask": ch.documents(ids[::3].new_zeros(26)[::2]),
        },
        {"mask": ch.padding(real.new_ones(2, 13)), "scale": 0.3},
    ]
    for each in options:
        try:
            ch.attend(x, x, x, across=where, **each)
        except ch.errors.RankError as error:
            found.append(error.code)
        else:
            found.append("")
    with mock.patch.object(sharded_call, "WORDS", 7):
        return [*found, str(sharded_call.checksums([options[2]["mask"]], CPU))]


def test_a_checksum_goes_by_what_is_there() -> None:
    valid = torch.rand(3, 41) > 0.5
    some = valid[1:]
    layouts = [some.clone(), some, some.mT.contiguous().mT, some[:, None].expand(-1, 5, -1)]
    first, *same = sharded_call.checksums(layouts, CPU)
    assert same == [first] * 3
    assert sharded_call.checksums([some.flip(0)], CPU) != [first]
    assert sharded_call.checksums([valid[:0]], CPU) == [0]
    every_second = torch.arange(10.0)[::2]
    assert len(set(sharded_call.checksums([every_second, every_second.clone()], CPU))) == 1


def test_numbers_that_differ_are_refused() -> None:
    first, last = ranks.run(2, other_numbers)
    assert first[:-1] == last[:-1] == ["across.differ"] * 7 + [""] * 2
    assert first[-1] != last[-1]


def meshes(group: Any) -> list[str]:
    found = []
    two = init_device_mesh("cpu", (2, 1), mesh_dim_names=("cp", "tp"))
    where = ch.across(two["cp"], tokens=5)
    found.append(f"{where.rank == group.rank()} {where.world}")
    for mesh in (two, dist.new_group([0])):
        try:
            ch.across(mesh, tokens=5)
        except ch.errors.ClearheadError as error:
            found.append(str(error))
        else:
            found.append("nothing")
    return found


def test_a_mesh_is_read_or_refused() -> None:
    first, second = ranks.run(2, meshes)
    assert first[0] == second[0] == "True 2"
    assert "[across.mesh] mesh must have one dimension; got 2: cp, tp." in first[1]
    assert 'such as mesh["cp"]' in first[1]
    assert first[2] == "nothing"
    assert second[2] == "[across.group] this process is not in the group that was given."


def lost(group: Any) -> str:
    rank = group.rank()
    dist.barrier()  # so that neither waits for the start of the other in the seconds of the new one
    group = dist.new_group([0, 1], timeout=timedelta(seconds=3))
    where = ch.across(group, tokens=5)
    if rank:
        return ""
    try:
        where.gather(torch.zeros(where.count, 1))
    except ch.errors.RankError as error:
        return str(error)
    return "nothing"


def test_a_rank_that_does_not_come_is_named_by_what_was_waited_for() -> None:
    text, _ = ranks.run(2, lost)
    assert "[across.lost] waiting for the description of the call of the other ranks failed" in text


def test_a_description_is_sent_whole_where_it_fits_and_else_with_its_hash() -> None:
    where: Any = ch.across(world=1, tokens=3)
    with (
        mock.patch.object(sharding, "all_gather", lambda message, *_: message[None]),
        mock.patch.object(dist, "get_backend", return_value="gloo"),
    ):
        assert where._texts("x" * sharding.MESSAGE, None) == ["x" * sharding.MESSAGE]
        assert where._texts("mask=causal()", None) == ["mask=causal()"]
        one, other = (where._texts("x" * sharding.MESSAGE + end, None)[0] for end in "ab")
    assert one != other
    assert len(one) == len(other) == sharding.MESSAGE
