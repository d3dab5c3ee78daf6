"""The stages that anybody's code computed, by the names of the definition, and what the definition expects."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.recording.observed import Stage
from clearhead.recording.weighing import EXPONENTIALS, Change, Weighing, weigh
from clearhead.tracing.own_code import Recording
from clearhead.tracing.traced_call import AXES, Step

STAGE_OF = {
    "scale": "scaled_scores",
    "scales": "scaled_scores",
    "cap": "capped_scores",
    "hide": "masked_scores",
    "fill": "masked_scores",
    "number": "masked_scores",
    "add": "masked_scores",
}
"""The stage that a change of the scores makes; any other makes changed_scores."""

ORDER = ("changed_scores", "scaled_scores", "capped_scores", "masked_scores")
NOTHING = {
    "scaled_scores": "no scale",
    "capped_scores": "no softcap",
    "masked_scores": "no mask, no bias",
}
OVER = {
    "queries": "softmax({}) over the queries: each column sums to one, not each row",
    "blocks": "softmax({}) over heads or samples: no row sums to one",
    "all": "softmax({}) over all pairs at once: no row sums to one",
}


class Entry(NamedTuple):
    """One table on the way from scores to weights: (blocks, queries, keys)."""

    name: str
    values: Tensor
    formula: str
    place: int = 0
    same_as: str | None = None
    standard: bool = True


@dataclass(frozen=True, eq=False)
class OwnAxes:
    """The axes of the stages of one call: how blocks become samples and heads."""

    lead: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype

    def place(self, blocks: Tensor) -> Tensor:
        """(blocks, rows, columns) with the axes of the call, in the precision of the code."""
        return blocks.reshape(*self.shape, *blocks.shape[1:]).to(self.dtype)

    def step(self, entry: Entry, line: str, rows: str = "") -> Step:
        axes = AXES[rows or "scores"]
        lead = tuple(
            axis.replace("num_heads", "num_kv_heads") if rows in ("key", "value") else axis
            for axis in self.lead
        )
        return Step(
            entry.name,
            self.place(entry.values),
            (*lead, *axes),
            entry.formula,
            entry.same_as,
            line,
            entry.standard,
        )


def layout_of(recording: Recording) -> OwnAxes:
    """Lead axes as the inputs have them, and heads where there are several."""
    cells, first = recording.cells, recording.floats[0]
    dtype = cells.parts[0].layout.scores.output.dtype
    names, sizes = (), ()
    if first.ndim == 4 and cells.heads == 1:
        names, sizes = ("batch", "num_heads"), tuple(first.shape[:2])
    elif first.ndim == 3 and recording.by_sides and cells.heads == 1:
        names, sizes = ("num_heads",), (cells.batch,)
    else:
        if first.ndim > 2 and cells.batch == first.shape[:-2].numel():
            names, sizes = ("batch",), (cells.batch,)
        if cells.heads > 1 or cells.batch * cells.heads != math.prod(sizes):
            names, sizes = (*names, "num_heads"), (*sizes, cells.heads)
    return OwnAxes(names, sizes, dtype)


def weighed(recording: Recording, lost: "Lost | None") -> tuple[list[Entry], Weighing]:
    """The tables from scores to the weights that multiply the value, in the order of the code."""
    whole = recording.cells.whole
    read = weigh(whole)
    left_out = "" if bool(recording.cells.computed.all()) else "; −∞ where the loop computed none"
    place = whole.layout.scores.place
    entries = [Entry("scores", whole.scores, f"query · keyᵀ{left_out}", place)]
    head_dim = whole.query.shape[-1]
    changes = [each for each in read.before if each.kind not in ("same", "shift")]
    groups = _groups(changes)
    for index, (name, group) in enumerate(groups):
        later = [ORDER.index(other) for other, _ in groups[index + 1 :]]
        plain = all(ORDER.index(name) < each for each in later)
        if plain:
            _fill_up(entries, name, lost)
        before = _origin(entries)
        count = sum(each.name.startswith(name) for each in entries)
        formula = before
        for each in group:
            formula = _changed(each, formula, head_dim)
        entries.append(
            Entry(
                name if plain else f"{name}_{count + 1}",
                group[-1].stage.values,
                formula,
                group[-1].stage.place,
                None,
                plain and len(entries) > 0 and _is_standard(name, group, before),
            )
        )
    _fill_up(entries, None, lost)
    entries.append(_share(read, _origin(entries), whole.stages))
    after = [each for each in read.after if each.kind != "same"]
    for index, change in enumerate(after):
        last = index == len(after) - 1
        if change.kind == "dropout" and last:
            formula = _dropout(change, entries[-1])
            direct = entries[-1].name == "weights"
            entries.append(
                Entry(
                    "dropped_weights",
                    change.stage.values,
                    formula,
                    change.stage.place,
                    None,
                    direct,
                )
            )
            return entries, read
        number = sum(each.name.startswith("changed_weights") for each in entries)
        name = f"changed_weights_{number + 1}" if number else "changed_weights"
        formula = _after(change, entries[-1])
        entries.append(Entry(name, change.stage.values, formula, change.stage.place, None, False))
    last = entries[-1]
    same = last.same_as or last.name
    entries.append(Entry("dropped_weights", last.values, "no dropout", 0, same))
    return entries, read


def _groups(changes: Sequence[Change]) -> list[tuple[str, list[Change]]]:
    """Changes one after the other that make one stage: two masks, say."""
    groups: list[tuple[str, list[Change]]] = []
    for change in changes:
        name = STAGE_OF.get(change.kind, "changed_scores")
        if groups and groups[-1][0] == name:
            groups[-1][1].append(change)
        else:
            groups.append((name, [change]))
    return groups


def _origin(entries: Sequence[Entry]) -> str:
    return entries[-1].same_as or entries[-1].name


def _fill_up(entries: list[Entry], upto: str | None, lost: "Lost | None") -> None:
    """Stages of the definition for which the code does nothing."""
    there = {each.name for each in entries}
    for name in ORDER[1 : None if upto is None else ORDER.index(upto)]:
        if name in there or any(
            ORDER.index(each) > ORDER.index(name) for each in there & set(ORDER)
        ):
            continue
        why = NOTHING[name]
        if any(each.startswith(f"{name}_") for each in there):
            why = f"it was done before, in {name}_1"
        elif name == "masked_scores" and lost is not None:
            why = f"the result of {lost.name}, {lost.line}, is read by nothing"
        entries.append(Entry(name, entries[-1].values, why, 0, _origin(entries)))


def _changed(change: Change, before: str, head_dim: int) -> str:
    """A change of the scores, as a formula."""
    number = change.number
    if change.kind == "scale":
        root = f"1/√{head_dim}" if math.isclose(number, head_dim**-0.5, rel_tol=1e-5) else ""
        root = root or (f"1/{1 / number:.4g}" if number and abs(number) < 1 else "")
        return f"{before} × {number:.4f}" + (f" ({root})" if root else "")
    if change.kind == "scales":
        return f"{before}, each head times a number of its own"
    if change.kind == "cap":
        return f"{before}, bent by tanh"
    pairs = _pairs(change.cells)
    if change.kind == "hide":
        values = change.stage.values[change.cells] if change.cells is not None else None
        low = -math.inf if values is None or not len(values) else float(values.max())
        return f"{before}, {_written(low)} {pairs}"
    if change.kind == "fill":
        return f"{before}, {_written(number)} {pairs}"
    if change.kind == "number":
        return f"{before}, {_written(number)} added {pairs}"
    if change.kind == "add":
        return f"{before} + bias"
    return f"{before}, changed by {change.stage.name.strip('_')}"


def _written(number: float) -> str:
    if math.isinf(number):
        return "−∞" if number < 0 else "+∞"
    return f"{number:.4g}".replace("-", "−")


def _pairs(cells: Tensor | None) -> str:
    """The number of pairs of a head that are meant."""
    if cells is None:
        return "for some pairs"
    counts = cells.flatten(1).sum(-1).tolist()
    count = str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    return f"for {count} of {cells[0].numel()} pairs"


def _is_standard(name: str, group: Sequence[Change], before: str) -> bool:
    """True if the page's arithmetic of the stage is what the code did."""
    if name == "scaled_scores":
        return before == "scores" and all(each.kind == "scale" for each in group)
    if name == "masked_scores":
        return all(
            each.kind == "add"
            or (each.kind == "hide" and bool((each.stage.values[each.cells] == -torch.inf).all()))
            for each in group
        )
    return False


