"""The effect of each head: the change of a metric where that head alone is ablated."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, cast

import torch
from torch import nn

from clearhead._common.checks import check_bool, check_choice
from clearhead._common.foreign_names import side_of
from clearhead._common.hints import with_hints
from clearhead._common.lazy import drawing
from clearhead._common.rows import MeasuredRows
from clearhead._text import shown
from clearhead.editing.activation_patching import (
    Heads,
    Patch,
    Patched,
    Runs,
    by_gradients,
    check_heads,
    contexts_in,
    head_of,
    patched_contexts,
)
from clearhead.editing.edit import followed, is_like
from clearhead.editing.layer_edit import Means
from clearhead.editing.measuring import (
    Metric,
    Progress,
    measured,
    number_of,
    reporter,
    until_interrupted,
)
from clearhead.errors import ArgumentError, EditError
from clearhead.watching.finding import check_layers
from clearhead.watching.stream import called


class Effect(NamedTuple):
    """The effect of one head, of one head at one position, or of one layer.

    Attributes:
        layer: the path of the module that attends.
        head: which query head; None for all of the layer.
        metric: the metric with it ablated, or patched.
        change: the metric less that of the run that is edited.
        position: of the query in the text; None for all.
        restored: the change as a share of that from the corrupt run to the clean one; None for an ablation.
        call: which call of the module, from 0; None for all.
    """

    layer: str
    head: int | None
    metric: float
    change: float
    position: int | None = None
    restored: float | None = None
    call: int | None = None


class Effects(MeasuredRows[Effect]):
    """The effects of all heads, in the order of the layers: print them, iterate, take columns, sort, plot.

    Attributes:
        baseline: the metric of the run that is edited: of the model as it is, or of the corrupt inputs.
        clean: the metric of the clean inputs that heads are patched from; None for ablations.

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

    def __init__(self, rows: Sequence[Effect], baseline: float, clean: float | None = None) -> None:
        super().__init__(rows)
        self.baseline, self.clean = baseline, clean

    def plot(self, *, ax: Any = None) -> Any:
        """Draw layers × heads with matplotlib, the change as a colour, or the share that is restored.

        With positions layers × positions, of each the head that changes most; returns the axes.

        Raises:
            MissingExtraError: if matplotlib is not installed.
            ArgumentTypeError: code `plot.axes`.
        """
        return drawing("figures").of_effects(self, ax=ax)

    @property
    def caption(self) -> str:
        """A line with the metric that rows are compared with, and with that of the clean run, if there is one."""
        if self.clean is None:
            return f"metric as it is: {self.baseline:.4f}"
        return f"metric corrupt: {self.baseline:.4f}, clean: {self.clean:.4f}"

    def __repr__(self) -> str:
        wide = max((len(row.layer) for row in self._rows), default=0)
        lines = [self.caption]
        for row in self._rows:
            head = "" if row.head is None else f"head {row.head:<3}  "
            head += "" if row.position is None else f"position {row.position:<5}  "
            head += "" if row.call is None else f"call {row.call:<3}  "
            share = "" if row.restored is None else f"  restored {row.restored:+.3f}"
            lines.append(
                f"  {row.layer or '(the model)':{wide}}  {head}{row.metric:.4f}  ({row.change:+.4f}){share}"
            )
        return "\n".join(lines)


By = Literal["head", "head,position", "call", "layer"]


class EffectOptions(TypedDict, total=False):
    """Options of `effects`: the heads to edit, and how to report."""

    layers: Sequence[str | int] | None
    heads: Heads | None
    mean: Means | None
    approximate: bool


