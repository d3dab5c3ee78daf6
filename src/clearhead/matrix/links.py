"""The links of a head: its strongest, and the one between words that is worth a first look."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

SPECIAL = re.compile(r"[\[<].*[\]>]|\W*", re.DOTALL)
"""Tokens such as [CLS], </s> and punctuation, which are no words."""

HALF = 0.5
"""A link that takes more of a word's attention is strong."""

CHOICE = 5
"""A query that sees fewer keys, where others see more, gives each much of its attention."""

LEAST = 0.01
"""A link whose key others give nearly as much does not stand out."""

CANDIDATES = 64
"""The links of a head whose keys are looked at whole."""


class Link(NamedTuple):
    """A weight of one token on another.

    Attributes:
        head: the number of the head.
        query: the token that attends, from 0.
        key: the token that is attended to.
        weight: the share of the query's attention, 0 to 1.

    Example:
        >>> Link(head=3, query=10, key=2, weight=0.65).distance
        8
    """

    head: int
    query: int
    key: int
    weight: float

    @property
    def distance(self) -> int:
        """The distance between query and key, in tokens."""
        return abs(self.query - self.key)


class TellingLink(NamedTuple):
    """A link of a head, with how much it differs from other links.

    Attributes:
        contrast: its weight less the median weight on that key, of all other queries that see it; 0 to 1.
        score: of a strong link contrast · distance in tokens, of any other its contrast.
        strong: True above one half.
        query, key: the tokens.
        weight: the share of the query's attention, 0 to 1.
    """

    strong: bool
    score: float
    contrast: float
    query: int
    key: int
    weight: float


def telling_links(
    weights: Tensor, allowed: Tensor, visible: Tensor | None = None
) -> list[TellingLink | None]:
    """Return for each head its most distinctive link; None for a head without one.

    The contrast of a link is its weight less the median weight of the other queries on that key: a key that gets weight
    from every query says nothing about one of them. A link up to ½ must also exceed the even share of its query. Among
    the links above ½ the one of the largest contrast · distance is returned; if there is none, the one of the largest
    contrast. The contrast must exceed LEAST. Queries that see fewer than CHOICE keys, where others see more, have no
    link. NaN counts as 0.

    Args:
        weights: (heads, query_len, kv_len).
        allowed: (query_len, kv_len), bool: the links to choose from.
        visible: (heads or 1, query_len, kv_len), bool; None for all.

    Example:
        >>> weights = torch.full((1, 3, 3), 0.2)
        >>> weights[0, :, 1] = 0.6
        >>> weights[0, 0] = torch.tensor([0.0, 0.4, 0.6])
        >>> telling_links(weights, ~torch.eye(3, dtype=torch.bool))[0][3:]
        (0, 2, 0.6...)
    """
    heads, queries, keys = weights.shape
    if not weights.numel():
        return [None] * heads
    weights = weights.float().nan_to_num(0.0)
    seen, count = weights, torch.tensor(keys, device=weights.device)
    chosen = allowed & (weights > 0)
    if visible is not None:
        seen = weights.masked_fill(~visible, torch.nan)
        count = visible.sum(-1, keepdim=True)
        chosen &= visible & (count >= count.amax().clamp(max=CHOICE))
    # What looks at all keys alike says nothing of one, however few there are.
    chosen &= (weights * count > 1 + LEAST) | (weights > HALF)
    at = torch.arange(max(queries, keys), device=weights.device)
    apart = (at[:queries, None] + keys - queries - at[:keys]).abs()
    strong = (chosen & (weights > HALF)).flatten(1).any(-1)[:, None, None]
    reach = torch.where(strong, apart, 1.0)
    sizes = torch.where(chosen & ((weights > HALF) | ~strong), weights * reach, 0.0)
    # Medians are taken of the keys of the largest alone; less its median, no link is larger than it was.
    largest = sizes.flatten(1).topk(min(CANDIDATES, queries * keys))
    query, key = largest.indices // keys, largest.indices % keys
    others = seen.gather(2, key[:, None].expand(-1, queries, -1))
    others.scatter_(1, query[:, None], torch.nan)
    weight = weights.flatten(1).gather(1, largest.indices)
    contrast = weight - others.nanmedian(dim=1).values.nan_to_num(0.0)
    of_pair = reach.flatten(1).expand(heads, -1).gather(1, largest.indices)
    scores = torch.where((largest.values > 0) & (contrast > LEAST), contrast * of_pair, 0.0)
    # Of equal links the first comes first.
    best = torch.where(
        scores == scores.amax(-1, keepdim=True), largest.indices, queries * keys
    ).argmin(-1)
    return [
        TellingLink(
            bool(strong[head]),
            float(scores[head, place]),
            float(contrast[head, place]),
            int(query[head, place]),
            int(key[head, place]),
            float(weight[head, place]),
        )
        if scores[head, place] > 0
        else None
        for head, place in enumerate(best.tolist())
    ]


