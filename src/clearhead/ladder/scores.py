"""Scores: how well a query matches each key.

New here: the dot product (Luong et al., 2015, https://arxiv.org/abs/1508.04025, its "dot"), which is
large when two vectors are long and point the same way, 0 at a right angle, and negative when they
point apart. First of one pair, then of one query with every key, then of all pairs: two loops, for
which the later rungs have one matrix product, `clearhead.stages.scores`.
"""

import torch
from torch import Tensor

from clearhead._shapes import Float


def dot_product(a: Float[Tensor, " dim"], b: Float[Tensor, " dim"]) -> Float[Tensor, ""]:
    """Return the dot product of two vectors.

    The products of the numbers at equal places, added up, as `torch.dot` does.

    Example:
        >>> from clearhead.ladder import EXAMPLE_EMBEDDINGS
        >>> journey, your = EXAMPLE_EMBEDDINGS[1], EXAMPLE_EMBEDDINGS[0]
        >>> dot_product(journey, your)  # 0.55 · 0.43 + 0.87 · 0.15 + 0.66 · 0.89
        tensor(0.9544)
    """
    total = torch.zeros((), dtype=a.dtype, device=a.device)
    for left, right in zip(a, b, strict=True):
        total = total + left * right
    return total


def scores_of_query(
    query: Float[Tensor, " head_dim"], key: Float[Tensor, "kv_len head_dim"]
) -> Float[Tensor, " kv_len"]:
    """Return the score of one query with every key, one after the other.

    Example:
        >>> from clearhead.ladder import EXAMPLE_EMBEDDINGS
        >>> scores_of_query(EXAMPLE_EMBEDDINGS[1], EXAMPLE_EMBEDDINGS)
        tensor([0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865])
    """
    scores = torch.zeros(len(key), dtype=query.dtype, device=query.device)
    for j in range(len(key)):
        scores[j] = dot_product(query, key[j])
    return scores


def scores_by_loops(
    query: Float[Tensor, "query_len head_dim"], key: Float[Tensor, "kv_len head_dim"]
) -> Float[Tensor, "query_len kv_len"]:
    """Return the score of every query with every key: row i belongs to query i.

    Example:
        >>> from clearhead import stages
        >>> from clearhead.ladder import EXAMPLE_EMBEDDINGS as x
        >>> torch.allclose(scores_by_loops(x, x), stages.scores(x, x))
        True
    """
    scores = torch.zeros(len(query), len(key), dtype=query.dtype, device=query.device)
    for i in range(len(query)):
        scores[i] = scores_of_query(query[i], key)
    return scores
