"""The data of a figure of attention: the inputs of its stages, as JSON."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.checks import as_int
from clearhead._text import shown
from clearhead.drawing.labels import words_of
from clearhead.errors import (
    ArgumentError,
    ArgumentTypeError,
    SelectionError,
    TooLargeError,
    UnsupportedError,
)
from clearhead.tracing.traced_call import Trace

MOST_NUMBERS = 64 * 64
"""Of a stage that a figure draws: each is a cell of its own."""

WEIGHTS = ("W_query", "W_key", "W_value")
ORDER = (
    *("x", "source", "W_query", "query", "split", "joined", "rotated_query"),
    *("W_key", "key", "rotated_key", "plane"),
    *("scores", "scaled_scores", "capped_scores", "mask", "masked_scores", "weights"),
    *("dropped_weights", "mean_weights", "W_value", "value", "context"),
)
"""In which panels stand; the values behind the weights, with which they are mixed. The plane is no stage: query
and keys of width 2 as arrows."""
CELLS = ("x", "source", *WEIGHTS, "query", "key", "value", "scores", "weights")
EDITABLE = (*(*CELLS, "mask", "scale", "width", "dropout", "order", "heads", "rotary"),)


class StageStart(NamedTuple):
    """The initial numbers of a stage of a figure, (rows, columns), with a label for each row and column."""

    name: str
    numbers: Tensor
    rows: list[str]
    columns: list[str]


class FigureData(NamedTuple):
    """The JSON of a figure, which its script reads, and its initial stages."""

    json: dict[str, Any]
    parts: list[StageStart]


class _OneHead(NamedTuple):
    """One sample and head of a trace."""

    trace: Trace
    sample: int
    head: int

    def stage(self, name: str) -> Tensor:
        """Return the numbers of a stage, (rows, columns), detached, on the CPU; KeyError if there is no such stage."""
        numbers, _ = self.trace._part(self.trace.steps[name], self.sample, self.head)
        return numbers.detach().to("cpu")

    def weight(self, name: str) -> Tensor | None:
        """Return this head's matrix of the projection `name` on the CPU, with the bias, if it has one, as last row.

        None if none was traced, if it has several parts, or if its input has another number of tokens than the stage.
        """
        made = self.trace.projections.get(name)
        if made is None or made.parts or made.input.shape[-2] != self.stage(name).shape[-2]:
            return None
        weight, bias = made.weight.detach(), made.bias
        if weight.ndim > 2:
            own = self.head * len(weight) // _count(self.trace, "num_heads")
            weight, bias = weight[own], None if bias is None else bias[own]
        if bias is not None:
            weight = torch.cat([weight, bias.detach()[None]])
        return weight.to("cpu")

    def visible(self) -> Tensor | None:
        """Return the pairs whose masked score is not −∞, bool, (queries, keys); None without a mask."""
        hidden = self.stage("masked_scores") == -math.inf
        return None if self.trace.mask is None else ~hidden

    def bias(self) -> Tensor | None:
        """Return what was added to the visible scores, float64, (queries, keys); None if it is 0 everywhere.

        Sums that are NaN count as 0.
        """
        before, after = self.stage("capped_scores").double(), self.stage("masked_scores").double()
        visible = self.visible()
        added = torch.where(after.isnan() | (before == after), 0.0, after - before)
        if visible is not None:
            added = added.masked_fill(~visible, 0.0)
        return added if bool((added != 0).any()) else None


def figure_data(
    trace: Trace,
    *,
    sample: int,
    head: int,
    show: Sequence[str] | None,
    edit: Sequence[str] | None,
    predict: tuple[str, int, int] | None,
    title: str,
) -> FigureData:
    """Return the data of a figure from a trace, or raise if it has no figure.

    `show` and `edit` of None take the usual stages; `predict` of None asks for no number.

    Raises:
        SelectionError: codes `figure.stage`, `figure.predict` and `trace.part`.
        ArgumentError: codes `figure.edit` and `figure.empty`.
        ArgumentTypeError: codes `figure.names` and `figure.predict`.
        TooLargeError: code `figure.size`.
        UnsupportedError: code `figure.stages`.

    Example:
        >>> x = torch.eye(2)
        >>> trace = ch.trace(ch.attend, x, x, x)
        >>> made = figure_data(
        ...     trace, sample=0, head=0, show=["weights"], edit=["query"], predict=None, title=""
        ... )
        >>> [part.name for part in made.parts], made.json["show"]
        (['query', 'weights'], ['query', 'weights'])
    """
    _check_kind(trace)
    for axis, index in (("batch", sample), ("num_heads", head)):
        count = _count(trace, axis)
        if as_int(index) is None or not 0 <= index < max(1, count):
            raise SelectionError(
                "trace.part", f"there are {count} along {axis}; got {shown(index)}."
            )
    part = _OneHead(trace, sample, head)
    weights = {name: part.weight(name) for name in ("query", "key", "value")}
    inputs: dict[str, Tensor] = {}
    if any(each is not None for each in weights.values()):
        inputs |= {name: part.stage(name) for name in ("x", "source") if name in trace}
    inputs |= {f"W_{name}": each for name, each in weights.items() if each is not None}
    inputs |= {name: part.stage(name) for name, each in weights.items() if each is None}
    numbers = inputs | {name: part.stage(name) for name in ("query", "key", "value")}
    numbers |= {name: part.stage(name) for name in stages.NAMES if name != "dropped_weights"}
    _check_names("edit", () if edit is None else edit)
    own = list(edit or ())
    if "dropout" in own:
        numbers |= dict.fromkeys(("dropped_weights", "mean_weights"), numbers["weights"])
    if "rotary" in own:
        numbers |= {f"rotated_{name}": numbers[name] for name in ("query", "key")}
    if "heads" in own:
        numbers |= _heads(numbers["query"])
    widths = None
    if "width" in own and "query" in inputs and "key" in inputs:
        widths = _widths(inputs.pop("query"), inputs.pop("key"))
    visible = part.visible()
    pairs = torch.ones_like(numbers["scores"], dtype=torch.bool) if visible is None else visible
    numbers["mask"] = pairs.double()
    projected = "W_query" in inputs
    if edit is None:
        edit = ("W_query" if projected else "query", "scores", "mask", "scale")
    if show is None:
        show = ("query", "key", "scores", "weights", "context")
        show = ("x", "W_query", *show) if projected else show
    flat = {"plane"} if numbers["query"].shape[-1] == 2 else set[str]()
    known = [name for name in ORDER if name in numbers or name in flat]
    if widths is not None:
        known = [name for name in known if name not in ("query", "key", "plane")]
    _check_names("show", show)
    for name in show:
        if name not in known:
            raise SelectionError(
                "figure.stage",
                f"there is no stage {shown(name)} in this figure; there are {', '.join(known)}.",
            )
    controls = _controls(trace, inputs, numbers)
    editable = [name for name in EDITABLE if name in (*known, *controls)]
    for name in edit:
        if name not in editable:
            raise ArgumentError(
                "figure.edit",
                f"{shown(name)} cannot be edited; in this figure {', '.join(editable)} can.",
            )
    asked = _asked(predict, numbers, [name for name in known if name not in ("mask", "plane")])
    drawn = ("dropped_weights", "mean_weights") if "dropout" in edit else ()
    split = ("query", "split", "joined") if "heads" in edit else ()
    wanted = {*show, *edit, *drawn, *split, *([asked[0]] if asked else [])}
    names = [name for name in known if name in wanted]
    sizes = {name: numbers[name].shape for name in (*names, *inputs) if name not in flat}
    check_sizes(sizes, "The page of a trace shows more: trace(…).to_html(file).")
    bias = part.bias()
    queries, keys = (
        [word or label for word, label in zip(words_of(labels), labels, strict=True)]
        for labels in (trace.tokens, trace.source_tokens)
    )
    made = {
        "title": title,
        "tokens": queries,
        "source_tokens": keys,
        "inputs": {name: _listed(each) for name, each in inputs.items()},
        "scale": trace.scale,
        "softcap": trace.softcap,
        "mask": None
        if visible is None
        else ["".join(map(str, row)) for row in pairs.int().tolist()],
        "bias": None if bias is None else _listed(bias),
        "show": names,
        "edit": [name for name in EDITABLE if name in edit],
        "predict": asked,
    }
    if widths is not None:
        made["widths"] = widths
    parts = [
        _labelled(name, numbers[name], trace, queries, keys) for name in names if name not in flat
    ]
    return FigureData(made, parts)


def _controls(trace: Trace, inputs: dict[str, Tensor], numbers: dict[str, Tensor]) -> Sequence[str]:
    """Return the names of the controls that this figure can have in addition to the mask.

    "scale" and "dropout" always; the others by the stages, sizes and tokens.
    """
    queries, keys = numbers["scores"].shape
    width = numbers["query"].shape[-1]
    as_given = not any(name in inputs for name in WEIGHTS)
    turned = any(each.parts for each in trace.projections.values())
    found = {
        "scale": True,
        "width": as_given and "rotated_query" not in numbers,
        "dropout": True,
        "order": queries == keys and "source" not in inputs and trace.tokens == trace.source_tokens,
        "heads": width > 1,
        "rotary": width % 2 == 0 and not turned,
    }
    return [name for name, there in found.items() if there]


def _widths(query: Tensor, key: Tensor) -> list[dict[str, Any]]:
    """Return {"width": n, "scores": query · key by `_listed`} for the first n = 2, 4, … and all dimensions."""
    width = query.shape[-1]
    sizes = [2**power for power in range(1, width.bit_length()) if 2**power < width]
    made = []
    for size in (*sizes, width):
        scores = query.double()[:, :size] @ key.double()[:, :size].T
        made.append({"width": size, "scores": _listed(scores.to(query.dtype))})
    return made


def _heads(query: Tensor) -> dict[str, Tensor]:
    """Return {"split": (heads · tokens, dim), "joined": the query} for the fewest heads ≥ 2, one if it is 1 wide."""
    tokens, width = query.shape
    count = next((each for each in range(2, width + 1) if width % each == 0), 1)
    split = query.view(tokens, count, width // count).transpose(0, 1)
    return {"split": split.reshape(-1, width // count), "joined": query}


def _count(trace: Trace, axis: str) -> int:
    """Return the number of samples ("batch") or heads ("num_heads") of a trace; 1 if it has no such axis."""
    step = trace.steps["query"]
    return dict(zip(step.axes, step.tensor.shape, strict=True)).get(axis, 1)


def _check_kind(trace: Trace) -> None:
    """Raise UnsupportedError, code `figure.stages`, for sinks, dropout, or a stage not of the definition.

    The stage `output` may be of any kind.
    """
    has = {
        "sinks": trace.sinks is not None,
        "dropout": bool(trace.dropout),
        "stages that are not those of the definition": not all(
            step.standard for step in trace.steps.values() if step.name != "output"
        ),
    }
    if any(has.values()):
        found = ", ".join(name for name, there in has.items() if there)
        raise UnsupportedError(
            "figure.stages",
            "a figure works out scores, scale, softcap, mask, bias, softmax and the weighted sum; "
            f"this attention has {found}. The page of a trace shows it: trace(…).to_html(file).",
        )


def _check_names(name: str, given: object) -> None:
    """Raise ArgumentTypeError, code `figure.names`, unless the argument `name` is a sequence and no string."""
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise ArgumentTypeError(
            "figure.names", f"{name} must be a sequence of names of stages; got {shown(given)}."
        )


def check_sizes(sizes: Mapping[str, Sequence[int]], instead: str) -> None:
    """Raise if a stage has more numbers than a figure holds, or none.

    Args:
        sizes: rows and columns of each.
        instead: the sentence of the error that says what shows more.

    Raises:
        TooLargeError: code `figure.size`.
        ArgumentError: code `figure.empty`.

    Example:
        >>> check_sizes({"scores": (64, 64)}, "Nothing shows more.")
    """
    for name, (rows, columns) in sizes.items():
        if rows * columns > MOST_NUMBERS:
            raise TooLargeError(
                "figure.size",
                f"{name} is {rows} × {columns} numbers; a figure holds {MOST_NUMBERS:,} of a stage to "
                f"touch. {instead}",
            )
        if not rows * columns:
            raise ArgumentError(
                "figure.empty", f"{name} is {rows} × {columns}: there is no number to touch."
            )


def _asked(
    predict: object, numbers: dict[str, Tensor], known: Sequence[str]
) -> tuple[str, int, int] | None:
    """Return stage, row and column of the number to predict, counted from 0; None if `predict` is None.

    Raises ArgumentTypeError for what is no triple, SelectionError for a stage or place that is not there, both with the
    code `figure.predict`. Negative places count from the end.
    """
    if predict is None:
        return None
    if not isinstance(predict, tuple | list) or len(predict) != 3:
        raise ArgumentTypeError(
            "figure.predict",
            f'predict must be a stage, a row and a column, as ("weights", 1, 0); got {shown(predict)}.',
        )
    name = predict[0]
    if name not in known:
        raise SelectionError(
            "figure.predict",
            f"predict asks for the stage {shown(name)}; there are {', '.join(known)}.",
        )
    places = []
    for axis, (given, length) in enumerate(zip(predict[1:], numbers[name].shape, strict=True)):
        place = as_int(given)
        if place is None or not -length <= place < length:
            which = ("rows", "columns")[axis]
            raise SelectionError(
                "figure.predict", f"{name} has {length} {which}; predict asks for {shown(given)}."
            )
        places.append(place % length)
    return name, places[0], places[1]


def _labelled(
    name: str, numbers: Tensor, trace: Trace, queries: list[str], keys: list[str]
) -> StageStart:
    """Return the numbers of a stage with a label for each row and column: tokens, or numbers of dimensions."""
    rows, columns = numbers.shape
    if name in WEIGHTS:
        source = "source" if name != "W_query" and "source" in trace else "x"
        width = trace[source].shape[-1]
        labels = [str(each) if each < width else "bias" for each in range(rows)]
    elif name == "split":
        labels = [f"{head} {word}" for head in range(rows // len(queries)) for word in queries]
    else:
        labels = keys if name in ("key", "rotated_key", "value", "source") else queries
    over_keys = name in ("mask", "mean_weights") or (name in stages.NAMES and name != "context")
    return StageStart(
        name, numbers, labels, keys if over_keys else [str(each) for each in range(columns)]
    )


def _listed(tensor: Tensor) -> dict[str, Any]:
    """Return a matrix as JSON: rows, columns, single (not float64) and flat numbers; NaN and ±∞ by name.

    Numbers that are not float64 have nine digits, which identify a float32 exactly.
    """
    rows, columns = tensor.shape
    single = tensor.dtype != torch.float64
    numbers = tensor.double().flatten().tolist()
    texts = [float(f"{each:.9g}") if single else each for each in numbers]
    plain = [each if math.isfinite(each) else _name(each) for each in texts]
    return {"rows": rows, "columns": columns, "single": single, "numbers": plain}


def _name(value: float) -> str:
    """Return the JavaScript name of NaN, ∞ or −∞, which JSON cannot hold."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
