"""The search for heads that look from this token to that one, and the layers and heads that are chosen."""

from collections.abc import Sequence
from typing import NamedTuple

from clearhead._common.checks import as_int, check_head_numbers
from clearhead._common.text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError, SelectionError
from clearhead.matrix.matrix import AttentionMatrix


class HeadLink(NamedTuple):
    """The weight from a query to a key in one head of a layer, which is named by its path."""

    layer: str
    head: int
    query: int
    key: int
    weight: float


def links_of_heads(
    layer: str, matrix: AttentionMatrix, query: int | None, key: int | None, sample: int = 0
) -> list[HeadLink]:
    """Return the link from a query to a key in each head; of one of them, with None for the other, the
    strongest. A row or a column is computed, never the matrix."""
    if query is not None and key is not None:
        weights = matrix[sample, :, query, key]
        places = [(query, key)] * matrix.num_heads
    elif query is not None:
        weights, at = matrix[sample, :, query, :].nan_to_num(-1.0).max(-1)
        places = [(query, int(each)) for each in at]
    else:
        assert key is not None
        weights, at = matrix[sample, :, :, key].nan_to_num(-1.0).max(-1)
        places = [(int(each), key) for each in at]
    return [
        HeadLink(layer, head, *place, float(weight))
        for head, (place, weight) in enumerate(zip(places, weights, strict=True))
        if weight >= 0  # a row that is not finite looks nowhere
    ]


def first_place(wanted: str, tokens: Sequence[str | int]) -> int | None:
    """Return the place of the first token that reads so, with or without the spaces around it.

    Example:
        >>> first_place("be", ["to", " be", "or"]), first_place("not", ["to", " be"])
        (1, None)
    """
    words = (str(each) for each in tokens)
    return next((at for at, each in enumerate(words) if wanted in (each, each.strip())), None)


def place_of_token(
    side: str, wanted: str | int | None, tokens: Sequence[str | int] | None
) -> int | None:
    """Return the place of a token, given by its place or by how it reads; None for None.

    Raises:
        ArgumentError: code `watch.find`, for a text where no tokens are known.
        SelectionError: code `watch.token`, for a token that is not there.
    """
    if wanted is None:
        return None
    number = as_int(wanted)
    if number is not None:
        return number
    if tokens is None:
        raise ArgumentError(
            "watch.find",
            f"{side} {shown(wanted)} needs the tokens of the text: find(…, tokens=…), or a place.",
        )
    place = first_place(str(wanted), tokens)
    if place is None:
        raise SelectionError("watch.token", f"there is no token {shown(wanted)} in the text.")
    return place


def read_globs(given: object) -> tuple[str, ...] | None:
    """Return the globs of paths that layers are chosen by; None for all.

    Raises:
        ArgumentTypeError: code `layers.type`.
        ArgumentError: code `layers.value`.

    Example:
        >>> read_globs("encoder.*")
        ('encoder.*',)
    """
    if given is None:
        return None
    globs = [given] if isinstance(given, str) else given
    if not isinstance(globs, Sequence) or not all(isinstance(each, str) for each in globs):
        raise ArgumentTypeError(
            "layers.type",
            'layers must be a glob of paths such as "encoder.*", a list of them, or None for all; '
            f"got {shown(given)}.",
        )
    if not globs:
        raise ArgumentError("layers.value", "layers must hold a glob, or be None for all; got [].")
    return tuple(globs)


def read_heads(given: object) -> tuple[int, ...] | None:
    """Return the numbers of the heads that are chosen; None for all.

    Raises:
        ArgumentTypeError: code `heads.type`.
        ArgumentError: code `heads.value`.

    Example:
        >>> read_heads([0, 2])
        (0, 2)
    """
    if given is None:
        return None
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise ArgumentTypeError(
            "heads.type",
            f"heads must be a list of numbers of heads, or None for all; got {shown(given)}.",
        )
    return check_head_numbers(given)