def _share(read: Weighing, before: str, found: Sequence[Stage]) -> Entry:
    """The stage at which scores become weights."""
    place = next((each.place for each in found if each.values is read.shares), 0)
    names = [each.name for each in found]
    exponential = any(name in EXPONENTIALS for name in names) and not any(
        name.endswith("softmax") for name in names
    )
    if read.axis == "keys":
        formula = f"softmax({before}) over the keys"
        if exponential:
            formula = f"exp({before}), each row divided by its sum: softmax over the keys"
        return Entry("weights", read.shares, formula, place)
    if read.axis is not None:
        return Entry("weights", read.shares, OVER[read.axis].format(before), place, None, False)
    if read.shares is read.entering or torch.equal(read.shares, read.entering):
        return Entry("weights", read.shares, "no softmax", 0, before)
    name = read.normaliser or ("exp" if exponential else "another operation")
    return Entry("weights", read.shares, f"{name}({before}), no softmax", place, None, False)


def _dropout(change: Change, before: Entry) -> str:
    factor = kept_factor(change, before.values)
    return f"dropout: some {before.name} 0, the others × {factor:.4g}"


def kept_factor(change: Change, before: Tensor) -> float:
    """By how much what dropout leaves is larger; 1 where it leaves nothing."""
    after = change.stage.values
    kept = (after != 0) & (before != 0) & after.isfinite()
    return float((after[kept] / before[kept]).median()) if bool(kept.any()) else 1.0


