"""The statistics of a matrix in two launches of kernels of Triton, in place of a sweep over chunks.

Nothing of Triton is imported before a pass is asked for. TRITON_INTERPRET=1 runs the kernels on the CPU, operation
by operation, which is how they are tested.
"""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import NamedTuple

import torch
import torch.nn.functional as F

from clearhead.attention.kernels.flex import of_runs
from clearhead.attention.problem import Problem
from clearhead.masks.tiles import portions
from clearhead.matrix.distances import Distance, Near
from clearhead.matrix.reductions import (
    Context,
    Entropy,
    Largest,
    LogSumExp,
    Mass,
    Maximum,
    MaxScore,
    OfKey,
    Pooled,
    Received,
    Reduction,
)
from clearhead.matrix.triton_launches import WIDEST, Launches, is_interpreted, parts_of

NAME = "triton"
SUMMARY = "every statistic by two kernels of Triton, on CUDA; memory grows with tokens"

MOST_LARGEST = 64
"""The most of the largest weights: they are held beside the sums."""

MAP_NUMBERS = 1 << 26
"""The numbers of a map of queries × bins of keys that are there at a time."""

PER_QUERY = (LogSumExp, Entropy, Maximum, MaxScore, Distance, Near)
"""The kinds of numbers of a query, in the order in which the kernel writes them; two keys' weights follow."""


class AskedOfWeights(NamedTuple):
    """The weights, and what is asked about them."""

    problem: Problem
    reductions: Sequence[Reduction]

    def describe(self) -> str:
        return self.problem.describe()


def refusals(asked: AskedOfWeights) -> list[str]:
    """Why this pass cannot answer, a line each; empty if it can."""
    problem = asked.problem
    if not (problem.query.is_cuda or (is_interpreted() and problem.query.is_cpu)):
        return [f"it is compiled for CUDA; the tensors are on {problem.device}"]
    return limits(asked)


def limits(asked: AskedOfWeights) -> list[str]:
    """Why this pass cannot answer on any device."""
    problem, reductions = asked
    reasons = []
    if find_spec("triton") is None:
        reasons.append("Triton is not installed: pip install triton")
    if problem.part is not None:
        reasons.append("tokens that ranks share: it goes over all keys of one device")
    if problem.query.dtype == torch.float64:
        reasons.append("float64: a GPU has no fast products of it")
    values = [each.value.shape[3] for each in reductions if isinstance(each, Context)]
    widest = max([problem.query.shape[3], *values])
    if widest > WIDEST:
        reasons.append(f"wide heads: up to {WIDEST}; got {widest}")
    if not problem.query.shape[:3].numel() or not problem.kv_len or 0 in values:
        reasons.append("an empty axis: there is nothing to launch for")
    if parts_of(problem.bias) is None and problem.bias is not None:
        reasons.append(
            f"bias: it takes a tensor, alibi and relative, one of each; got {problem.bias.describe()}"
        )
    reasons += _about(reductions)
    return reasons + of_runs(problem, "tiles")


def _about(reductions: Sequence[Reduction]) -> list[str]:
    """What of the statistics it cannot answer."""
    known = (*PER_QUERY, OfKey, Received, Largest, Context, Mass, Pooled)
    others = [type(each).__name__ for each in reductions if type(each) not in known]
    reasons = [f"statistics that it has not: {', '.join(others)}"] if others else []
    for kind, most in ((Near, 1), (OfKey, 2), (Largest, 1), (Context, 1)):
        count = sum(isinstance(each, kind) for each in reductions)
        if count > most:
            reasons.append(f"{kind.__name__}: up to {most} in a pass; got {count}")
    ks = [each.k for each in reductions if isinstance(each, Largest)]
    if ks and max(ks) > MOST_LARGEST:
        reasons.append(f"the k largest weights: up to {MOST_LARGEST}; got {max(ks)}")
    return reasons


def defers(asked: AskedOfWeights) -> list[str]:
    """Why another way is to be preferred to this one, where both can."""
    return ["nobody has measured it on a device yet: it runs where it is asked for by name"]


def how(asked: AskedOfWeights) -> str:
    """Describe a pass, in a line."""
    where = "interpreted, on the CPU" if asked.problem.query.is_cpu else "compiled"
    return f"two launches of kernels of Triton, {where}: the rows, and what each key receives"


def run(asked: AskedOfWeights, progress: Callable[[float], None] | None = None) -> None:
    """Fill every reduction with what it asks for."""
    problem, reductions = asked
    with torch.no_grad():
        launches = Launches(problem)
        contexts = [each for each in reductions if isinstance(each, Context)]
        numbers, largest = launches.rows(
            near=next((each.reach for each in reductions if isinstance(each, Near)), 0),
            wanted=[each.keys for each in reductions if isinstance(each, OfKey)],
            k=next((each.k for each in reductions if isinstance(each, Largest)), 0),
            value=contexts[0].value if contexts else None,
            context=contexts[0].result if contexts else None,
        )
        picked = iter(numbers[len(PER_QUERY) :])
        for each in reductions:
            if isinstance(each, PER_QUERY):
                each.result = numbers[PER_QUERY.index(type(each))]
            elif isinstance(each, OfKey):
                each.result = next(picked)
            elif isinstance(each, Received):
                each.result = launches.columns(numbers[3], numbers[2])
            elif isinstance(each, Largest):
                assert largest is not None
                each.weights, each.keys = largest
            elif isinstance(each, Mass):
                launches.values(each.member[:, None], each.result, is_member=True)
            elif isinstance(each, Pooled):
                _pool(launches, each)
    if progress is not None:
        progress(1.0)


def _pool(launches: Launches, pooled: Pooled) -> None:
    """Weights times the bins of the keys, as many bins at a time as fit; then the bins of the queries."""
    problem, count = launches.problem, pooled.sums.shape[3]
    fitting = MAP_NUMBERS // problem.query.shape[:3].numel()
    for some in portions(count, min(64, max(16, fitting))):
        member = F.one_hot(pooled.column_bins, count)[:, some].to(pooled.dtype)[None, None]
        weights = member.new_empty(*problem.query.shape[:3], member.shape[3])
        launches.values(member, weights, is_member=True)
        pooled.sums[..., some].index_add_(2, pooled.row_bins.to(problem.device), weights.double())