@with_hints
def effects(
    model: nn.Module,
    clean: object,
    corrupt: object | Metric = None,
    metric: Metric | None = None,
    *,
    patch: Patch = "z",
    by: By = "head",
    progress: Progress | bool = True,
    **options: Unpack[EffectOptions],
) -> Effects:
    """Return the effect of each head on a metric, when the head alone is ablated, or patched from a clean run.

    With `corrupt` inputs the model runs on these, and each head in turn gets what it has for the `clean` inputs
    (activation patching: Vig et al., 2020, https://arxiv.org/abs/2004.12265). Runs are without gradients, in the mode
    that the model is in: `model.eval()` first, or dropout is in the numbers. A run begins at the block that is edited
    where those before it are functions of their arguments, so that they give again what they gave once; what they
    gave is kept, O(layers × tokens), and `metric` must read it from the output. Of short texts several edits are one
    run, on copies of the inputs, where all that the model takes and returns are rows of samples; an effect may then
    differ in its last digits from that of a run of its own.

    Args:
        model: any PyTorch model that `edit` edits.
        clean: what it is called with, a mapping of named arguments, a tuple, or one tensor.
        corrupt: others, of as many samples and tokens, that the model runs on; None ablates the heads of the clean
            run. A function in this place is the metric: `effects(model, clean, metric)`.
        metric: a function of the model's output that returns one number, such as a loss or a difference of two
            logits.
        patch: what the head gets from the clean run: its context ("z"), its weights ("pattern"), or the "value",
            "query" or "key" that it makes its context of.
        by: "head", "head,position" for each query by itself, "call" for a head in each call of its module by itself,
            or "layer" for all heads of a layer at once.
        layers: only these, as `edit[layer]` takes them; None for all that attend.
        heads: only these, (layer, head), or rows that name them, such as the `top` of other effects or what
            `Seen.find` has found; with "head,position", of rows that have a position just that one.
        mean: of an ablation, what heads get instead of 0, as `edit[layer].ablate` takes it.
        approximate: True estimates all effects by gradients, in one run and its backward pass: attribution patching
            (Nanda, 2023, https://www.neelnanda.io/mechanistic-interpretability/attribution-patching), exact for a
            metric that is linear in the context, such as that of a last layer without a norm.
        progress: True writes a line on a terminal, False nothing; or a function of the edits done and all edits.

    Returns:
        `Effects`, a row for each head; after Ctrl-C those that are done. An `EditWarning` lists what attended and
        cannot be edited. A head of a module that attends several times in a run, as where layers share it, is edited in
        all of its calls at once, unless `by` is "call".

    Raises:
        ArgumentTypeError: codes `edit.model`, `inputs.type`, `effects.progress`, `layers.list`, `approximate.type`,
            `effects.heads`, `mean.type`, and `effects.metric`, for a metric that makes no number.
        ArgumentError: codes `by.value`, `patch.value`, `effects.ablate` for a mean next to corrupt inputs, and
            `effects.heads` for heads where `by` has none.
        EditError: codes `edit.layers`, `edit.heads`, `effects.none`, if nothing attends in a way that can be
            edited, `effects.inputs` for clean and corrupt ones that do not fit, `effects.gradients`, and those
            of `edit`.

    Example:
        >>> import torch, clearhead as ch
        >>> model = torch.nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=2) for _ in "ab"))
        >>> clean, corrupt = torch.randn(2, 1, 5, 8)
        >>> found = ch.effects(model, clean, lambda output: output.square().mean())
        >>> len(found), found[0].layer, found.top(1)[0].change != 0
        (4, '0', True)
        >>> found = ch.effects(model, clean, corrupt, metric=lambda output: output.sum(), by="layer")
        >>> round(found[1].restored, 3)
        1.0
    """
    if metric is None and callable(corrupt):
        corrupt, metric = None, cast(Any, corrupt)
    patch = cast(Patch, side_of(str(patch)) or patch)
    check_choice("by", by, By)
    check_choice("patch", patch, Patch)
    done = reporter(progress)
    layers, mean = options.get("layers"), options.get("mean")
    approximate = options.get("approximate", False)
    check_layers(layers)
    check_bool("approximate", approximate)
    if mean is not None and corrupt is not None:
        raise ArgumentError(
            "effects.ablate",
            "mean= is what heads are ablated to, and with corrupt inputs they are patched from the clean ones. Leave "
            "one of the two out.",
        )
    wanted = check_heads("effects.heads", "heads", options.get("heads"))
    if wanted is not None and by == "layer":
        raise ArgumentError(
            "effects.heads", 'heads= chooses heads, and by="layer" has none of them by itself.'
        )
    edited = clean if corrupt is None else corrupt
    with torch.no_grad(), followed(model) as plain:
        chosen = None if layers is None else [plain.pattern(each) for each in layers]
        output = called(model, edited)
    baseline = number_of(metric, output)
    named = None if wanted is None else {(*head_of(plain, *each[:2]), *each[2:]) for each in wanted}
    attended = {
        path: number
        for path, number in plain.attended.items()
        if (chosen is None or any(is_like(path, each) for each in chosen))
        and (named is None or any(path == each[0] for each in named))
    }
    if not attended:
        raise EditError(
            "effects.none",
            f"nothing in {type(model).__name__} that was asked for attends in a way that can be "
            "edited.",
        )
    asked = ["*"] if named is None else list(attended)
    plain.warn_of_missing(asked if chosen is None else chosen, stacklevel=4)
    whole, contexts = None, None
    if mean is not None:
        contexts = contexts_in(model, clean, list(attended), mean)
    elif corrupt is not None:
        with torch.no_grad(), followed(model):
            whole = number_of(metric, called(model, clean))
        contexts = patched_contexts(model, clean, corrupt, patch, list(attended))
    runs = Runs(model, edited, output, cast(Metric, metric), contexts)
    places = [
        place
        for place in _places(runs, attended, by, plain.calls)
        if named is None or {place, place._replace(position=None, call=None)} & named
    ]
    changes = (
        _estimates(runs, places)
        if approximate
        else until_interrupted(measured(runs, places, plain.sizes), len(places), done)
    )
    rows = [
        effect(place, number, baseline, whole)
        for place, number in zip(places, changes, strict=False)
    ]
    return Effects(rows, baseline, whole)


