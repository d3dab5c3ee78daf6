"""The stages between the query and the key of one pair and its weight."""

from typing import NamedTuple

import torch

from clearhead import stages
from clearhead.attention.problem import Problem
from clearhead.matrix.parts import masked_scores


class PairStages(NamedTuple):
    """The stages of one pair.

    Attributes:
        query, key: (head_dim,) each, as they are multiplied: after positions and norms.
        score: their dot product.
        scaled: the score times the scale.
        capped: the scaled score, bent by the softcap.
        masked: with the bias added; −inf where the mask hides the key.
        logsumexp: of the masked scores of the query over all keys, and of the sink.
        weight: exp(masked − logsumexp).
    """

    query: tuple[float, ...]
    key: tuple[float, ...]
    score: float
    scaled: float
    capped: float
    masked: float
    logsumexp: float
    weight: float


def stages_of_pair(problem: Problem, sample: int, head: int, query: int, key: int) -> PairStages:
    """The stages of one pair of a problem; O(kv_len) numbers are formed.

    Example:
        >>> from clearhead.attention.problem import make_problem
        >>> eye = torch.eye(2)[None, None]
        >>> found = stages_of_pair(make_problem(eye, eye, eye, scale=1.0), 0, 0, 1, 1)
        >>> found.query, found.score, round(found.weight, 4)
        ((0.0, 1.0), 1.0, 0.7311)
    """
    group = problem.num_heads // problem.num_kv_heads
    one = problem.query[sample, head, query].detach()
    other = problem.key[sample, head // group, key].detach()
    axes = ([sample], [head], [query], range(problem.kv_len))
    places = [torch.tensor(list(axis), device=problem.device) for axis in axes]
    with torch.no_grad():
        score = stages.scores(one[None], other[None])
        scaled = stages.scaled_scores(score, problem.scale)
        capped = stages.capped_scores(scaled, problem.softcap)
        row = masked_scores(problem, *places)
        sinks = None if problem.sinks is None else problem.sinks[places[1]]
        weights = stages.weights(row, sinks)
        total = stages.logsumexp(row)
        if sinks is not None:
            total = torch.logaddexp(total, stages.upcast(sinks)[:, None])
    return PairStages(
        tuple(one.tolist()),
        tuple(other.tolist()),
        *(float(each) for each in (score, scaled, capped, row[..., key], total, weights[..., key])),
    )
