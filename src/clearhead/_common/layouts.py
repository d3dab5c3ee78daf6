"""Layouts: which rank holds which tokens.

A layout is an order of all tokens, rank after rank, and how many of them each rank has.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead._common.checks import check_tensor
from clearhead._text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError

LAYOUTS = ("balanced", "contiguous", "zigzag")

BALANCED = 0.01
"""The largest difference of two ranks in pairs, as a share of the mean, before chunks are made
smaller; the pairs of a mean query are always allowed."""


class RankLayout(NamedTuple):
    """The tokens of every rank.

    Attributes:
        order: int64, (tokens,): the tokens of rank 0, then those of rank 1, …
        counts: the number of tokens of each rank.
    """

    order: Tensor
    counts: tuple[int, ...]


def layout_of(
    layout: str | Sequence[Tensor], tokens: int, world: int, pairs: Callable[[], Tensor]
) -> RankLayout:
    """Return the layout that `layout` names, or the one in which each rank has the positions that it lists.

    It is that of `tokens` tokens on `world` ranks. "balanced" counts by the number of keys that each query sees,
    float64, (tokens,), which `pairs` returns; it is called for no other layout.

    Raises:
        ArgumentError: codes `across.layout` and `across.positions`.
        ArgumentTypeError: codes `across.layout`, and `layout.type` or `layout.layout` for positions not in dense
            tensors.
    """
    if isinstance(layout, str):
        if layout not in LAYOUTS:
            names = ", ".join(f'"{each}"' for each in LAYOUTS)
            raise ArgumentError(
                "across.layout",
                f"layout must be one of {names}, or a tensor of positions for each rank; got "
                f"{shown(layout)}.",
            )
        chunk = -(-tokens // max(1, world))
        if layout == "contiguous":
            return _dealt(tokens, world, chunk, torch.arange(world))
        if layout == "zigzag":
            edges = [tokens * place // (2 * world) for place in range(2 * world + 1)]
            runs = [torch.arange(*pair) for pair in itertools.pairwise(edges)]
            return _joined([torch.cat([runs[rank], runs[-1 - rank]]) for rank in range(world)])
        return _balanced(tokens, world, pairs())
    if not isinstance(layout, Sequence):
        raise ArgumentTypeError(
            "across.layout",
            "layout must be a name, or a tensor of positions for each rank; got "
            f"{type(layout).__name__}.",
        )
    return _given(layout, tokens, world)


def head_layout(num_heads: int, world: int) -> RankLayout:
    """Return the layout that shares `num_heads` heads among `world` ranks in their order, as evenly as possible.

    Example:
        >>> head_layout(7, 3).counts
        (2, 2, 3)
    """
    edges = [num_heads * rank // world for rank in range(world + 1)]
    return _joined([torch.arange(*pair) for pair in itertools.pairwise(edges)])


def key_heads(heads: Tensor, group_size: int) -> Tensor:
    """Return the key heads that some query heads read, each once if equally many of the query heads read each.

    Else one for each query head. `heads` must ascend; this is not checked. `group_size` query heads read a key head.

    Example:
        >>> key_heads(torch.arange(2, 6), 2), key_heads(torch.arange(1, 4), 2)
        (tensor([1, 2]), tensor([0, 1, 1]))
    """
    each = heads // group_size
    found, counts = each.unique_consecutive(return_counts=True)
    return found if bool((counts == counts[:1]).all()) else each


def _given(layout: Sequence[Tensor], tokens: int, world: int) -> RankLayout:
    """Return the layout of positions that the user passed, one tensor a rank.

    ArgumentTypeError for anything but dense 1-D tensors of whole numbers; ArgumentError unless there are `world`
    tensors and each token is in them once.
    """
    for each in layout:
        check_tensor("layout", each, "a tensor of positions")
        if each.ndim != 1 or each.dtype.is_floating_point or each.dtype == torch.bool:
            raise ArgumentTypeError(
                "across.layout",
                "positions must be whole numbers, (tokens of the rank,); got "
                f"{each.dtype} of shape {tuple(each.shape)}.",
            )
    found = _joined([each.long().cpu() for each in layout])
    whole = torch.equal(found.order.sort().values, torch.arange(tokens))
    if len(layout) != world or not whole:
        raise ArgumentError(
            "across.positions",
            f"the positions of {world} ranks must be each of 0 to {tokens - 1} once; got "
            f"{len(found.order)} of them, {len(found.order.unique())} different, from "
            f"{len(layout)} ranks.",
        )
    return found


def _joined(positions: list[Tensor]) -> RankLayout:
    """Return the layout in which rank r holds positions[r]."""
    order = torch.cat(positions) if positions else torch.zeros(0, dtype=torch.int64)
    return RankLayout(order, tuple(len(each) for each in positions))


def _balanced(tokens: int, world: int, pairs: Tensor) -> RankLayout:
    """Return the layout of equal chunks, as large as possible, in which the ranks have nearly the same number of pairs.

    Chunks shrink until two ranks differ by at most `BALANCED` of a mean rank, or by the pairs of a mean query, or a
    chunk is one token. `pairs` has the number of pairs of each token, (tokens,); `world` is the number of ranks.
    """
    enough = float(pairs.sum()) * max(BALANCED / world, 1 / max(1, tokens))
    rounds, chunk = 1, max(1, -(-tokens // world))
    while True:
        edges = torch.arange(0, tokens + chunk, chunk).clamp(max=tokens)
        running = torch.cat([pairs.new_zeros(1), pairs.cumsum(0)])
        weights = running[edges].diff()
        owner, loads = _dealt_by_weight(weights, world)
        spread = float(loads.max() - loads.min())
        if chunk == 1 or spread <= enough:
            return _dealt(tokens, world, chunk, owner)
        rounds *= 2
        chunk = max(1, -(-tokens // (rounds * world)))


def _dealt_by_weight(weights: Tensor, world: int) -> tuple[Tensor, Tensor]:
    """Return the rank of each chunk, int64, and the total weight of each rank, (world,).

    In rounds of `world` chunks, heaviest first, each rank gets one: the heaviest goes to the rank with the least.
    """
    loads = weights.new_zeros(world)
    owner = torch.zeros(len(weights), dtype=torch.int64)
    order = weights.argsort(descending=True, stable=True)
    for some in order.split(world):
        ranks = loads.argsort(stable=True)[: len(some)]
        owner[some] = ranks
        loads[ranks] += weights[some]
    return owner, loads


def _dealt(tokens: int, world: int, chunk: int, owner: Tensor) -> RankLayout:
    """Return the layout of `world` ranks in which chunk i of `chunk` neighbouring tokens belongs to rank owner[i]."""
    of_token = owner.repeat_interleave(chunk)[:tokens]
    order = of_token.argsort(stable=True)
    return RankLayout(order, tuple(torch.bincount(of_token, minlength=world).tolist()))
