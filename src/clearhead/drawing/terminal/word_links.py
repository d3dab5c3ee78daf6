"""The links between words that the heads of a short text make, and the head to look at first."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch

from clearhead.matrix.head_view import HeadView
from clearhead.matrix.links import (
    HALF,
    Link,
    TellingLink,
    pairs_of_words,
    strongest_links,
    telling_links,
)
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.roles import evenness, mean_weight, summary_with_roles
from clearhead.watching.table import HeadRow, rows_of

BYTES = re.compile(r"(\\x[0-9a-f]{2})+|<0x[0-9A-F]{2}>")


class LayerHeads(NamedTuple):
    """The heads of a layer that read one text.

    Attributes:
        rows: the numbers of each head, as a table has them.
        focus: 1 − the evenness of each head: 0 is all tokens alike, 1 is one token only.
        special: the share of each head on special tokens, such as [CLS]. Both are means over the queries with
            a choice, as the roles are.
        strongest: for each head its strongest link between words, or None.
        telling: for each head its link that other queries do not have, or None.
    """

    rows: tuple[HeadRow, ...]
    focus: tuple[float, ...]
    special: tuple[float, ...]
    strongest: tuple[Link | None, ...]
    telling: tuple[TellingLink | None, ...]


def which_are_words(tokens: Sequence[str], special: Sequence[bool]) -> tuple[bool, ...]:
    """Return, for each token, True if it is a word or a part of one.

    Such a token has a letter or a digit, is not special, and is not a single byte of a character.

    Example:
        >>> which_are_words(["[CLS]", "it", "'", "##s", "<0xE2>"], [True] + [False] * 4)
        (False, True, False, True, False)
    """
    return tuple(
        not own and any(char.isalnum() for char in token) and not BYTES.fullmatch(token)
        for token, own in zip(tokens, special, strict=True)
    )


def heads_of(matrix: AttentionMatrix, special: Sequence[bool], words: Sequence[bool]) -> LayerHeads:
    """Return the heads of a layer that read one text, with their links between words.

    Args:
        matrix: [batch=1, num_heads, tokens, tokens].
        special: True for each token that the tokenizer added or reserves.
        words: True for each token from and to which links are of interest.

    Raises:
        TooLargeError: code `matrix.too-large`, if the weights of a head do not fit in memory.

    Example:
        >>> even = ch.AttentionMatrix(torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 4, 8))
        >>> special = [True, False, False, True]
        >>> heads = heads_of(even, special, words=[not each for each in special])
        >>> heads.rows[0].entropy, heads.focus, heads.special
        (1.3862..., (0.0,), (0.5,))
        >>> heads.strongest
        (Link(head=0, query=1, key=2, weight=0.25),)
    """
    allowed = pairs_of_words(words).to(matrix.device)
    maps = HeadView(matrix).exact()
    places = [key for key, is_special in enumerate(special) if is_special]
    on_special = torch.tensor(places, dtype=torch.int64, device=matrix.device)
    strongest: list[Link | None] = []
    for head, weights in enumerate(maps.shares):
        link = next(iter(strongest_links(weights, allowed, 1)), None)
        strongest.append(link and link._replace(head=head))
    return LayerHeads(
        rows=tuple(rows_of("", [summary_with_roles(matrix)])),
        focus=tuple((1 - evenness(matrix)[0]).tolist()),
        special=tuple(mean_weight(matrix, on_special.expand(1, matrix.query_len, -1))[0].tolist()),
        strongest=tuple(strongest),
        telling=tuple(telling_links(maps.shares, allowed, maps.visible)),
    )


class Choice(NamedTuple):
    """The head to look at first.

    Attributes:
        layer: the number of its layer.
        head: the number of the head.
        link: the link for which it was chosen, or None.
    """

    layer: int
    head: int
    link: Link | None

    @property
    def reason(self) -> str:
        """The reason of the choice, as text for the screen."""
        if self.link is None:
            return "as the most focused head; there are no links between words"
        if self.link.weight > HALF:
            return "for a strong link that few other queries have"
        return "for the link between words that stands out most"


def head_to_show(layers: Sequence[LayerHeads]) -> Choice:
    """Return the head of a model to look at first, with the reason.

    It is the one with the link that stands out most, `telling_links`; if none does, the one with the
    strongest link; if there are no links, the most focused head, with a link of None.

    Example:
        >>> import torch, clearhead as ch
        >>> still = ch.AttentionMatrix(torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8))
        >>> head_to_show([heads_of(still, [False] * 3, [True] * 3)])
        Choice(layer=0, head=0, link=Link(head=0, query=0, key=1, weight=0.333...))
    """
    telling = [
        (link, i, head)
        for i, layer in enumerate(layers)
        for head, link in enumerate(layer.telling)
        if link
    ]
    strong = [(i, link) for i, layer in enumerate(layers) for link in layer.strongest if link]
    if telling:
        link, layer, head = max(telling, key=lambda found: found[0][:2])
        return Choice(layer, head, Link(head, link.query, link.key, link.weight))
    if strong:
        layer, link = max(strong, key=lambda found: found[1].weight)
        return Choice(layer, link.head, link)
    focus = [
        (focus, i, head) for i, layer in enumerate(layers) for head, focus in enumerate(layer.focus)
    ]
    _, layer, head = max(focus, key=lambda found: found[0])
    return Choice(layer, head, None)
