"""Figures of a matrix, of a summary, and of everything that a watch has seen."""

from collections.abc import Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor

from clearhead._common.checks import as_int, check_bool
from clearhead._text import shown
from clearhead.drawing.figures import head_grid, head_map, numbers
from clearhead.drawing.figures.cells import (
    Cells,
    check_cells,
    check_head,
    check_heads,
    check_kind,
    check_options,
    check_place,
    check_words,
)
from clearhead.drawing.figures.lettering import entitle, short_paths
from clearhead.drawing.figures.numbers import QUANTITIES, UNIT, bars
from clearhead.errors import ArgumentError, ArgumentTypeError, SelectionError, ShapeError
from clearhead.matrix.head_numbers import ROLES, head_averages, mean_over_queries, numbers_of_heads
from clearhead.matrix.head_view import HeadView
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.roles import summary_with_roles
from clearhead.matrix.summary import Summary
from clearhead.watching.seen import Seen

KINDS = ("map", *QUANTITIES, "received")

Weights = AttentionMatrix | Summary


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
    """Draw a matrix or a summary, and return its axes, or an array of axes for maps of several heads.

    Arguments and what it raises are those of `AttentionMatrix.plot`.
    """
    kind = check_kind(kind, KINDS)
    check_bool("log", log)
    used = {"map": ("source_tokens", "cells"), "received": ("source_tokens",)}.get(kind, ("cells",))
    check_options(kind, {"source_tokens": source_tokens, "cells": cells}, used)
    most = check_cells(cells)
    sample = check_place("sample", sample, weights.batch)
    single = weights.ndim < 3 if head is None else not isinstance(head, Sequence)
    known = numbers_of_heads(weights)
    one = None
    if single:
        one = 0 if head is None and known else check_head("head", head, known)
    heads = check_heads("head", head, known) if one is None else [one]
    rows, columns = check_words(tokens, source_tokens, weights.query_len, weights.kv_len)
    _check_something(weights)
    view = HeadView(weights, sample, heads)
    where = [f"sample {sample}"] * (weights.batch > 1)
    if kind == "map":
        if one is None and (rows is not None or columns is not None):
            raise ArgumentError(
                "plot.option",
                "tokens have no room in a grid of heads; leave them out, or choose one: head=3.",
            )
        map_cells = _cells(view, most, one is not None)
        if one is None:
            return head_grid.of_heads(map_cells, log=log, ax=ax)
        title = ", ".join([*where, *_head(one, weights)])
        return head_map.draw(
            map_cells, title=title, tokens=rows, source_tokens=columns, log=log, ax=ax
        )
    if kind == "received":
        shares, which = _received(view)
        title = ", ".join([*where, *which])
        return bars(shares, title=title, tokens=columns, log=log, ax=ax)
    most = most or numbers.MOST_CELLS
    if one is not None:
        title = ", ".join([*where, *_head(one, weights)])
        return numbers.line(view, kind, title=title, tokens=rows, log=log, most=most, ax=ax)
    values, names = view.statistic(kind), [f"head {number}" for number in view.numbers]
    labels = QUANTITIES[kind], "query", "padding"
    axes = numbers.strips(values, names, labels, tokens=rows, log=log, most=most, ax=ax)
    entitle(axes, ", ".join(where))
    return axes


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
    source_tokens: Sequence[str] | None = None,
    columns: int | None = None,
    width: float | None = None,
    ax: object = None,
) -> Any:
    """Draw all layers, and return axes, or an array of them for maps; arguments and errors are those of `Seen.plot`."""
    kind = check_kind(kind, KINDS)
    check_bool("log", log)
    pairs = isinstance(heads, Sequence) and any(isinstance(each, tuple) for each in heads)
    if kind == "map" and pairs:
        check_options(kind, {"layers": layers, "ax": ax}, ())
        most = check_cells(cells)
        _check_size("columns", as_int(columns), columns)
        _check_size("width", width, width)
        maps, titles = _of_chosen(seen, heads or (), sample or 0, most)
        rows, keys = check_words(tokens, source_tokens, maps[0].query_len, maps[0].kv_len)
        return head_grid.of_chosen(
            maps, titles, tokens=rows, source_tokens=keys, columns=columns, width=width, log=log
        )
    used = {"map": ("cells",), "received": ("tokens", "cells")}.get(kind, ())
    options = {"source_tokens": source_tokens, "columns": columns, "width": width}
    check_options(kind, {"tokens": tokens, "cells": cells} | options, used)
    most = check_cells(cells)
    names = _layers(seen, layers)
    if kind in QUANTITIES:
        return _numbers_by_layer(seen, names, kind, heads, sample, log, ax)
    # One matrix each; a module that attended several times says so, unless it is as many layers.
    layers_apart = [(path, *each) for path in names for each in seen.apart([path])]
    names = [name for _, name, _ in layers_apart]
    wholes: list[Weights] = [
        parts[0] if len(parts) == 1 else seen[path] for path, _, parts in layers_apart
    ]
    for weights in wholes:
        _check_something(weights)
    chosen = [check_heads("heads", heads, numbers_of_heads(weights)) for weights in wholes]
    place = [check_place("sample", sample or 0, weights.batch) for weights in wholes]
    short = short_paths(names)
    if kind == "map":
        maps = [
            _cells(HeadView(weights, row, some), most, False)
            for weights, row, some in zip(wholes, place, chosen, strict=True)
        ]
        return head_grid.of_layers(maps, short, log=log, ax=ax)
    lengths = sorted({weights.kv_len for weights in wholes})
    if len(lengths) > 1:
        raise ShapeError(
            "plot.lengths",
            f"layers side by side must have the same keys; got kv_len of {lengths}. "
            "Choose some: layers=[0, 1].",
        )
    words, _ = check_words(tokens, None, lengths[0], lengths[0])
    rows = [
        HeadView(weights, row, some).received()[0].detach().cpu().double()
        for weights, row, some in zip(wholes, place, chosen, strict=True)
    ]
    return numbers.strips(
        torch.stack(rows),
        short,
        (UNIT, "attended to (key)", "padding"),
        tokens=words,
        log=log,
        most=most or numbers.MOST_CELLS,
        ax=ax,
    )