def _after(change: Change, before: Entry) -> str:
    """A change of the weights, as a formula."""
    name, after = before.name, change.stage.values
    if change.stage.name.endswith("softmax"):
        return f"softmax({name}): a softmax of weights"
    if change.kind in ("fill", "hide"):
        return f"{name}, {_written(change.number)} {_pairs(change.cells)}"
    if change.kind == "scale":
        return f"{name} × {change.number:.4f}"
    rows = before.values.sum(-1, keepdim=True)
    if torch.allclose(after * rows, before.values, atol=1e-6):
        return f"{name}, each row divided by its sum"
    if change.kind == "dropout":
        return _dropout(change, before)
    return f"{name}, changed by {change.stage.name.strip('_') or 'what is not read'}"


class Lost(NamedTuple):
    """A mask that was computed, and whose result nothing reads: what it would have made of the scores."""

    name: str
    line: str
    values: Tensor


def lost_mask(recording: Recording) -> Lost | None:
    """The mask whose result is lost, if there is one."""
    cells, recorder = recording.cells, recording.recorder
    if cells.elements is None:
        return None
    node = cells.whole.layout.scores
    for step in recorder.steps:
        mine = step.tags.node == node.index
        if step.result in recorder.read or step.source == step.result or not bool(mine.any()):
            continue
        flat = torch.zeros(node.output.numel(), dtype=torch.float64)
        flat[(step.tags.element - node.base)[mine]] = step.value.double().expand(mine.shape)[mine]
        values = flat[cells.elements]
        if bool((values < -60).any()):
            return Lost(step.name, recording.line(step.place), values)
    return None


def steps_of(
    recording: Recording,
    entries: Sequence[Entry],
    outputs: Callable[[OwnAxes], Iterator[Step]],
) -> Iterator[Step]:
    """Every stage from the inputs to the output, in the order of the code."""
    cells, layout = recording.cells, layout_of(recording)
    whole = cells.whole
    given = recording.tokens()
    for name, tensor in given.items():
        lead = ("batch",) * (tensor.ndim - 2)
        formula = "the input" if name == "x" else "the sequence attended to"
        yield Step(name, tensor, (*lead, *AXES[name]), formula)
    for name, node in zip(("query", "key", "value"), cells.nodes, strict=True):
        formula = recording.origin(name)
        line = "" if node is None or node.kind == "input" else recording.line(node.place)
        yield layout.step(Entry(name, getattr(whole, name), formula), line, name)
    for entry in entries:
        yield layout.step(entry, recording.line(entry.place) if entry.place else "")
    place = whole.layout.context.place
    weights = entries[-1].same_as or entries[-1].name
    formula = f"{weights} · value" if entries[-1].same_as else "dropped_weights · value"
    yield layout.step(Entry("context", whole.context, formula), recording.line(place), "context")
    yield from outputs(layout)
