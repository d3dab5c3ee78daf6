"""Checks of the arguments of a figure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from clearhead._common.checks import as_int, as_place
from clearhead._text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError, SelectionError, ShapeError


def check_kind(kind: object, kinds: Collection[str]) -> str:
    """Return the kind of figure, after checking that it is one of `kinds`.

    Raises:
        ArgumentError: code `plot.kind`.
    """
    if not isinstance(kind, str) or kind not in kinds:
        raise ArgumentError(
            "plot.kind", f"kind must be one of {', '.join(kinds)}; got {shown(kind)}."
        )
    return kind


def check_options(kind: str, options: Mapping[str, Any], used: Collection[str]) -> None:
    """Raise if an option was given that a kind of figure does not use.

    Raises:
        ArgumentError: code `plot.option`.
    """
    for name, value in options.items():
        if value is not None and name not in used:
            raise ArgumentError(
                "plot.option", f"{name} has no meaning for kind={shown(kind)} here; leave it out."
            )


def check_place(name: str, place: object, count: int) -> int:
    """Return the index of a sample, or of a head of a mask, counted from 0; negative ones count from the end.

    Raises:
        SelectionError: code `plot.part`.
    """
    number = as_place(place, count)
    if number is None:
        raise SelectionError(
            "plot.part", f"{name} must be a whole number from 0 to {count - 1}; got {shown(place)}."
        )
    return number


def check_head(name: str, head: object, numbers: Sequence[int]) -> int:
    """Return the index of a head that is given by its number in the layer, or from the end.

    Raises:
        SelectionError: code `plot.part`.
    """
    number, count = as_int(head), len(numbers)
    if number is not None and number in numbers:
        return numbers.index(number)
    if number is None or not -count <= number < 0:
        raise SelectionError(
            "plot.part", f"{name} must be a whole number {_among(numbers)}; got {shown(head)}."
        )
    return number % count


def check_heads(name: str, heads: object, numbers: Sequence[int]) -> list[int]:
    """Return the indices of several heads, given by their numbers; None is all of them.

    Raises:
        SelectionError: code `plot.part`.
    """
    if heads is None:
        return list(range(len(numbers)))
    if not isinstance(heads, Sequence) or isinstance(heads, str) or not heads:
        raise SelectionError(
            "plot.part",
            f"{name} must be a whole number, or one or more of them, {_among(numbers)}; "
            f"got {shown(heads)}.",
        )
    return [check_head(name, head, numbers) for head in heads]


def _among(numbers: Sequence[int]) -> str:
    """Return the valid numbers of heads, in words."""
    if list(numbers) == list(range(len(numbers))):
        return f"from 0 to {len(numbers) - 1}"
    return f"among {', '.join(map(str, numbers))}, the heads that were kept"


def check_words(
    tokens: object, source_tokens: object, query_len: int, kv_len: int
) -> tuple[list[str] | None, list[str] | None]:
    """Return a word for each query and each key, or None; words of queries serve for as many keys.

    Raises:
        ArgumentTypeError: code `plot.tokens`, for what are no strings.
        ShapeError: code `plot.tokens`, for more or fewer of them.
    """
    words = _words("tokens", tokens, query_len, "query")
    if source_tokens is None and query_len == kv_len:
        return words, words
    return words, _words("source_tokens", source_tokens, kv_len, "key")


def _words(name: str, words: Any, count: int, of: str) -> list[str] | None:
    """Return the words for an axis as a list, None if none were given.

    Raises ArgumentTypeError for no list of strings, ShapeError for another number; code `plot.tokens`.
    """
    if words is None:
        return None
    is_list = isinstance(words, Sequence) and not isinstance(words, str)
    odd = [word for word in words if not isinstance(word, str)] if is_list else [words]
    if odd:
        raise ArgumentTypeError(
            "plot.tokens", f"{name} must be a list of strings; got {type(odd[0]).__name__}."
        )
    listed = list(words)
    if len(listed) != count:
        raise ShapeError(
            "plot.tokens", f"{name} must hold a word for each {of}, {count}; got {len(listed)}."
        )
    return listed
