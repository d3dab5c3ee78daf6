"""Scores: how well every query matches every key.

New here: the dot product of each pair, first for one query, then for all of them. Two loops do what
one matrix product does, `clearhead.stages.scores`, which the later rungs use.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ladder.checking import check_axes
from clearhead.ladder.dot_product import dot_product


def scores_of_query(
    query: Float[Tensor, " head_dim"], key: Float[Tensor, "kv_len head_dim"]
) -> Float[Tensor, " kv_len"]:
    """The score of one query with every key, one after the other.

    Args:
        query: (head_dim,).
        key: (kv_len, head_dim).

    Raises:
        ShapeError: code `rung.input`, if the shapes are others.

    Example:
        >>> from clearhead.ladder import EXAMPLE_EMBEDDINGS
        >>> scores_of_query(EXAMPLE_EMBEDDINGS[1], EXAMPLE_EMBEDDINGS)
        tensor([0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865])
    """
    check_axes("query", query, "head_dim")
    check_axes("key", key, "kv_len", "head_dim", head_dim=len(query))
    scores = torch.zeros(len(key), dtype=query.dtype, device=query.device)
    for j in range(len(key)):
        scores[j] = dot_product(query, key[j])
    return scores


def scores_by_loops(
    query: Float[Tensor, "query_len head_dim"], key: Float[Tensor, "kv_len head_dim"]
) -> Float[Tensor, "query_len kv_len"]:
    """The score of every query with every key: row i belongs to query i.

    Args:
        query: (query_len, head_dim).
        key: (kv_len, head_dim).

    Raises:
        ShapeError: code `rung.input`, if the shapes are others.

    Example:
        >>> from clearhead import stages
        >>> from clearhead.ladder import EXAMPLE_EMBEDDINGS as x
        >>> torch.allclose(scores_by_loops(x, x), stages.scores(x, x))
        True
    """
    check_axes("query", query, "query_len", "head_dim")
    check_axes("key", key, "kv_len", "head_dim", head_dim=query.shape[1])
    scores = torch.zeros(len(query), len(key), dtype=query.dtype, device=query.device)
    for i in range(len(query)):
        scores[i] = scores_of_query(query[i], key)
    return scores
