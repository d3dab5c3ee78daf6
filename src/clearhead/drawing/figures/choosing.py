"""Which figure is drawn of a matrix, of a summary, and of all that was seen."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead._common.checks import check_bool
from clearhead.drawing.figures import head_grid, head_map, numbers, received
from clearhead.drawing.figures.cells import Cells, check_cells, of_pooled, of_weights
from clearhead.drawing.figures.checks import (
    check_kind,
    check_options,
    check_place,
    check_places,
    check_words,
)
from clearhead.drawing.figures.lettering import short_paths
from clearhead.drawing.figures.numbers import QUANTITIES
from clearhead.errors import ArgumentError, ArgumentTypeError, ShapeError
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.summary import Summary
from clearhead.watching.recording import real_queries
from clearhead.watching.seen import Seen

KINDS = ("map", *QUANTITIES, "received")

Weights = AttentionMatrix | Summary


class Sizes(NamedTuple):
    """What a matrix or a summary is the size of.

    Attributes:
        dims: how many axes its matrix has.
    """

    batch: int
    num_heads: int
    num_kv_heads: int
    query_len: int
    kv_len: int
    dims: int


def sizes(weights: Weights) -> Sizes:
    """The sizes of a matrix, or of the one that a summary is of.

    Example:
        >>> sizes(AttentionMatrix(torch.zeros(4, 3, 2), torch.zeros(2, 5, 2)))
        Sizes(batch=1, num_heads=4, num_kv_heads=2, query_len=3, kv_len=5, dims=3)
    """
    if isinstance(weights, AttentionMatrix):
        problem = weights.problem
        return Sizes(
            problem.batch,
            problem.num_heads,
            problem.num_kv_heads,
            problem.query_len,
            problem.kv_len,
            problem.dims,
        )
    entropy, got = _three(weights.entropy), _three(weights.received)
    return Sizes(
        batch=entropy.shape[0],
        num_heads=entropy.shape[1],
        num_kv_heads=got.shape[1],
        query_len=weights.query_len,
        kv_len=weights.kv_len,
        dims=weights.entropy.ndim + 1,
    )


def of_attention(
    weights: Weights,
    kind: str = "map",
    *,
    head: int | Sequence[int] | None = None,
    sample: int = 0,
    tokens: Sequence[str] | None = None,
    source_tokens: Sequence[str] | None = None,
    log: bool = False,
    cells: int | None = None,
    ax: object = None,
) -> Any:
    """What `plot` of a matrix or of a summary draws."""
    kind = check_kind(kind, KINDS)
    check_bool("log", log)
    size = sizes(weights)
    used = {"map": ("source_tokens", "cells"), "received": ("source_tokens",)}.get(kind, ("cells",))
    check_options(kind, {"source_tokens": source_tokens, "cells": cells}, used)
    most = check_cells(cells)
    sample = check_place("sample", sample, size.batch)
    single = size.dims < 3 if head is None else not isinstance(head, Sequence)
    one = None if not single else check_place("head", 0 if head is None else head, size.num_heads)
    heads = check_places("head", head, size.num_heads) if one is None else [one]
    rows, columns = check_words(tokens, source_tokens, size.query_len, size.kv_len)
    _check_something(size)
    where = [f"sample {sample}"] * (size.batch > 1)
    if kind == "map":
        if one is None and (rows is not None or columns is not None):
            raise ArgumentError(
                "plot.option",
                "tokens have no room in a grid of heads; leave them out, or choose one: head=3.",
            )
        map_cells = _cells(weights, size, sample, heads, most, one is not None)
        if one is None:
            return head_grid.of_heads(map_cells, log=log, ax=ax)
        title = ", ".join([*where, *_head(one, size)])
        return head_map.draw(
            map_cells, title=title, tokens=rows, source_tokens=columns, log=log, ax=ax
        )
    if kind == "received":
        of_all, which = _received(weights, size, one, heads)
        title = ", ".join([*where, *which])
        return received.bars(of_all[sample], title=title, tokens=columns, log=log, ax=ax)
    quantity = QUANTITIES[kind]
    values = _per_query(weights, kind)[sample]
    real = _real(weights)
    if real is not None:
        values = values.masked_fill(~real[sample], torch.nan)
    values = values[heads]
    most = most or numbers.MOST_CELLS
    if one is not None:
        title = ", ".join([*where, *_head(one, size)])
        return numbers.line(
            values[0], quantity, title=title, tokens=rows, log=log, most=most, ax=ax
        )
    title = ", ".join(where)
    return numbers.strips(
        values, heads, quantity, title=title, tokens=rows, log=log, most=most, ax=ax
    )


def of_seen(
    seen: Seen[Any],
    kind: str = "map",
    *,
    layers: Sequence[str | int] | None = None,
    heads: Sequence[int] | None = None,
    sample: int | None = None,
    tokens: Sequence[str] | None = None,
    log: bool = False,
    cells: int | None = None,
    ax: object = None,
) -> Any:
    """What `Seen.plot` draws."""
    kind = check_kind(kind, KINDS)
    check_bool("log", log)
    used = {"map": ("cells",), "received": ("tokens", "cells")}.get(kind, ())
    check_options(kind, {"tokens": tokens, "cells": cells}, used)
    most = check_cells(cells)
    names = _layers(seen, layers)
    if kind in QUANTITIES:
        return _numbers_by_layer(seen, names, kind, heads, sample, log, ax)
    # One matrix each; a module that attended several times says so.
    wholes: list[Weights] = [seen[name] for name in names]
    every = [sizes(weights) for weights in wholes]
    for size in every:
        _check_something(size)
    chosen = [check_places("heads", heads, size.num_heads) for size in every]
    place = [check_place("sample", sample or 0, size.batch) for size in every]
    short = short_paths(names)
    if kind == "map":
        maps = [
            _cells(weights, size, which, some, most, False)
            for weights, size, which, some in zip(wholes, every, place, chosen, strict=True)
        ]
        return head_grid.of_layers(maps, short, log=log, ax=ax)
    lengths = sorted({size.kv_len for size in every})
    if len(lengths) > 1:
        raise ShapeError(
            "plot.lengths",
            f"layers side by side must have the same keys; got kv_len of {lengths}. "
            "Choose some: layers=[0, 1].",
        )
    words, _ = check_words(tokens, None, lengths[0], lengths[0])
    rows = [
        _received(weights, size, None, some)[0][which]
        for weights, size, which, some in zip(wholes, every, place, chosen, strict=True)
    ]
    most = most or numbers.MOST_CELLS
    return received.by_layer(rows, short, tokens=words, log=log, most=most, ax=ax)


def _layers(seen: Seen[Any], layers: Sequence[str | int] | None) -> list[str]:
    """The paths of the layers that were asked for; each is looked up as `seen[…]` does."""
    if layers is None:
        names = list(seen.layers)
    elif isinstance(layers, str | int) or not isinstance(layers, Sequence):
        raise ArgumentTypeError(
            "plot.layers", f"layers must be a list of paths or numbers; got {layers!r}."
        )
    else:
        names = [seen._name(layer) for layer in layers]
    if not names:
        raise ArgumentError("plot.layers", "layers must be one or more; there is none.")
    return names


def _numbers_by_layer(
    seen: Seen[Any],
    names: Sequence[str],
    kind: str,
    heads: Sequence[int] | None,
    sample: int | None,
    log: bool,
    ax: object,
) -> Any:
    """Layers × heads: the mean over all queries that are no padding, of all calls."""
    layers = []
    for name in names:
        calls = seen.calls(name)
        for call in calls:
            _check_something(sizes(call))
        layers.append(_mean(calls, kind, sample))
    counts = [len(each) for each in layers]
    chosen = check_places("heads", heads, max(counts))
    rows = [each[[head for head in chosen if head < len(each)]] for each in layers]
    if heads is not None and min(counts) < max(counts):
        for count in counts:
            check_places("heads", heads, count)
    return numbers.by_layer(rows, short_paths(names), chosen, QUANTITIES[kind], log=log, ax=ax)


def _mean(calls: Sequence[Weights], kind: str, sample: int | None) -> Tensor:
    """The mean of a number over the queries that count, (num_heads,), float64."""
    total: Tensor | float = 0.0
    queries = 0
    for call in calls:
        size = sizes(call)
        samples = slice(None)
        if sample is not None:
            place = check_place("sample", sample, size.batch)
            samples = slice(place, place + 1)
        values = _per_query(call, kind)[samples].double()
        real = _real(call)
        counted = torch.ones(size.batch, size.query_len, dtype=torch.bool, device=values.device)
        counted = (counted if real is None else real)[samples]
        # A padded query may hold anything, a NaN as well.
        total = total + values.where(counted[:, None], 0.0).sum(dim=(0, 2)).cpu()
        queries += int(counted.sum())
    assert isinstance(total, Tensor)
    return total / max(1, queries)


def _cells(
    weights: Weights, size: Sizes, sample: int, heads: list[int], most: int | None, one: bool
) -> Cells:
    """The maps of some heads of a sample."""
    if isinstance(weights, AttentionMatrix):
        usual = head_map.MOST_CELLS if one else head_grid.MOST_CELLS
        return of_weights(weights, sample, heads, most or usual)
    if most is not None:
        raise ArgumentError(
            "plot.option",
            "the map of a summary has the cells that it was made with; leave cells out.",
        )
    if weights.pooled is None:
        raise ArgumentError(
            "plot.kind",
            "this summary holds no map; A.summary(pool=(rows, columns)) keeps one. "
            f"There are {', '.join(KINDS[1:])}.",
        )
    return of_pooled(weights.pooled, sample, heads, size.query_len, size.kv_len)


def _per_query(weights: Weights, kind: str) -> Tensor:
    """A number for each query, (batch, num_heads, query_len)."""
    with torch.no_grad():
        if isinstance(weights, Summary) or kind in ("first", "previous"):
            summary = weights if isinstance(weights, Summary) else weights.summary()
            found = getattr(summary, kind)
        else:
            found = {"entropy": weights.entropy, "distance": weights.distance, "max": weights.max}[
                kind
            ]()
    return _three(found)


def _received(
    weights: Weights, size: Sizes, one: int | None, heads: list[int]
) -> tuple[Tensor, list[str]]:
    """What each key gets, (batch, kv_len), as the mean over query heads, and over which."""
    with torch.no_grad():
        got = weights.received if isinstance(weights, Summary) else weights.received()
    group = size.num_heads // size.num_kv_heads
    # Heads that share a key are only known together.
    shared = sorted({head // group for head in heads})
    mean = _three(got)[:, shared].double().mean(dim=1) / group
    members = [head for each in shared for head in range(each * group, (each + 1) * group)]
    if len(members) == 1:
        return mean, _head(members[0], size)
    if members == list(range(size.num_heads)):
        return mean, [f"mean of {size.num_heads} heads"]
    if one is not None:
        return mean, [f"mean of heads {members[0]} to {members[-1]}, which share their keys"]
    return mean, [f"mean of heads {', '.join(map(str, members))}"]


def _real(weights: Weights) -> Tensor | None:
    """The queries that are no padding, (batch, query_len); None for all."""
    if isinstance(weights, Summary):
        return None if weights.real is None else torch.atleast_2d(weights.real)
    return real_queries(weights.problem)


def _head(head: int, size: Sizes) -> list[str]:
    return [f"head {head}"] if size.dims > 2 else []


def _three(tensor: Tensor) -> Tensor:
    """With batch and heads in front, of size 1 where they are missing."""
    return tensor.reshape((1,) * (3 - tensor.ndim) + tensor.shape)


def _check_something(size: Sizes) -> None:
    if min(size[:5]) == 0:
        raise ArgumentError(
            "plot.empty",
            f"there is nothing to draw: batch={size.batch}, num_heads={size.num_heads}, "
            f"query_len={size.query_len}, kv_len={size.kv_len}.",
        )
