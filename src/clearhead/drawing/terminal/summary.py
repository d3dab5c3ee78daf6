"""What the heads of a layer do, in numbers, and which head to look at first.

All of it is read off weights that are there as a tensor, (num_heads, query_len, kv_len), with as
many queries as keys; it is for short texts.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.matrix.matrix import AttentionMatrix

HALF = 0.5
BYTES = re.compile(r"(\\x[0-9a-f]{2})+|<0x[0-9A-F]{2}>")


class Link(NamedTuple):
    """That one token attends to another.

    Attributes:
        head: which head.
        query: place of the token that attends.
        key: place of the token that is attended to.
        weight: share of the query's attention, 0 to 1.

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
        """How far apart the two are, in tokens."""
        return abs(self.query - self.key)


class LayerSummary(NamedTuple):
    """The numbers of each head of a layer; every tensor but the last is (num_heads,), float32.

    Attributes:
        entropy: −Σ weight · ln weight of a query, averaged over the queries; nats.
        focus: 1 − entropy / the most that entropy could be; 0 to 1. 0 is all tokens alike, 1 is one
            token only. The most is the mean of ln(keys that the query may see).
        distance: Σ weight · |query − key| of a query, averaged over the queries; tokens.
        first: share of all attention that goes to the first token; 0 to 1, as are the next three.
        itself: share that goes to the token itself.
        previous: share that the token before gets; the first query has none and is not counted.
        special: share that goes to special tokens, such as [CLS].
        strongest: for each head its strongest link between words, or None.
        farthest: for each head, of the links that take more than half of a word's attention, the
            one of the largest weight · distance, or None.
        visible: (tokens, tokens), bool: the pairs to which some head gives a weight; the others are
            taken for hidden by a mask.
    """

    entropy: Tensor
    focus: Tensor
    distance: Tensor
    first: Tensor
    itself: Tensor
    previous: Tensor
    special: Tensor
    strongest: tuple[Link | None, ...]
    farthest: tuple[Link | None, ...]
    visible: Tensor

    @property
    def num_heads(self) -> int:
        return self.entropy.shape[0]


def entropy(weights: Tensor) -> Tensor:
    """How spread the attention of each query is: −Σ weight · ln weight, in nats.

    0 is one key only; ln(kv_len) is all keys alike.

    Args:
        weights: (..., query_len, kv_len).

    Returns:
        (..., query_len).

    Example:
        >>> entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
        tensor([0.0000, 0.6931])
    """
    return torch.special.entr(weights).sum(dim=-1)


def mean_distance(weights: Tensor) -> Tensor:
    """How far away each query looks: Σ weight · |query − key|, in tokens.

    Args:
        weights: (..., tokens, tokens).

    Returns:
        (..., tokens).

    Example:
        >>> mean_distance(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
        tensor([0.0000, 0.5000])
    """
    place = torch.arange(weights.shape[-1], device=weights.device, dtype=weights.dtype)
    return (weights * (place[:, None] - place).abs()).sum(dim=-1)


def which_are_words(tokens: Sequence[str], special: Sequence[bool]) -> tuple[bool, ...]:
    """For each token whether it is a word or a part of one: it holds a letter or a digit, is not
    special, and no lone byte of a character either.

    Example:
        >>> which_are_words(["[CLS]", "it", "'", "##s", "<0xE2>"], [True] + [False] * 4)
        (False, True, False, True, False)
    """
    return tuple(
        not own and any(char.isalnum() for char in token) and not BYTES.fullmatch(token)
        for token, own in zip(tokens, special, strict=True)
    )


def summarise(
    matrix: AttentionMatrix, special: Sequence[bool], words: Sequence[bool]
) -> LayerSummary:
    """The numbers of each head of a layer that read one text.

    Args:
        matrix: [batch=1, num_heads, tokens, tokens].
        special: for each token whether it is one that the tokenizer added or reserves.
        words: for each token whether links from and to it are of interest.

    Raises:
        TooLargeError: code `matrix.too-large`, for a text too long for its weights to be in memory.

    Example:
        >>> import torch, clearhead as ch
        >>> uniform = ch.AttentionMatrix(torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 4, 8))
        >>> special = [True, False, False, True]
        >>> numbers = summarise(uniform, special, words=[not each for each in special])
        >>> float(numbers.entropy), float(numbers.focus), float(numbers.special)
        (1.3862..., 0.0, 0.5)
        >>> numbers.strongest
        (Link(head=0, query=1, key=2, weight=0.25),)
    """
    allowed = pairs_of_words(words).to(matrix.device)
    visible = torch.zeros(matrix.shape[-2:], dtype=torch.bool, device=matrix.device)
    columns: list[list[float]] = []
    strongest: list[Link | None] = []
    farthest: list[Link | None] = []
    for head in range(matrix.shape[1]):
        weights = matrix[0, head]
        visible |= weights > 0
        columns.append(_numbers(weights, special))
        link = next(iter(strongest_links(weights, allowed, 1)), None)
        far = _farthest(weights, allowed)
        strongest.append(link and link._replace(head=head))
        farthest.append(far and far._replace(head=head))
    most = float(visible.sum(dim=-1).clamp_min(1).log().mean())
    spread, distance, first, itself, previous, on_special = torch.tensor(columns).unbind(dim=1)
    focus = (1 - spread / most).clamp(0.0, 1.0) if most > 0 else torch.ones_like(spread)
    return LayerSummary(
        entropy=spread,
        focus=focus,
        distance=distance,
        first=first,
        itself=itself,
        previous=previous,
        special=on_special,
        strongest=tuple(strongest),
        farthest=tuple(farthest),
        visible=visible,
    )