def _check_size(name: str, number: Any, given: object) -> None:
    """Raise ArgumentError, code `plot.option`, unless a figure size is None or a positive, finite number.

    `number` is the size as a number, `given` as it was given.
    """
    if given is not None and (
        isinstance(given, bool) or not isinstance(number, int | float) or not 0 < number < inf
    ):
        raise ArgumentError(
            "plot.option", f"{name} must be a number above 0, or None; got {shown(given)}."
        )


def _of_chosen(
    seen: Seen[Any], heads: Sequence[Any], sample: int, most: int | None
) -> tuple[list[Cells], list[str]]:
    """Return the maps of heads of any layers, given as (layer, head) pairs, and a title for each.

    `most` is as in `_cells`, with its errors. Raises SelectionError for what is no pair or not there, ShapeError
    (`plot.lengths`) for layers of other lengths, and ArgumentError (`plot.empty`) for an empty layer.
    """
    maps: list[Cells] = []
    titles: list[str] = []
    for each in heads:
        if not isinstance(each, tuple) or len(each) != 2:
            raise SelectionError(
                "plot.part",
                "heads must be numbers of heads, or pairs of a layer and a head, such as "
                f"[(0, 2), (5, 1)]; got {shown(each)} among them.",
            )
        weights = seen[each[0]]
        _check_something(weights)
        row = check_place("sample", sample, weights.batch)
        place = check_head("heads", each[1], numbers_of_heads(weights))
        maps.append(_cells(HeadView(weights, row, [place]), most, False))
        titles.append(f"layer {seen.number(seen.path(each[0]))}, head {each[1]}")
    lengths = {(each.query_len, each.kv_len) for each in maps}
    if len(lengths) > 1:
        raise ShapeError(
            "plot.lengths",
            "heads side by side must have the same queries and keys; got (query_len, kv_len) of "
            f"{sorted(lengths)}.",
        )
    return maps, titles


