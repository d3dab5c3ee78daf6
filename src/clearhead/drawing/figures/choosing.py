"""Figures of a matrix, of a summary, and of everything that a watch has seen."""

from collections.abc import Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor

from clearhead._common.checks import as_int
from clearhead._text import shown
from clearhead.drawing.figures import head_grid, head_map
from clearhead.drawing.figures.cells import (
    check_head,
    check_heads,
    check_kind,
    check_options,
    check_place,
    check_words,
)
from clearhead.drawing.figures.lettering import entitle, short_paths
from clearhead.drawing.figures.numbers import KEYS, QUANTITIES, RECEIVED, along, by_layer, strips
from clearhead.errors import ArgumentError, ArgumentTypeError, SelectionError, ShapeError
from clearhead.matrix.head_numbers import ROLES, head_averages, mean_over_queries, numbers_of_heads
from clearhead.matrix.head_view import HeadMaps, HeadView
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
    ax: object = None,
) -> Any:
    """Draw a matrix or a summary, and return its axes, or an array of axes for maps of several heads.

    Arguments and what it raises are those of `AttentionMatrix.plot`.
    """
    kind = check_kind(kind, KINDS)
    single = weights.ndim < 3 if head is None else not isinstance(head, Sequence)
    if kind in QUANTITIES:
        used = ("tokens", "ax")
    else:
        used = ("tokens", "source_tokens", "ax") if single or kind == "received" else ()
    options = {"tokens": tokens, "source_tokens": source_tokens, "ax": ax}
    check_options(kind, options, used)
    sample = check_place("sample", sample, weights.batch)
    heads = check_heads(
        "head", [head] if single and head is not None else head, numbers_of_heads(weights)
    )
    rows, columns = check_words(tokens, source_tokens, weights.query_len, weights.kv_len)
    _check_something(weights)
    view = HeadView(weights, sample, heads)
    where = [f"sample {sample}"] * (weights.batch > 1)
    if kind == "map" and not single:
        maps = _maps(view, head_grid.MOST_CELLS)
        titles = [f"head {number}" for number in view.numbers]
        places = [(maps, place) for place in range(len(titles))]
        return head_grid.draw_grid(places, titles, head_grid.columns_for(len(titles)))
    if kind == "received":
        shares, which = _received(view)
        title = ", ".join([*where, *which])
        return along(shares, RECEIVED, KEYS, title=title, tokens=columns, ax=ax)
    if not single:
        names = [f"head {number}" for number in view.numbers]
        labels = QUANTITIES[kind], "query", "padding"
        axes = strips(view.statistic(kind), names, labels, tokens=rows, ax=ax)
        entitle(axes, ", ".join(where))
        return axes
    title = ", ".join([*where, *_head(heads[0], weights)])
    if kind == "map":
        maps = _maps(view, head_map.MOST_CELLS)
        return head_map.draw(maps, title=title, tokens=rows, source_tokens=columns, ax=ax)
    numbers = view.statistic(kind)[0]
    return along(numbers, QUANTITIES[kind], "query", title=title, tokens=rows, ax=ax)


