"""The laws of attention, asked of calls: the same again, sample by sample, unchanged by length, linear in the value.

They hold whatever the mechanism is declared to be, so a subject that breaks one is wrong whether or not its
mistake has a name.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from clearhead.checking.evidence.cases import Broken, Case, Inputs, called, converted, gap_of
from clearhead.checking.evidence.grouping import Group
from clearhead.checking.evidence.splitting import consumer, root_node, side_tags
from clearhead.checking.subject.subject import Subject
from clearhead.checking.thresholds import ROUNDING
from clearhead.recording.capture import Capture
from clearhead.recording.observed import ObservedAttention, blocks_of
from clearhead.recording.operations import PRODUCTS
from clearhead.recording.recorder import Node, Recorder, storage_of
from clearhead.recording.thresholds import MOVES, SUMS


def in_turn(subject: Subject, calls: Sequence[Inputs]) -> Iterator[Case]:
    """Calls of one copy, one after the other, each against a fresh copy."""
    copy = subject.fresh()
    for number, inputs in enumerate(calls):
        at = f"call {number + 1}, {list(inputs[0].shape)}"
        fresh = partial(subject.fresh(), *inputs)
        yield Case(at, partial(copy, *inputs), fresh, MOVES[subject.dtype])


def reseeded(subject: Subject, inputs: Inputs) -> bool:
    """True if the random numbers of the caller are others after a call, whatever they were before."""
    after = []
    for seed in (11, 12):
        torch.manual_seed(seed)
        if isinstance(called(subject.spare(), inputs), Exception):
            return False
        after.append(torch.rand(2))
    return torch.equal(*after)


def by_samples(subject: Subject, inputs: Inputs, output: Tensor) -> Iterator[Case]:
    """The last sample alone, and all samples in reverse order, each against the batch."""
    batch = inputs[0].shape[0]
    if batch < 2 or output.shape[:1] != (batch,):
        return
    for places in [batch - 1], list(reversed(range(batch))):
        at, chosen = "samples " + ", ".join(map(str, places)), torch.tensor(places)
        call = partial(subject.fresh(), *(each[chosen] for each in inputs))
        yield Case(at, call, output[chosen], ROUNDING[subject.dtype])


class Altered(Capture):
    """Run a call with what some operations give altered in place, and take operands on the way."""

    def __init__(
        self,
        changes: Mapping[int, Callable[[Tensor], Any]],
        places: Mapping[int, tuple[int, ...]],
    ) -> None:
        super().__init__(places)
        self.changes = dict(changes)

    def operation(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = super().operation(name, func, args, kwargs)
        change = self.changes.pop(self.count, None)
        if change is not None:
            change(output[0] if isinstance(output, tuple | list) else output)
        return output


def _added(by: float, elements: Tensor) -> Callable[[Tensor], Tensor]:
    """A number added to some elements of a tensor, in place."""

    def change(first: Tensor) -> Tensor:
        moved = torch.zeros(first.numel(), dtype=first.dtype)
        moved[elements] = by
        return first.add_(moved.view(first.shape))

    return change


def _shifted(
    subject: Subject,
    inputs: Inputs,
    shifts: Mapping[int, Tensor],
    taken: tuple[int, int] | None = None,
    by: float = 1.0,
) -> Tensor | None:
    """The operand taken, or the output, of a call with shifts; None where the code does not bear it."""
    changes = {place: _added(by, elements) for place, elements in shifts.items()}
    found = _altered(subject, inputs, changes, {} if taken is None else {taken[0]: (taken[1],)})
    if found is None:
        return None
    return found[0] if taken is None else found[1].operands.get(taken[0], (None,))[0]


def _altered(
    subject: Subject,
    inputs: Inputs,
    changes: Mapping[int, Callable[[Tensor], Any]],
    places: Mapping[int, tuple[int, ...]],
) -> tuple[Tensor, Altered] | None:
    """The output of a call in which operations are altered; None if the code fails under a mode."""
    mode, run, copies = (
        Altered(changes, places),
        subject.spare().bare,
        converted(inputs, subject.dtype),
    )
    with mode:
        output = called(run, copies)
    return None if isinstance(output, Exception) else (output, mode)


def beyond(
    subject: Subject,
    inputs: Inputs,
    recorded: Recorder,
    output: Tensor,
    attentions: Sequence[ObservedAttention],
) -> bool:
    """True if keys or values reach the output next to the contexts of the attentions.

    All contexts are held at their numbers, and what projects keys or values is shifted wherever it is called. A
    projection that is also read by a layer of its own, as a convolution of the values, is another mechanism.
    """
    contexts = [each.layout.context for each in attentions]
    if any(node.name in ("addmm", "baddbmm") for node in contexts):
        return False
    products = {node.index for each in attentions for node in (each.layout.scores, *contexts)}
    linear = [node for node in recorded.nodes if node.kind == "linear"]
    held = {node.place: partial(Tensor.copy_, other=node.output) for node in contexts}
    still = _altered(subject, inputs, held, {})
    if still is None or gap_of(still[0], output):
        return False
    for each in attentions:
        for which in (1, 2):
            root, tags = root_node(recorded, each, which), side_tags(each, which)
            asking = side_tags(each, 0)
            if root is None or tags is None or root.kind != "linear" or asking is None:
                continue
            columns = (tags.element[tags.node == root.index] - root.base).unique() % (
                width := root.output.shape[-1]
            )
            query = asking.element[asking.node == root.index] - root.base
            if bool(torch.isin(query % width, columns).any()):
                continue
            calls = [
                node
                for node in linear
                if node.storages[node.constant or 0] == root.storages[root.constant or 0]
                and node.constant == root.constant
                and node.output.shape[-1] == width
            ]
            indices = torch.tensor([node.index for node in calls])
            if any(
                node.index not in products
                and any(
                    t is not None and bool(torch.isin(t.node, indices).any()) for t in node.tags
                )
                for node in recorded.nodes
            ):
                continue
            shifts = {
                node.place: _added(
                    1.0, torch.isin(torch.arange(node.output.numel()) % width, columns)
                )
                for node in calls
            }
            found = _altered(subject, inputs, {**shifts, **held}, {})
            if found is not None and not found[1].changes and gap_of(found[0], output) > SUMS:
                return True
    return False


def unused(
    subject: Subject, inputs: Inputs, output: Tensor, group: Sequence[ObservedAttention]
) -> bool:
    """True if the output does not move with the contexts of these heads."""
    shifts = {
        each.layout.context.place: torch.arange(each.layout.context.output.numel())
        for each in group
    }
    most = max(float(each.layout.context.output.abs().max()) for each in group)
    found = _shifted(subject, inputs, shifts, by=max(1.0, most))
    return found is not None and bool(output.isfinite().all()) and torch.equal(found, output)


def placed(
    subject: Subject, inputs: Inputs, output: Tensor, group: Group, tokens: Sequence[int]
) -> tuple[int, ...] | None:
    """For each token, the output that moves with the contexts of its query, −1 for none; None where that is not
    told.

    Where layers behind these heads mix tokens, only that the own output moves most says something.
    """
    found = []
    for token in tokens:
        shifts, most = dict[int, Tensor](), 1.0
        for each, source in zip(group.attentions, group.sources, strict=True):
            if source is None:
                return None
            made = each.layout.context.output
            places = blocks_of(torch.arange(made.numel()).view(made.shape))
            rows = (places.mT if each.layout.flip else places)[source.query.token == token]
            before = shifts.get(each.layout.context.place, rows[:0, 0])
            shifts[each.layout.context.place] = torch.cat([before, rows[:, 0]])
            most = max(most, float(made.abs().max()))
        moved = _shifted(subject, inputs, shifts, by=most)
        if moved is None or moved.shape != output.shape:
            return None
        gap = (moved - output).abs().amax(-1)
        gap = gap if gap.ndim == 1 else gap[-1]
        felt = int((gap > MOVES[torch.float32] * gap.max()).sum())
        place = int(gap.argmax()) if felt else -1
        if len(gap) != inputs[0].shape[-2] or (felt > 1 and place != token):
            return None
        found.append(place)
    return tuple(found)


def by_value(
    subject: Subject,
    inputs: Inputs,
    recorded: Recorder,
    output: Tensor,
    group: Sequence[ObservedAttention],
) -> Broken | None:
    """Shift every value by one: the contexts of the heads move by exactly that, as their weights sum to one.

    Where the value is no projection of its own, or the contexts are changed before they are read, by a norm
    or a gate, nothing can be asked.
    """
    shifts: dict[int, Tensor] = {}
    for each in group:
        root, tags = root_node(recorded, each, 2), side_tags(each, 2)
        if root is None or tags is None or root.kind != "linear" or each.beside or each.tangled:
            return None
        mine = (tags.element[tags.node == root.index] - root.base).unique()
        for which in (0, 1):
            other = side_tags(each, which)
            if other is None or bool(torch.isin(other.element - root.base, mine).any()):
                return None
        before = shifts.get(root.place)
        shifts[root.place] = mine if before is None else torch.cat([before, mine]).unique()
    reader = consumer(recorded, output, group)
    if reader is None:
        return None
    if reader.node is None:
        taken, still = None, output
    elif reader.node.name in PRODUCTS:
        taken = reader.node.place, PRODUCTS[reader.node.name][reader.operand]
        still = reader.node.operands[reader.operand]
    else:
        return None
    found = _shifted(subject, inputs, shifts, taken)
    if found is None or found.shape != still.shape:
        return None
    contexts = torch.tensor([each.layout.context.index for each in group])
    moved = (found - still)[torch.isin(reader.tags.node, contexts)].double()
    if not len(moved) or bool((moved - 1).abs().max() <= SUMS):
        return None
    if bool((moved - moved[0]).abs().max() <= SUMS):
        return Broken("factor", float(moved[0]), "")
    apart = torch.minimum((moved - 1).abs(), moved.abs())
    if bool(apart.max() <= SUMS):
        return Broken("nothing", float((moved.abs() <= SUMS).double().mean()), "")
    return None


def centred(subject: Subject, inputs: Inputs, recorded: Recorder, each: ObservedAttention) -> bool:
    """True if what all tokens share is taken out of the values: they do not move where the projection of every
    token moves by one, and do where that of one token does."""
    context = each.layout.context
    side = PRODUCTS[context.name][int(not each.layout.flip)] if context.name in PRODUCTS else 2
    taken = context.place, side

    def moved(node: Node, elements: Tensor) -> bool:
        found = _shifted(subject, inputs, {node.place: elements.flatten()}, taken)
        still = _shifted(subject, inputs, {}, taken)
        return found is not None and still is not None and gap_of(found, still) > SUMS

    for node in recorded.nodes:
        if node.kind != "linear" or node.place > context.place or node.output.ndim < 2:
            continue
        elements = torch.arange(node.output.numel()).view(node.output.shape)
        if moved(node, elements[..., :1, :]) and not moved(node, elements):
            return True
    return False


def lost(recorded: Recorder, output: Tensor) -> bool:
    """True if an operation hides scores, and its result is read by nothing."""
    read = recorded.read | {storage_of(output)}
    return any(
        step.name in ("masked_fill", "where") and step.result not in read for step in recorded.steps
    )