def _places(
    runs: Runs, attended: Mapping[str, int], by: By, calls: Mapping[str, int]
) -> Iterator[Patched]:
    """Yield the layer, head, position and call that each run edits; by position the model is run if it must be."""
    contexts = runs.contexts
    if by == "head,position" and contexts is None:
        contexts = contexts_in(runs.model, runs.inputs)
    for path, heads in attended.items():
        for head in [None] if by == "layer" else range(heads):
            if by == "call":
                yield from (Patched(path, head, call=call) for call in range(calls[path]))
            elif by == "head,position" and contexts is not None:
                length = max(each.shape[2] for each in contexts[path])
                yield from (Patched(path, head, position) for position in range(length))
            else:
                yield Patched(path, head)


def _estimates(runs: Runs, places: Sequence[Patched]) -> list[float]:
    """Return the first-order estimate of the metric of each edit; EditError, `effects.gradients`, without a graph."""
    layers = list(dict.fromkeys(place.layer for place in places))
    number, changes = by_gradients(runs, layers)
    found = []
    for layer, head, position, call in places:
        if layer not in changes:
            raise EditError(
                "effects.gradients",
                f"{shown(layer)} attended without a graph, so that its gradient is not known.",
            )
        some = changes[layer] if call is None else [changes[layer][call]]
        heads = [each if head is None else each[head] for each in some]
        parts = [each.sum() if position is None else each[position] for each in heads]
        found.append(float(number) + sum(map(float, parts)))
    return found


def effect(place: Patched, number: float, baseline: float, clean: float | None) -> Effect:
    """Return the row of one edit, from its metric and those of the unedited and the clean run (or None).

    `restored` is None without a clean run, NaN where that does not differ from the unedited one.
    """
    change, way = number - baseline, None if clean is None else clean - baseline
    restored = None if way is None else change / way if way else math.nan
    return Effect(place.layer, place.head, number, change, place.position, restored, place.call)
