"""The stages between the query and the key of one pair and its weight."""

from typing import NamedTuple

import torch
from torch import Tensor

from clearhead import stages
from clearhead.attention.problem import Problem


class PairStages(NamedTuple):
    """The stages of one pair.

    Attributes:
        query, key: (head_dim,) each, as they are multiplied: after positions and norms.
        score: their dot product.
        scale: what it is multiplied by.
        scaled: the score times the scale.
        capped: the scaled score, bent by the softcap; None without a softcap.
        bias: what is added; None without a bias.
        masked: with the bias added; −inf where the mask hides the key.
        logsumexp: of the masked scores of the query over all keys, and of the sink.
        weight: exp(masked − logsumexp).
    """

    query: tuple[float, ...]
    key: tuple[float, ...]
    score: float
    scale: float
    scaled: float
    capped: float | None
    bias: float | None
    masked: float
    logsumexp: float
    weight: float


def stages_of_pair(problem: Problem, sample: int, head: int, query: int, key: int) -> PairStages:
    """Return the stages of one pair of a problem, given by its indices, detached; O(kv_len) numbers are formed.

    Example:
        >>> from clearhead.attention.problem import make_problem
        >>> eye = torch.eye(2)[None, None]
        >>> found = stages_of_pair(make_problem(eye, eye, eye, scale=1.0), 0, 0, 1, 1)
        >>> found.query, found.score, found.bias, round(found.weight, 4)
        ((0.0, 1.0), 1.0, None, 0.7311)
    """
    group = problem.num_heads // problem.num_kv_heads
    one = problem.query[sample, head, query].detach()
    keys = problem.key[sample, head // group].detach()
    queries = slice(query, query + 1)
    with torch.no_grad():
        visible = of_head(problem.visible(queries), sample, head)
        bias = of_head(problem.bias_block(queries), sample, head)
        # One product with all keys: that of a single pair would be summed in another order.
        scores = stages.scores(one[None], keys, problem.factor)
        scaled = stages.scaled_scores(scores, problem.scale)
        capped = stages.capped_scores(scaled, problem.softcap)
        row = stages.masked_scores(capped, bias, visible)
        sinks = None if problem.sinks is None else problem.sinks[head, None]
        weights = stages.weights(row[None], sinks)
        total = stages.logsumexp(row)
        if sinks is not None:
            total = torch.logaddexp(total, stages.upcast(sinks))
    return PairStages(
        query=tuple(one.tolist()),
        key=tuple(keys[key].tolist()),
        score=float(scores[0, key]),
        scale=problem.scale,
        scaled=float(scaled[0, key]),
        capped=None if problem.softcap is None else float(capped[0, key]),
        bias=None if bias is None else float(bias.expand_as(row)[0, key]),
        masked=float(row[0, key]),
        logsumexp=float(total),
        weight=float(weights[0, 0, key]),
    )


def of_head(tensor: Tensor | None, sample: int, head: int) -> Tensor | None:
    """Return the entry of one sample and head, (…), of a tensor (batch or 1, heads or 1, …).

    None if the tensor is None.
    """
    if tensor is None:
        return None
    return tensor[min(sample, len(tensor) - 1), min(head, tensor.shape[1] - 1)]
