"""The effect of each head: the change of a metric where that head alone is ablated."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from clearhead._common.hints import with_hints
from clearhead._common.lazy import drawing
from clearhead._common.rows import MeasuredRows
from clearhead._common.text import shown
from clearhead.editing.context_operations import Ablate
from clearhead.editing.edit import edit, is_like
from clearhead.errors import ArgumentError, ArgumentTypeError, EditError
from clearhead.watching.finding import check_layers

Progress = Callable[[int, int], None]
"""Called with the number of runs that are done, and of all."""


class Effect(NamedTuple):
    """The effect of one head, or of one layer.

    Attributes:
        layer: the path of the module that attends.
        head: which query head; None for all of the layer.
        metric: the metric with it ablated.
        change: the metric less the metric of the model as it is.
    """

    layer: str
    head: int | None
    metric: float
    change: float


class Effects(MeasuredRows[Effect]):
    """The effects of all heads, in the order of the layers: print them, iterate, take columns, sort, plot.

    Attributes:
        baseline: the metric of the model as it is.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2)
        >>> found = ch.effects(layer, torch.randn(1, 5, 8), lambda output: output.square().mean())
        >>> found.top(1)[0].change == found.top(1)[0].metric - found.baseline
        True
        >>> found.top(1)[0] == found.sort("change")[0] or found.top(1)[0] == found.sort("change")[-1]
        True
    """

    ROW = Effect
    BY = "change"
    DIGITS = 4

    def __init__(self, rows: Sequence[Effect], baseline: float) -> None:
        super().__init__(rows)
        self.baseline = baseline

    def _with(self, rows: Sequence[Effect]) -> Self:
        return type(self)(rows, self.baseline)

    def plot(self, *, ax: Any = None) -> Any:
        """Draw layers × heads with matplotlib, the change as a colour; returns the axes.

        Raises:
            MissingExtraError: if matplotlib is not installed.
            ArgumentTypeError: code `plot.axes`.
        """
        return drawing("figures").of_effects(self, ax=ax)

    @property
    def caption(self) -> str:
        """The metric of the model as it is."""
        return f"metric as it is: {self.baseline:.4f}"

    def __repr__(self) -> str:
        wide = max((len(row.layer) for row in self._rows), default=0)
        lines = [self.caption]
        for row in self._rows:
            head = "" if row.head is None else f"head {row.head:<3}  "
            lines.append(
                f"  {row.layer or '(the model)':{wide}}  {head}{row.metric:.4f}  ({row.change:+.4f})"
            )
        return "\n".join(lines)


@with_hints
def effects(
    model: nn.Module,
    inputs: object,
    metric: Callable[[Any], Tensor | float],
    over: Literal["heads", "layers"] = "heads",
    layers: Sequence[str | int] | None = None,
    *,
    progress: Progress | bool = True,
    strict: bool = False,
) -> Effects:
    """Ablate each head in turn and measure what a metric makes of it.

    The model runs once as it is and once for each head, without gradients, in the mode that it is
    in: `model.eval()` first, or dropout is in the numbers.

    Args:
        model: any PyTorch model that `edit` edits.
        inputs: what it is called with: a mapping of named arguments, a tuple, or one tensor.
        metric: makes a number of the model's output, such as a loss.
        over: "heads", or "layers" for all heads of a layer at once.
        layers: only these, as `edit[layer]` takes them; None for all that attend.
        progress: True writes a line on a terminal; or a function of the runs done and all runs.
        strict: True raises an error if something that was asked for attended in a way that cannot be
            edited, so that it has no row; else that is an `EditWarning`.

    Returns:
        `Effects`, a row for each head.

    Raises:
        ArgumentTypeError: codes `edit.model`, `effects.progress`, `layers.list`, and `effects.metric`, for a
            metric that makes no number.
        ArgumentError: code `over.value`.
        EditError: codes `edit.layers`, `effects.none`, if nothing attends in a way that can be
            edited, `edit.missing` with `strict`, and those of `edit`.

    Example:
        >>> import torch, clearhead as ch
        >>> model = torch.nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=2) for _ in "ab"))
        >>> found = ch.effects(model, torch.randn(1, 5, 8), lambda output: output.square().mean())
        >>> len(found), found[0].layer, found.top(1)[0].change != 0
        (4, '0', True)
    """
    if over not in ("heads", "layers"):
        raise ArgumentError("over.value", f'over must be "heads" or "layers"; got {shown(over)}.')
    if not callable(metric):
        raise ArgumentTypeError(
            "effects.metric", f"metric must make one number of an output; got {shown(metric)}."
        )
    if not isinstance(progress, bool) and not callable(progress):
        raise ArgumentTypeError(
            "effects.progress",
            "progress must be True, False, or a function of the runs done and all runs; got "
            f"{shown(progress)}.",
        )
    check_layers(layers)
    with torch.no_grad(), edit(model, strict=strict) as plain:
        chosen = None if layers is None else [plain.pattern(each) for each in layers]
        baseline = _number(metric(_call(model, inputs)))
    attended = {
        path: heads
        for path, heads in plain.attended.items()
        if chosen is None or any(is_like(path, each) for each in chosen)
    }
    if not attended:
        raise EditError(
            "effects.none",
            f"nothing in {type(model).__name__} that was asked for attends in a way that can be "
            "edited.",
        )
    plain.say_missing(["*"] if chosen is None else chosen, stacklevel=4)
    places: list[tuple[str, int | None]] = [
        (path, head)
        for path, heads in attended.items()
        for head in (range(heads) if over == "heads" else [None])
    ]
    report = _line if progress is True else progress or (lambda done, total: None)
    rows = []
    for done, (path, head) in enumerate(places):
        report(done, len(places))
        with torch.no_grad(), edit(model) as ablated:
            heads = slice(None) if head is None else (head,)
            ablated.add(path, "ablate", Ablate(heads))
            number = _number(metric(_call(model, inputs)))
        rows.append(Effect(path, head, number, number - baseline))
    report(len(places), len(places))
    return Effects(rows, baseline)


def _call(model: nn.Module, inputs: object) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def _number(metric: object) -> float:
    if isinstance(metric, Tensor) and metric.numel() == 1:
        metric = metric.detach().item()
    if not isinstance(metric, int | float) or math.isnan(metric):
        got = tuple(metric.shape) if isinstance(metric, Tensor) else metric
        raise ArgumentTypeError(
            "effects.metric", f"metric must make one number of an output; got {shown(got)}."
        )
    return float(metric)


def _line(done: int, total: int) -> None:
    """A line on a terminal that counts."""
    if sys.stderr.isatty():
        end = "\r" if done < total else "\r\x1b[K"
        print(f"effects: {done} of {total} runs", end=end, file=sys.stderr, flush=True)