def of_seen(
    seen: Seen[Any],
    kind: str = "map",
    *,
    layers: Sequence[str | int] | None = None,
    heads: Sequence[Any] | None = None,
    sample: int | None = None,
    tokens: Sequence[str] | None = None,
    source_tokens: Sequence[str] | None = None,
    columns: int | None = None,
    width: float | None = None,
    ax: object = None,
) -> Any:
    """Draw all layers, and return axes, or an array of them for maps; arguments and errors are those of `Seen.plot`."""
    kind = check_kind(kind, KINDS)
    pairs = isinstance(heads, Sequence) and any(isinstance(each, tuple) for each in heads)
    words = {"tokens": tokens, "source_tokens": source_tokens}
    options = words | {"layers": layers, "columns": columns, "width": width, "ax": ax}
    if kind == "map" and pairs:
        check_options(kind, options, ("tokens", "source_tokens", "columns", "width"))
        _check_size("columns", as_int(columns), columns)
        _check_size("width", width, width)
        maps, titles = _of_chosen(seen, heads or (), sample or 0)
        rows, keys = check_words(tokens, source_tokens, maps[0].query_len, maps[0].kv_len)
        return head_grid.draw_grid(
            [(each, 0) for each in maps],
            titles,
            columns or head_grid.columns_for(len(maps)),
            tokens=rows,
            source_tokens=keys,
            width=width,
        )
    used = {"map": ("layers",), "received": ("layers", "tokens", "ax")}.get(kind, ("layers", "ax"))
    check_options(kind, options, used)
    names = _layers(seen, layers)
    if kind in QUANTITIES:
        return _numbers_by_layer(seen, names, kind, heads, sample, ax)
    # One matrix each; a module that attended several times says so, unless it is as many layers.
    layers_apart = [(path, *each) for path in names for each in seen.apart([path])]
    short = short_paths([name for _, name, _ in layers_apart])
    wholes: list[Weights] = [
        parts[0] if len(parts) == 1 else seen[path] for path, _, parts in layers_apart
    ]
    views = []
    for weights in wholes:
        _check_something(weights)
        chosen = check_heads("heads", heads, numbers_of_heads(weights))
        views.append(HeadView(weights, check_place("sample", sample or 0, weights.batch), chosen))
    if kind == "map":
        return _layers_by_heads(views, short)
    lengths = sorted({weights.kv_len for weights in wholes})
    if len(lengths) > 1:
        raise ShapeError(
            "plot.lengths",
            f"layers side by side must have the same keys; got kv_len of {lengths}. "
            "Choose some: layers=[0, 1].",
        )
    keys, _ = check_words(tokens, None, lengths[0], lengths[0])
    values = torch.stack([view.received()[0].detach().cpu().double() for view in views])
    return strips(values, short, (RECEIVED, KEYS, "padding"), tokens=keys, ax=ax)


def _layers_by_heads(views: Sequence[HeadView], names: Sequence[str]) -> Any:
    """Draw the heads of each view as a row of maps, and return the axes, None where a row has fewer than others.

    `names` are those of the rows. Raises ArgumentError for a summary without a map.
    """
    columns = max(len(view.heads) for view in views)
    places: list[tuple[HeadMaps, int] | None] = []
    titles: list[str] = []
    for view in views:
        maps, numbers = _maps(view, head_grid.MOST_CELLS), view.numbers
        rest = [None] * (columns - len(numbers))
        places += [*((maps, place) for place in range(len(numbers))), *rest]
        shown = numbers if view is views[0] or numbers != views[0].numbers else []
        titles += [f"head {number}" for number in shown] + [""] * (columns - len(shown))
    return head_grid.draw_grid(places, titles, columns, names=names).reshape(-1, columns)


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
    seen: Seen[Any], heads: Sequence[Any], sample: int
) -> tuple[list[HeadMaps], list[str]]:
    """Return the maps of heads of any layers, given as (layer, head) pairs, and a title for each.

    Raises SelectionError for what is no pair or not there, ShapeError (`plot.lengths`) for layers of other lengths,
    ArgumentError (`plot.empty`) for an empty layer, and as `_maps`.
    """
    maps: list[HeadMaps] = []
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
        maps.append(_maps(HeadView(weights, row, [place]), head_grid.MOST_CELLS))
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
    paths = short_paths([name for name, _ in layers_apart])
    return by_layer(rows, paths, chosen, QUANTITIES[kind], ax)


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


def _maps(view: HeadView, most: int) -> HeadMaps:
    """Return the maps of the heads of a view, with at most `most` cells a side; those of a summary are as they are.

    Raises ArgumentError, code `plot.kind`, for a summary without a map.
    """
    if isinstance(view.weights, Summary) and view.weights.pooled is None:
        raise ArgumentError(
            "plot.kind",
            "this summary holds no map; A.summary(pool=(rows, columns)) keeps one. "
            f"There are {', '.join(KINDS[1:])}.",
        )
    return view.maps(most)


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
