"""The metric of each edit: runs of a model, one edit or several in each, from the block on that is edited."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from clearhead.editing.edit import edit
from clearhead.editing.metrics import Progress, number_of
from clearhead.editing.patching import Patched, Runs, as_found, repeated, samples_of
from clearhead.editing.replaying import Replay
from clearhead.errors import EditError
from clearhead.watching.stream import called

# A recording costs about three runs, and a replayed run two thirds of one: with fewer edits it does not pay.
REPAYS = 10


def measured(
    runs: Runs, places: Sequence[Patched], baseline: float, parallel: int, progress: Progress
) -> list[float]:
    """Return the metric of each edit, run by run; of those before an interrupt.

    Raises:
        EditError: code `effects.parallel`, where the metric of one of several copies is another than of it alone.
    """
    model, inputs, metric, contexts = runs
    found: list[float] = []
    given, batch = repeated(inputs, parallel) if parallel > 1 else (inputs, 0)
    layers = list(dict.fromkeys(place.layer for place in places))

    def number_at(output: Any, at: int, times: int) -> float:
        part = slice(at * batch, (at + 1) * batch)
        part = output if parallel == 1 else samples_of(output, part, times * batch)
        return number_of(metric(part))

    # Several edits in one run begin with none at all: its number must be that of the run alone.
    waiting: list[Patched | None] = [None, *places] if parallel > 1 else list(places)
    replay = None
    try:
        if len(places) > REPAYS + parallel:
            progress(0, len(places))
            replay = Replay(model, inputs, layers)
            if replay and waiting[0] is None:
                output = replay.of_copies(given, parallel, batch)
                if output is None:
                    replay = None
                else:
                    _check_copy(number_at(output, 0, parallel), baseline, parallel)
                    del waiting[0]
        with edit(model) as edits:
            edits.expects_changes = False
            for start in range(0, len(waiting), parallel):
                some = waiting[start : start + parallel]
                if start or not replay:
                    progress(len(found), len(places))
                times = len(some)
                if parallel > 1:
                    given = repeated(inputs, times)[0]
                find = None if contexts is None else as_found(contexts, times)
                edited = [place.layer for place in some if place is not None]
                for at, place in enumerate(some):
                    rows = None if parallel == 1 else slice(at * batch, (at + 1) * batch)
                    if place is not None:
                        edits.add(place.layer, "patched", place.operation(find, rows))
                from_there = replay.before(edited, times, batch) if replay else nullcontext()
                with torch.no_grad(), from_there:
                    output = called(model, given)
                edits.check_effects()
                edits.clear()
                for at, place in enumerate(some):
                    number = number_at(output, at, times)
                    if place is not None:
                        found.append(number)
                    else:
                        _check_copy(number, baseline, times)
    except KeyboardInterrupt:
        if not found:
            raise
    else:
        progress(len(places), len(places))
    return found


def _check_copy(number: float, baseline: float, times: int) -> None:
    """Refuse a metric that is another number for one of several copies than for the inputs alone."""
    if not math.isclose(number, baseline, rel_tol=1e-3, abs_tol=1e-4):
        raise EditError(
            "effects.parallel",
            f"the metric of one copy of the inputs among {times} is {number:.6g}, and alone {baseline:.6g}: it is no "
            "number of the rows of one copy, such as a loss that the model returns. Leave parallel= out.",
        )
