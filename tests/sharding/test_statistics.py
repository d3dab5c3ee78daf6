"""The statistics of a matrix whose rows are shared, held against one process."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import clearhead as ch
from tests.matrix.tensors import tensors_of
from tests.sharding import ranks
from tests.sharding.calls import CALLS, Call

NAMES = (
    "plain",
    "window",
    "documents",
    "holes",
    "dense",
    "alibi",
    "everything",
    "cross",
    "documents apart",
    "few tokens",
)
PER_QUERY = ("logsumexp", "entropy", "max", "distance", "first", "previous", "mass")


def statistics(matrix: ch.AttentionMatrix, kv_len: int, rows: int) -> dict[str, Tensor]:
    """Everything that a matrix says; what is a number for each query by "rows …"."""
    segments = torch.arange(kv_len) % 3
    k = min(2, kv_len)
    summary = matrix.summary(top_k=k, pool=(min(rows, 4), min(kv_len, 3)), segments=segments)
    found = {f"rows {name}": getattr(summary, name) for name in PER_QUERY}
    assert summary.top_k is not None
    assert summary.pooled is not None
    return found | {
        "received": summary.received,
        "pooled": summary.pooled,
        "rows top weights": summary.top_k.weights,
        "rows entropy alone": matrix.entropy(),
        "rows distance alone": matrix.distance(),
        "rows of the matrix": matrix[...],
        "received alone": matrix.received(),
        "pool alone": matrix.pool(min(rows, 3), min(kv_len, 2)),
    }


def compared(group: Any, how: str = "gather") -> dict[str, float]:
    found = {}
    for place, name in enumerate(NAMES):
        call = CALLS[name]
        tensors, options = call.tensors(), call.options()
        query, key, vectors = tensors["query"], tensors["key"], tensors["grad"]
        query_len, kv_len = query.shape[-2], key.shape[-2]
        layout = ("balanced", "contiguous", "zigzag")[place % 3]
        of_queries = ch.across(group, tokens=query_len, layout=layout, how=how)
        of_keys = ch.across(
            group, tokens=kv_len, layout="contiguous" if how == "gather" else layout, how=how
        )
        whole = ch.AttentionMatrix(query, key, **options)
        pair = of_queries, of_keys
        mine = ch.AttentionMatrix(
            of_queries.shard(query), of_keys.shard(key), **options, across=pair
        )
        truth = statistics(whole, kv_len, query_len)
        for each, actual in statistics(mine, kv_len, query_len).items():
            expected = truth[each]
            if each.startswith("rows"):
                axis = 2
                expected = of_queries.shard(expected, axis)
            assert actual.shape == expected.shape, (name, each)
            found[f"{name}, {each}"] = _apart(actual, expected)
        held = of_queries.shard(vectors)
        found[f"{name}, transposed"] = _apart(mine.mT @ held, whole.mT @ vectors)
        found[f"{name}, product"] = _apart(
            mine @ tensors["value"], of_queries.shard(whole @ tensors["value"])
        )
        options = {"top_k": 1, "pool": (1, 1), "segments": torch.arange(kv_len) % 2}
        gathered = mine.summary(**options).gather(of_queries)
        for place, (actual, expected) in enumerate(
            zip(tensors_of(gathered), tensors_of(whole.summary(**options)), strict=True)
        ):
            found[f"{name}, gathered summary {place}"] = _apart(actual, expected)
        if query_len == kv_len:
            for head in ("mean", 1):
                expected = ch.reading.rollout([whole, whole], head=head, output=[-1, 0])
                actual = ch.reading.rollout([mine, mine], head=head, output=[-1, 0])
                found[f"{name}, rollout of {head}"] = _apart(actual, expected)
    found |= of_gradients(group, CALLS["window"], how)
    return found


def compared_in_a_ring(group: Any) -> dict[str, float]:
    return compared(group, "ring")


def of_gradients(group: Any, call: Call, how: str) -> dict[str, float]:
    tensors, options = call.tensors(), call.options()
    given = {"query": tensors["query"], "key": tensors["key"], "vectors": tensors["grad"]}
    toward = torch.randn(*tensors["query"].shape[:3], 3, dtype=torch.float64)
    where = ch.across(group, tokens=toward.shape[2], layout="zigzag", how=how)

    def grads(across: Any) -> dict[str, Tensor]:
        share = (lambda tensor: tensor) if across is None else across.shard
        leaves = {name: share(tensor).requires_grad_() for name, tensor in given.items()}
        matrix = ch.AttentionMatrix(leaves["query"], leaves["key"], **options, across=across)
        loss = ((matrix.mT @ leaves["vectors"]) * toward).sum()
        if across is not None:
            loss = loss / across.world  # every rank has the whole
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    truth = grads(None)
    return {
        f"gradient of {name}": _apart(grad, where.shard(truth[name]))
        for name, grad in grads(where).items()
    }


def _apart(actual: Tensor, expected: Tensor) -> float:
    same = (actual == expected) | (actual - expected).abs().le(1e-13)
    return 0.0 if bool(same.all()) else float((actual - expected).abs().max())


@pytest.mark.parametrize(("world", "how"), [(3, compared), (2, compared_in_a_ring)])
def test_statistics_are_those_of_one_process(world: int, how: Any) -> None:
    for found in ranks.run(world, how):
        assert len(found) > 170
        assert not {name: apart for name, apart in found.items() if apart}


class Widest(TorchDispatchMode):
    """Counts the rows of the longest tensor of some width that an operation makes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.rows = width, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            # What is expanded has no numbers.
            if isinstance(each, Tensor) and each.shape[-1:] == (self.width,) and each.stride(-1):
                self.rows = max(self.rows, each.numel() // self.width)
        return made


def rounds_of_a_ring(group: Any) -> dict[str, Any]:
    """Keys in a ring: the blocks that are held, and numbers of every kind."""
    generator, width, tokens = torch.Generator().manual_seed(0), 13, 101
    query, key = torch.randn(2, 1, 2, tokens, width, generator=generator, dtype=torch.float64)
    where = ch.across(group, tokens=tokens, layout="zigzag", how="ring")
    mine, mine_key = where.shard(query), where.shard(key)
    with Widest(width) as held:
        matrix = ch.AttentionMatrix(mine, mine_key, mask=ch.causal(), across=where)
        matrix.entropy()
    found: dict[str, Any] = {"no rank has all keys": held.rows <= 2 * max(where.counts)}
    # A NaN in one key, and one behind the mask of all but the last query.
    broken, shares = key.clone(), list[float]()
    broken[0, 0, 7], broken[0, 1, -1] = torch.nan, torch.inf
    value = torch.randn(1, 2, tokens, 3, generator=generator, dtype=torch.float64)
    options: dict[str, Any] = {"mask": ch.causal(), "sinks": torch.tensor([0.5, -1.0]).double()}
    asked: dict[str, Any] = {"top_k": 60, "value": value, "segments": torch.arange(tokens) % 2}
    for name, keys, dtype in (("broken", broken, None), ("half", key, torch.bfloat16)):
        given = [each if dtype is None else each.to(dtype) for each in (query, keys)]
        if dtype is not None:
            options["sinks"] = options["sinks"].float()
            asked["value"] = value.to(dtype)
        whole = ch.AttentionMatrix(*given, **options).summary(**asked)
        part = ch.AttentionMatrix(*map(where.shard, given), **options, across=where)
        summary = part.summary(**asked, progress=shares.append).gather(where)
        eps = 1e-13 if dtype is None else 2e-2
        for field in ("entropy", "max", "max_score", "distance", "received", "context", "mass"):
            actual, expected = getattr(summary, field), getattr(whole, field)
            same = torch.allclose(actual, expected, rtol=0, atol=eps, equal_nan=True)
            found[f"{name} {field}"] = same and actual.dtype == expected.dtype
        assert summary.top_k is not None
        assert whole.top_k is not None
        found[f"{name} top_k"] = torch.allclose(
            summary.top_k.weights, whole.top_k.weights, rtol=0, atol=eps, equal_nan=True
        )
    found["progress"] = shares[-1] == 1.0 and all(0 < each <= 1 for each in shares)
    return found


def test_the_keys_of_a_ring_stay_where_they_are() -> None:
    for found in ranks.run(3, rounds_of_a_ring):
        assert found == dict.fromkeys(found, True)


def parts_of_a_matrix(group: Any) -> list[Any]:
    call = CALLS["causal"]
    query, key = call.tensors()["query"], call.tensors()["key"]
    where = ch.across(group, tokens=query.shape[2], layout="zigzag", how="ring")
    matrix = ch.AttentionMatrix(
        where.shard(query), where.shard(key), mask=ch.causal(), across=where
    )
    whole = ch.AttentionMatrix(query, key, mask=ch.causal())
    before = whole.diagonal(-1)[..., where.positions[where.positions > 0] - 1]
    found: list[Any] = [
        repr(matrix),
        _apart(matrix.diagonal(-1), before),
        _apart(matrix[..., 2, :], whole[..., int(where.positions[2]), :]),
        matrix._repr_html_(),
    ]
    for refused in (
        lambda: ch.roles(matrix),
        lambda: matrix.plot(),
        lambda: matrix.to_html("nowhere.html"),
    ):
        try:
            refused()
        except ch.errors.UnsupportedError as error:
            found.append(str(error))
    return found


def test_a_part_of_a_matrix_says_so() -> None:
    found = ranks.run(2, parts_of_a_matrix)[1]
    assert found[0] == (
        "AttentionMatrix [batch=2, num_heads=8, query_len=18, kv_len=37] of query_len=37 mask=causal()"
    )
    assert found[1:4] == [0.0, 0.0, None]
    assert [text.split(" needs")[0] for text in found[4:]] == [
        f"[across.whole] {verb}" for verb in ("roles", "plot", "to_html")
    ]
    assert found[4].endswith(
        "needs the queries of all ranks; this matrix has 18 of 37. Gather query and key, and make it "
        "without across=."
    )