def telling_of_top(
    keys: Tensor, weights: Tensor, query_words: Tensor, key_words: Tensor
) -> list[TellingLink | None]:
    """Return for each head of a long text the most distinctive of its strongest links; None for a head without one.

    That is the one of the largest contrast · log2(distance); the contrast must exceed LEAST.
    The score is that of the head: the mean over its queries of the largest contrast · log2(distance). The first-token
    sink has no contrast, and the token before has no distance.

    Args:
        keys: (heads, query_len, ranks), the keys of the strongest links; -1 for none.
        weights: of the same shape; weights that are not listed count as 0.
        query_words: (query_len,), bool: the queries to choose from.
        key_words: (kv_len,), bool: the keys to choose from.

    Example:
        >>> keys = torch.tensor([[[0], [0], [0], [0]], [[0], [0], [1], [0]]])
        >>> words = torch.ones(4, dtype=torch.bool)
        >>> [link and (link.query, link.key) for link in telling_of_top(keys, torch.full((2, 4, 1), 0.9), words, words)]
        [None, None]
        >>> keys[1] = torch.tensor([[0], [1], [2], [1]])
        >>> telling_of_top(keys, torch.full((2, 4, 1), 0.9), words, words)[1][3:5]
        (3, 1)
    """
    queries, ranks = keys.shape[1:]
    weights = weights.float().nan_to_num(0.0)
    at = torch.arange(queries) + len(key_words) - queries
    causal = bool((keys <= at[:, None]).all())
    seen = (
        torch.arange(len(key_words), -1, -1).clamp(max=queries) if causal else torch.tensor(queries)
    )
    key_words = torch.cat([key_words, key_words.new_zeros(1)])
    found: list[TellingLink | None] = []
    for key, weight in zip(keys.flatten(1), weights.flatten(1), strict=True):
        listed = torch.where(key < 0, len(key_words) - 1, key)
        order = weight.argsort()
        order = order[listed[order].argsort(stable=True)]
        count = torch.bincount(listed, minlength=len(key_words))
        # The place of the median of the other queries among the listed weights of a key; the rest are 0 and come first.
        place = (seen - 2) // 2 - (seen - count)
        first = count.cumsum(0) - count
        median = torch.where(
            place >= 0, weight[order][(first + place).clamp(0, len(order) - 1)], 0.0
        )
        contrast = weight - median[listed]
        apart = (at.repeat_interleave(ranks) - key).abs()
        chosen = (
            (key >= 0)
            & (contrast > LEAST)
            & query_words.repeat_interleave(ranks)
            & key_words[listed]
        )
        scores = torch.where(chosen, contrast * apart.clamp(min=1).log2(), 0.0)
        best = int(scores.argmax()) if scores.numel() else 0
        if not scores.numel() or not scores[best] > 0:
            found.append(None)
            continue
        score = float(scores.view(queries, ranks).amax(1).mean())
        share, stands = float(weight[best]), float(contrast[best])
        found.append(TellingLink(share > HALF, score, stands, best // ranks, int(key[best]), share))
    return found


def are_words(tokens: Sequence[str]) -> Tensor:
    """Return which tokens are words, (len,), bool; False for special tokens such as [CLS] and for punctuation.

    Example:
        >>> are_words(["[CLS]", "it", "."]).tolist()
        [False, True, False]
    """
    return torch.tensor([SPECIAL.fullmatch(each) is None for each in tokens], dtype=torch.bool)


def pairs_of_words(words: Sequence[bool]) -> Tensor:
    """Return the links between two different words, except those to the first token: bool, (tokens, tokens).

    The first token is an attention sink (Xiao et al., 2024, https://arxiv.org/abs/2309.17453).

    Args:
        words: True for each token from and to which links are of interest.

    Returns:
        (tokens, tokens), bool.

    Example:
        >>> pairs_of_words([True, True, True]).int()
        tensor([[0, 1, 1],
                [0, 0, 1],
                [0, 1, 0]], dtype=torch.int32)
    """
    query = torch.tensor(words, dtype=torch.bool)
    key = query.clone()
    key[:1] = False
    return query[:, None] & key & ~torch.eye(len(words), dtype=torch.bool)


def strongest_links(weights: Tensor, allowed: Tensor, count: int) -> list[Link]:
    """Return the largest weights of a head, from the largest on, as links of head 0; [] if none is above 0.

    Args:
        weights: (tokens, tokens).
        allowed: (tokens, tokens), bool: the links to choose from.
        count: the most links.

    Example:
        >>> weights = torch.tensor([[0.9, 0.0, 0.1], [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]])
        >>> strongest_links(weights, pairs_of_words([True] * 3), count=2)
        [Link(head=0, query=2, key=1, weight=0.5), Link(head=0, query=1, key=2, weight=0.25)]
    """
    # A NaN is no link.
    candidates = torch.where(allowed & (weights > 0), weights, 0.0).flatten()
    if not candidates.numel():
        return []
    least = candidates.topk(min(count, candidates.numel())).values[-1]
    # topk may take any of equal weights; here the first comes first.
    places = (candidates >= least).nonzero()[:, 0]
    order = candidates[places].argsort(descending=True, stable=True)[:count]
    return [
        Link(0, place // weights.shape[-1], place % weights.shape[-1], weight)
        for place in places[order].tolist()
        if (weight := float(candidates[place])) > 0
    ]