def _layers(seen: Seen[Any], layers: Sequence[str | int] | None) -> list[str]:
    """Return the paths of the requested layers, given by path or number; None is all.

    Raises ArgumentTypeError or ArgumentError, code `plot.layers`, for no list or an empty one; SelectionError for a
    layer that is not in the record.
    """
    if layers is None:
        names = list(seen.layers)
    elif isinstance(layers, str | int) or not isinstance(layers, Sequence):
        raise ArgumentTypeError(
            "plot.layers", f"layers must be a list of paths or numbers; got {shown(layers)}."
        )
    else:
        names = [seen.path(layer) for layer in layers]
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
    """Draw the mean of the statistic or role `kind` for each head, layer by layer, and return the axes.

    It is the mean over the real queries of all calls. `heads` and `sample` of None are all. Raises SelectionError,
    `plot.part`, for no such head or sample, ArgumentError, `plot.empty`, for an empty layer.
    """
    layers, layers_apart = [], seen.apart(names)
    for _, parts in layers_apart:
        for weights in parts:
            _check_something(weights)
        layers.append(_mean(parts, kind, sample))
    known = [numbers_of_heads(parts[0]) for _, parts in layers_apart]
    most = max(known, key=len)
    chosen = [most[place] for place in check_heads("heads", heads, most)]
    if heads is not None:
        for each in known:
            check_heads("heads", heads, each)
    rows = [
        values[[each.index(head) for head in chosen if head in each]]
        for each, values in zip(known, layers, strict=True)
    ]
    return numbers.by_layer(
        rows,
        short_paths([name for name, _ in layers_apart]),
        chosen,
        QUANTITIES[kind],
        log=log,
        ax=ax,
    )


def _mean(parts: Sequence[Weights], kind: str, sample: int | None) -> Tensor:
    """Return the average of the statistic `kind` over a layer's calls, (num_heads,), float64; for a role its score.

    NaN for distance and previous in cross-attention. `sample` of None averages all samples; SelectionError for none
    such.
    """
    if sample is not None:
        sample = check_place("sample", sample, min(each.batch for each in parts))
    if kind in ("distance", "previous") and any(each.cross for each in parts):
        # Between two texts, no place is before another.
        return torch.full((parts[0].num_heads,), torch.nan, dtype=torch.float64)
    with torch.no_grad():
        if kind not in ROLES:
            return mean_over_queries(kind, parts, sample)
        known = [e if isinstance(e, Summary) else summary_with_roles(e) for e in parts]
        if sample is not None:
            known = [each.sample(sample) for each in known]
        return head_averages("", known).scores[kind]


def _cells(view: HeadView, most: int | None, one: bool) -> Cells:
    """Return the maps of the heads of a view as cells, with at most `most` cells a side, or the usual number if None.

    ArgumentError for a summary with `most`, or without a map. `one` says that a single head is drawn, larger.
    """
    if isinstance(view.weights, Summary):
        if most is not None:
            raise ArgumentError(
                "plot.option",
                "the map of a summary has the cells that it was made with; leave cells out.",
            )
        if view.weights.pooled is None:
            raise ArgumentError(
                "plot.kind",
                "this summary holds no map; A.summary(pool=(rows, columns)) keeps one. "
                f"There are {', '.join(KINDS[1:])}.",
            )
    usual = head_map.MOST_CELLS if one else head_grid.MOST_CELLS
    return Cells.of(view.maps(most or usual), view.numbers)


def _received(view: HeadView) -> tuple[Tensor, list[str]]:
    """Return the mean over query heads of what each key receives, (kv_len,), and the heads in words.

    These are a list of one text; [] if the weights have no axis of heads.
    """
    mean, members = view.received()
    weights = view.weights
    if len(members) == 1:
        return mean, _head(members[0], weights)
    if weights.heads is None and members == list(range(weights.num_heads)):
        return mean, [f"mean of {weights.num_heads} heads"]
    numbers = HeadView(weights, heads=members).numbers
    shared = ", which share their keys" if len(view.numbers) == 1 else ""
    return mean, [f"mean of heads {', '.join(map(str, numbers))}{shared}"]


def _head(place: int, weights: Weights) -> list[str]:
    """Return ["head n"], by its number in the layer, for a title; [] if the weights have no axis of heads."""
    return [f"head {numbers_of_heads(weights)[place]}"] if weights.ndim > 2 else []


def _check_something(weights: Weights) -> None:
    """Raise ArgumentError, code `plot.empty`, for weights with a dimension of size 0."""
    sizes = {name: getattr(weights, name) for name in ("batch", "num_heads", "query_len", "kv_len")}
    if min(*sizes.values(), weights.num_kv_heads) == 0:
        words = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise ArgumentError("plot.empty", f"there is nothing to draw: {words}.")
