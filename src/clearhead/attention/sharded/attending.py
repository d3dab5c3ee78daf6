"""`attend` over tokens that ranks share: the call is agreed on, then run by one of three methods."""

from types import ModuleType
from typing import Unpack

from torch import Tensor

from clearhead.attention.planning import observers, run
from clearhead.attention.problem import Options, Problem, ScoreOptions, make_problem
from clearhead.attention.sharded import by_gather, by_heads, by_ring
from clearhead.attention.sharded.sharded_call import ShardedCall, describe, make_call, read_across
from clearhead.errors import UnsupportedError, WatchError
from clearhead.sharding.dtensors import check_plain
from clearhead.sharding.matrix_part import MatrixPart

WAYS: dict[str, ModuleType] = {"gather": by_gather, "ring": by_ring, "heads": by_heads}


def attend_across(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    across: object,
    kernel: str,
    **options: Unpack[Options],
) -> Tensor:
    """Return the context of this rank's queries; arguments and errors are those of `attend`.

    The ranks first compare their calls, unless one process has all tokens.

    Raises:
        RankError: codes `across.rank`, `across.differ`, `across.lost`.
        UnsupportedError: code `across.refused`, for a method that cannot run the call.
        WatchError: code `watch.across`, while a model is watched.
    """
    of_queries, of_keys = read_across(across)
    if of_queries.is_whole and of_keys.is_whole:
        counts = of_queries.count, of_keys.count, of_keys.count
        if not all(_has_rows(each, n) for each, n in zip((query, key, value), counts, strict=True)):
            make_call(query, key, value, across, kernel, **options)  # which says what is wrong
        check_plain(query, (key, value), "across=")
        problem = make_problem(query, key, value, **options)
        return problem.restore(run(problem, kernel))

    def check() -> tuple[ShardedCall, str]:
        """Return the checked call and its description; raise if it cannot be run or a model is watched."""
        if observers:
            raise WatchError(
                "watch.across",
                "calls with across= are neither watched nor edited: each rank has a part of the matrix. "
                "AttentionMatrix(…, across=…) and layer.weights(x, across=…) give it.",
            )
        call = make_call(query, key, value, across, kernel, **options)
        refuse(call)
        return call, describe(call)

    call = of_queries.agree(check, query)
    return call.problem.restore(WAYS[of_queries.how].attend(call))


def _has_rows(tensor: object, count: int) -> bool:
    """Return True if an object is a tensor with `count` tokens in its second to last dimension."""
    return isinstance(tensor, Tensor) and tensor.ndim >= 2 and tensor.shape[-2] == count


def rows_across(
    query: Tensor, key: Tensor, across: object, **options: Unpack[ScoreOptions]
) -> Problem:
    """Return the problem of this rank's queries over all keys; its value is the key.

    In a ring the keys stay where they are: the problem has the rounds by which they come, and its key
    holds no data. Otherwise they are gathered. Every rank must call it.

    Raises:
        RankError: codes `across.rank`, `across.differ`, `across.lost`.
    """
    of_queries, of_keys = read_across(across)

    def check() -> tuple[ShardedCall, str]:
        """Return the checked call and its description."""
        call = make_call(query, key, key, across, **options)
        return call, f"matrix, {describe(call)}"

    call = of_queries.agree(check, query)
    is_ring = of_queries.how == "ring" and not of_queries.is_whole
    every = call.problem.key if is_ring else of_keys.gather_unchecked(call.key, 2, "keys")
    problem = call.part(call.problem.query, every, every, rows=of_queries.positions)
    rounds = by_ring.RingRounds(call) if is_ring else None
    return problem.replace(part=MatrixPart(sharding=of_queries, rounds=rounds))


def refuse(call: ShardedCall) -> None:
    """Raise UnsupportedError, code `across.refused`, with every reason, if the method of a call cannot run it."""
    how = call.of_queries.how
    reasons = [] if how == "gather" else WAYS[how].refusals(call)
    if reasons:
        lines = [f'how="{how}" cannot run this call.', *(f"  - {reason}" for reason in reasons)]
        lines.append('  how="gather" can.')
        raise UnsupportedError("across.refused", "\n".join(lines))