def _numbers(weights: Tensor, special: Sequence[bool]) -> list[float]:
    """Entropy, distance, and shares on the first token, itself, the previous and special ones."""
    chosen = torch.tensor(special, dtype=torch.bool, device=weights.device)
    previous = weights.diagonal(offset=-1)
    return [
        float(entropy(weights).mean()),
        float(mean_distance(weights).mean()),
        float(weights[:, 0].mean()),
        float(weights.diagonal().mean()),
        float(previous.mean()) if previous.numel() else 0.0,
        float(weights[:, chosen].sum(dim=-1).mean()),
    ]


def pairs_of_words(words: Sequence[bool]) -> Tensor:
    """Which links are of interest: those between two different words, except to the first token.

    On the first token rest heads that have nothing to do
    (Xiao et al., 2024, https://arxiv.org/abs/2309.17453).

    Args:
        words: for each token whether links from and to it are of interest.

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
    """The largest weights of a head, from the largest on, as links of head 0.

    Args:
        weights: (tokens, tokens).
        allowed: (tokens, tokens), bool: the links to choose from.
        count: how many links at most.

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
    # Which of equal weights topk takes is left open; here the first comes first.
    places = (candidates >= least).nonzero()[:, 0]
    order = candidates[places].argsort(descending=True, stable=True)[:count]
    return [
        _link(weights, place) for place in places[order].tolist() if float(candidates[place]) > 0
    ]


def _farthest(weights: Tensor, allowed: Tensor) -> Link | None:
    """Of the links above one half in a head, (tokens, tokens), the one that reaches farthest."""
    strong = allowed & (weights > HALF)
    if not bool(strong.any()):
        return None
    queries, keys = strong.nonzero(as_tuple=True)
    best = int((weights[queries, keys] * (queries - keys).abs()).argmax())
    return _link(weights, int(queries[best]) * weights.shape[-1] + int(keys[best]))


def _link(weights: Tensor, place: int) -> Link:
    query, key = divmod(place, weights.shape[-1])
    return Link(0, query, key, float(weights[query, key]))


class Choice(NamedTuple):
    """The head to look at first.

    Attributes:
        layer: place of its layer.
        head: place of the head.
        link: the link for which it was chosen, or None.
    """

    layer: int
    head: int
    link: Link | None

    @property
    def reason(self) -> str:
        """Why it was chosen, in words."""
        if self.link is None:
            return "the most focused head; there are no links between words"
        if self.link.weight > HALF:
            return "the strong link between words that reaches farthest"
        return "the strongest link between words"


def head_to_show(layers: Sequence[LayerSummary]) -> Choice:
    """The head of a model that is worth a first look.

    Of the links between words that take more than half of a word's attention, it is the one of the
    largest weight · distance. If no link does, it is the strongest; if there are no links, the most
    focused head.

    Example:
        >>> import torch, clearhead as ch
        >>> still = ch.AttentionMatrix(torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8))
        >>> head_to_show([summarise(still, [False] * 3, [True] * 3)])
        Choice(layer=0, head=0, link=Link(head=0, query=0, key=1, weight=0.333...))
    """
    far = [(i, link) for i, layer in enumerate(layers) for link in layer.farthest if link]
    strong = [(i, link) for i, layer in enumerate(layers) for link in layer.strongest if link]
    if far:
        layer, link = max(far, key=lambda found: found[1].weight * found[1].distance)
        return Choice(layer, link.head, link)
    if strong:
        layer, link = max(strong, key=lambda found: found[1].weight)
        return Choice(layer, link.head, link)
    focus = [
        (float(f), i, head) for i, layer in enumerate(layers) for head, f in enumerate(layer.focus)
    ]
    _, layer, head = max(focus, key=lambda found: found[0])
    return Choice(layer, head, None)
