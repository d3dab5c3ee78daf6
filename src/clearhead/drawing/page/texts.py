"""The texts of a page, and where the queries and keys of a layer are in them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead._common.checks import is_number
from clearhead.drawing.labels import joined
from clearhead.errors import ArgumentTypeError, ShapeError

TITLE_TOKENS = 16
"""Number of tokens of a text in the title of its page."""


class PageText(NamedTuple):
    """The tokens of a text.

    Attributes:
        tokens: as a person reads them.
        ids: (len,), int64: equal for equal tokens.
    """

    tokens: tuple[str, ...]
    ids: Tensor


class TextOffset(NamedTuple):
    """The first token of queries or keys, and the index of its text, from 0; None without tokens."""

    text: int | None
    first: int


def read_text(name: str, given: Any, sample: int = 0) -> PageText:
    """Return tokens as strings, from strings, ids, or the row `sample` of ids (batch, len); an id n becomes "#n".

    Raises:
        ArgumentTypeError: code `page.tokens`, for anything else.

    Example:
        >>> read_text("tokens", ["to", "be", "to"])
        PageText(tokens=('to', 'be', 'to'), ids=tensor([0, 1, 0]))
        >>> read_text("tokens", [7, 8]).tokens
        ('#7', '#8')
    """
    if isinstance(given, Tensor) and given.ndim == 2 and 0 <= sample < len(given):
        given = given[sample]
    if isinstance(given, Tensor) and given.ndim == 1:
        given = given.tolist()
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        if all(isinstance(each, str) for each in given):
            known: dict[str, int] = {}
            ids = [known.setdefault(each, len(known)) for each in given]
            return PageText(tuple(given), torch.tensor(ids, dtype=torch.int64))
        if all(is_number(each) and int(each) == each for each in given):
            ids = [int(each) for each in given]
            return PageText(tuple(f"#{each}" for each in ids), torch.tensor(ids, dtype=torch.int64))
    raise ArgumentTypeError(
        "page.tokens",
        f"{name} must be strings or whole numbers, one for each token, or a tensor of ids of shape "
        f"(len,) or (batch, len); got {type(given).__name__}.",
    )


def offsets(
    layer: str,
    query_len: int,
    kv_len: int,
    tokens: int | None,
    source: int | None,
    *,
    cross: bool = False,
) -> tuple[TextOffset, TextOffset]:
    """Return which text the queries and keys of a layer belong to, 0 or 1 for the source, and their first token.

    A layer between two texts has the source's length of keys, and `cross` tells where both texts are of
    one length. Both are None without any text; where only the source is known, that of queries of
    another text is None.

    Args:
        layer: the path of the layer.
        query_len: the number of queries.
        kv_len: the number of keys.
        tokens: the number of tokens of the text; None if there is no text.
        source: the number of tokens of the source; None if there is no source.
        cross: True if the layer is known to be between two texts.

    Raises:
        ShapeError: code `page.lengths`, if it is of neither.

    Example:
        >>> offsets("decoder.self_attn", 1, 5, 5, 9)  # the newest token, behind a cache
        (TextOffset(text=0, first=4), TextOffset(text=0, first=0))
        >>> offsets("decoder.encoder_attn", 5, 5, 5, 5, cross=True)
        (TextOffset(text=0, first=0), TextOffset(text=1, first=0))
    """
    if tokens is None and source is None:
        return TextOffset(None, 0), TextOffset(None, 0)
    own = 0 if tokens is None else tokens
    if source is not None and kv_len == source:
        # The encoder of the source attends within it.
        if query_len == source and not cross and (own != source or layer.startswith("encoder")):
            return TextOffset(1, 0), TextOffset(1, 0)
        if query_len <= own and (own != source or cross):
            return TextOffset(0, 0 if query_len == own else own - query_len), TextOffset(1, 0)
        if tokens is None:
            return TextOffset(None, 0), TextOffset(1, 0)
    # What was generated last has not attended yet, so that there may be a token more than keys.
    if query_len <= kv_len <= own and own - kv_len <= 1:
        return TextOffset(0, kv_len - query_len), TextOffset(0, 0)
    given = f"{own} tokens" if source is None else f"{own} tokens and {source} source tokens"
    raise ShapeError(
        "page.lengths",
        f"tokens must be as many as the keys of {layer or 'the matrix'}, kv_len={kv_len}; got "
        f"{given}. For attention from one text to another give source_tokens as well.",
    )


def beginning(tokens: Sequence[str]) -> str:
    """Return the first 16 tokens of a text, as a text, with " …" if there are more."""
    return joined(tokens[:TITLE_TOKENS]) + (" …" if len(tokens) > TITLE_TOKENS else "")
