"""The search for heads that look from this token to that one, and the layers and heads that are chosen."""

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead._common.checks import as_int, as_place, check_head_numbers
from clearhead._common.hints import with_hints
from clearhead._common.rows import MeasuredRows
from clearhead._text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError, SelectionError, WatchError
from clearhead.matrix.head_numbers import numbers_of_heads
from clearhead.matrix.indexing import as_indices, read_index
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.watching.missing import OTHERWISE, is_within


class HeadLink(NamedTuple):
    """The weight from a query to a key, by their places, in one head of a layer, which is named by its path."""

    layer: str
    head: int
    query: int
    key: int
    weight: float


class HeadLinks(MeasuredRows[HeadLink]):
    """The links between two tokens of all heads, the strongest first.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2)
        >>> with torch.no_grad(), ch.watch(layer) as seen:
        ...     output = layer(torch.randn(1, 3, 8))
        >>> seen.find(-1, 0)["weight"].equal(seen[0][0, :, 2, 0].sort(descending=True).values.double())
        True
    """

    ROW = HeadLink
    BY = "weight"
    DIGITS = 4


def links_of_heads(
    layer: str,
    matrix: AttentionMatrix,
    query: int | Tensor | None,
    key: int | Tensor | None,
    sample: int = 0,
) -> list[HeadLink]:
    """Return the link from a query to a key in each kept head, as one `HeadLink` a head.

    Of several queries or of any, it is the strongest, and of any key. The weights of several keys are summed; the
    first stands for them. Negative places count from the end. Heads whose weights are not finite are left out. Memory
    is that of a row or a column.

    Args:
        layer: the path of the module.
        matrix: its weights.
        query: a place, a bool tensor, (len,) or (batch, len), or None for any.
        key: the same for the keys.
        sample: the row of the batch.

    Raises:
        ArgumentTypeError: code `watch.find-type`, for a sample that is no whole number.
        SelectionError: codes `matrix.range`, and `watch.token` for a tensor without True.
        ShapeError: code `segments.shape`, for another number of keys.
    """
    if as_int(sample) is None:
        raise ArgumentTypeError(
            "watch.find-type", f"sample must be a whole number; got {shown(sample)}."
        )
    rows = _places(query, matrix.query_len, 2, sample)
    columns = _places(key, matrix.kv_len, 3, sample)
    if isinstance(key, Tensor):
        weights, columns = matrix.mass(key)[sample, :, rows, None], columns[:1]
    else:
        weights = matrix[sample, :, rows, columns]
    largest, at = weights.nan_to_num(-1.0).flatten(1).max(dim=-1)
    at = at.to(rows.device)
    places = zip(
        rows[at // len(columns)].tolist(), columns[at % len(columns)].tolist(), strict=True
    )
    return [
        HeadLink(layer, head, *place, float(weight))
        for head, place, weight in zip(numbers_of_heads(matrix), places, largest, strict=True)
        if weight >= 0  # a row that is not finite looks nowhere
    ]


def _places(given: int | Tensor | None, length: int, axis: int, sample: int) -> Tensor:
    """Return the chosen indices, int64, on the CPU: one, those that are True in a sample, or all for None.

    `axis` is that of the matrix, for messages. Raises SelectionError for a place that is not there or a tensor without
    True, ShapeError for one of another length.
    """
    if isinstance(given, Tensor):
        rows = torch.atleast_2d(given)
        given = rows[sample % len(rows)].nonzero()[:, 0]
    index, _ = read_index(slice(None) if given is None else given, length, axis)
    found = as_indices(index, length, torch.device("cpu"))
    if not len(found):
        raise SelectionError("watch.token", "a bool tensor must be True at a token; got none.")
    return found


@with_hints
def image_numbers(tokens: Sequence[str | int] | Tensor, image_token: str | int) -> Tensor:
    """Return the number of the image that each token is a patch of, int64, −1 for other tokens.

    `mass` and `summary` take them as sets of keys; `edit` and `Seen.find` take the patches of an image, `numbers == 0`.

    Args:
        tokens: strings or ids, (len,), or a tensor of ids, (len,) or (batch, len).
        image_token: the string or id that a model replaces by a patch, such as `processor.image_token_id`. There must
            be other tokens between images.

    Returns:
        (len,) or (batch, len).

    Example:
        >>> import torch, clearhead as ch
        >>> ch.reading.image_numbers(torch.tensor([1, 99, 99, 5, 99, 99]), 99)
        tensor([-1,  0,  0, -1,  1,  1])
    """
    equal: Any = tokens == image_token
    if not isinstance(tokens, Tensor):
        equal = [each == image_token for each in tokens]
    is_patch = torch.as_tensor(equal, dtype=torch.bool)
    starts = is_patch & ~nn.functional.pad(is_patch[..., :-1], (1, 0))
    numbers = starts.cumsum(dim=-1) - 1
    return numbers.masked_fill(~is_patch, -1)


def first_place(wanted: str, tokens: Sequence[str | int]) -> int | None:
    """Return the place of the first token that reads so, with or without spaces around it; None if there is none.

    Example:
        >>> first_place("be", ["to", " be", "or"]), first_place("not", ["to", " be"])
        (1, None)
    """
    words = (str(each) for each in tokens)
    return next((at for at, each in enumerate(words) if wanted in (each, each.strip())), None)


def place_of_token(
    side: str, wanted: str | int | Tensor | None, tokens: Sequence[str | int] | None
) -> Any:
    """Return the place of a token, given by its text, the first such; a place, a bool tensor and None are unchanged.

    Raises:
        ArgumentError: code `watch.find`, for a text where no tokens are known.
        ArgumentTypeError: code `watch.find-type`, for what is neither.
        SelectionError: code `watch.token`, for a token that is not there.
    """
    if wanted is None or (isinstance(wanted, Tensor) and wanted.dtype == torch.bool):
        return wanted
    number = as_int(wanted)
    if number is not None:
        return number
    if not isinstance(wanted, str):
        raise ArgumentTypeError(
            "watch.find-type",
            f"{side} must be a token as it reads, its place, a bool tensor, or None; got {shown(wanted)}.",
        )
    if tokens is None:
        raise ArgumentError(
            "watch.find",
            f"{side} {shown(wanted)} needs the tokens of the text: find(…, tokens=…), or a place.",
        )
    place = first_place(wanted, tokens)
    if place is None:
        raise SelectionError("watch.token", f"there is no token {shown(wanted)} in the text.")
    return place


def path_of_layer(layer: object, paths: Mapping[int, str]) -> str:
    """Return the path of a layer, given by its path or by its number in the model; −1 is the last of these.

    Args:
        layer: the path or the number.
        paths: of the layers that were watched, by the numbers that they have in the model, in order.

    Raises:
        SelectionError: code `watch.layer`, for one that did not attend, or that was not watched.

    Example:
        >>> path_of_layer(11, {11: "layers.11"}), path_of_layer(-1, {11: "layers.11"})
        ('layers.11', 'layers.11')
    """
    every = list(paths.values())
    if isinstance(layer, str) and layer in every:
        return layer
    number = as_int(layer)
    if number is not None and (number in paths or -len(every) <= number < 0):
        return paths[number] if number in paths else every[number]
    known = ", ".join(f"{at} ({path!r})" for at, path in paths.items())
    raise SelectionError(
        "watch.layer",
        f"layer {shown(layer)} of the model was not watched; these were: {known or 'none'}.",
    )


def check_layers(layers: object) -> None:
    """Check that `layers` is a list of layers, or None for all.

    Raises:
        ArgumentTypeError: code `layers.list`.
    """
    if isinstance(layers, str | bytes) or not isinstance(layers, Sequence | None):
        raise ArgumentTypeError(
            "layers.list",
            f"layers must be a list of paths and numbers, or None for all; got {shown(layers)}.",
        )


class ChosenLayers:
    """The modules that are watched: those of some paths or numbers, or all.

    Args:
        given: a glob of paths, a number, from the end if it is negative, a list of them, or None for all.

    Raises:
        ArgumentTypeError: code `layers.type`.
        ArgumentError: code `layers.value`.

    Example:
        >>> chosen = ChosenLayers(["encoder.*", 5])
        >>> chosen.has("encoder.0"), chosen.has("decoder.0", place=4), chosen.has("decoder.1", place=5)
        (True, False, True)
        >>> last = ChosenLayers([-1])
        >>> last.has("decoder.0", place=4, count=6), last.has("decoder.1", place=5, count=6)
        (False, True)
    """

    def __init__(self, given: object) -> None:
        """Read a choice of layers; ArgumentTypeError or ArgumentError, see the class, if it is none."""
        every: Sequence[object] = [given]
        if isinstance(given, Sequence) and not isinstance(given, str | bytes):
            every = given
        read = [each if isinstance(each, str) else as_int(each) for each in every]
        known = [each for each in read if each is not None]
        if given is not None and len(known) < len(read):
            raise ArgumentTypeError(
                "layers.type",
                'layers must be a glob of paths such as "encoder.*", a number, a list of them, or None for '
                f"all; got {shown(given)}.",
            )
        self.wanted = None if given is None else known
        self.globs = [each for each in known if isinstance(each, str)]
        self.numbers = [each for each in known if isinstance(each, int)]
        if given is not None and not known:
            raise ArgumentError(
                "layers.value",
                f"layers must hold globs or numbers, or be None for all; got {shown(given)}.",
            )

    def __str__(self) -> str:
        """Return what was chosen, for a message: " of 'encoder.*', 5", or "" for all."""
        return f" of {', '.join(map(shown, self.wanted))}" if self.wanted else ""

    def has(self, path: str, place: int | None = None, count: int | None = None) -> bool:
        """Return True for a module that is watched, by its path or its place among those that attend.

        Args:
            path: of the module.
            place: in the order in which they first attend.
            count: the number of modules that attend; None while more may follow, any of which a negative number may
                name.
        """
        if self.wanted is None or any(fnmatchcase(path, each) for each in self.globs):
            return True
        if place is None:
            return False
        if count is None:
            return place in self.numbers or min(self.numbers, default=0) < 0
        return place in self.numbers or place - count in self.numbers

    def check(self, model: str, attended: Collection[str]) -> None:
        """Refuse a glob or a number that none of the modules that attended has.

        Raises:
            WatchError: code `watch.layers`.
        """
        for each in self.wanted or ():
            if isinstance(each, int):
                there = as_place(each, len(attended)) is not None
                what = f"is number {shown(each)}, counted from {'0' if each >= 0 else 'the end'}"
            else:
                there = any(fnmatchcase(path, each) for path in attended)
                what = f"has a path like {shown(each)}"
            if not there:
                known = ", ".join(map(repr, attended))
                raise WatchError(
                    "watch.layers",
                    f"no module of {model} that attended {what}; these attended: {known}.",
                )


def read_heads(given: object) -> tuple[int, ...] | None:
    """Return the chosen heads as a tuple of distinct numbers, negative ones unchanged; None, for all, stays None.

    Raises:
        ArgumentTypeError: code `heads.type`.
        ArgumentError: code `heads.value`, for no number or a repeated one.

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
    return check_head_numbers(given, from_end=True)


def attending(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules with "Attention" in the name of their class, by path, except those around another such module.

    Classes whose names match `OTHERWISE` do not count.
    """
    named = {
        path: module
        for path, module in model.named_modules()
        if "Attention" in type(module).__name__ and not OTHERWISE.search(type(module).__name__)
    }
    return {
        path: module
        for path, module in named.items()
        if not any(other != path and is_within(other, path) for other in named)
    }
