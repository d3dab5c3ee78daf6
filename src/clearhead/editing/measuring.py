"""The metric of each edit: runs of a model, one edit or several in each, from the block on that is edited."""

from collections.abc import Collection, Sequence
from contextlib import nullcontext

import torch

from clearhead.editing.edit import followed
from clearhead.editing.metrics import Progress, number_of
from clearhead.editing.patching import Patched, Runs, as_found, samples_of
from clearhead.editing.replaying import Replay
from clearhead.watching.stream import called

# A recording costs about three runs, and a replayed run two thirds of one: with fewer edits it does not pay.
REPAYS = 10


def measured(
    runs: Runs,
    places: Sequence[Patched],
    sizes: Collection[tuple[int, int]],
    progress: Progress,
) -> list[float]:
    """Return the metric of each edit; after an interrupt, of the edits that were done, or KeyboardInterrupt if none.

    Raises EditError as `Edit.check_effects` does, and ArgumentTypeError for a metric that is no number.

    Args:
        runs: the model and its inputs.
        places: what is edited.
        sizes: batch and query_len of each call of attention in a run.
        progress: called with the number of edits done, and of all.
    """
    model, inputs, metric, contexts = runs
    found: list[float] = []
    layers = list(dict.fromkeys(place.layer for place in places))
    replay, copies, batch = None, 1, 0
    try:
        if len(places) > REPAYS:
            progress(0, len(places))
            replay = Replay(model, inputs, layers)
        if replay:
            copies, batch = replay.copies(sizes, len(places)), max(sizes)[0]
        # The first run of several edits has one copy without any, which must have the output of a run alone.
        unedited = copies > 1
        with followed(model) as edits:
            while len(found) < len(places):
                some = places[len(found) : len(found) + copies - unedited]
                times = len(some) + unedited
                if found or not replay:
                    progress(len(found), len(places))
                find = None if contexts is None else as_found(contexts, times)
                parts = [slice(at * batch, (at + 1) * batch) for at in range(times)]
                for place, rows in zip(some, parts, strict=False):
                    operation = place.operation(find, rows if copies > 1 else None)
                    edits.add(place.layer, "patched", operation)
                given, from_there = inputs, nullcontext()
                if replay:
                    from_there = replay.before([place.layer for place in some], times, batch)
                    given = replay.inputs_of(times, batch) if copies > 1 else inputs
                with torch.no_grad(), from_there:
                    output = called(model, given)
                edits.check_effects()
                edits.clear()
                if replay and unedited and not replay.is_copy(output, times - 1, times, batch):
                    copies, unedited = 1, False
                    continue
                unedited = False
                for _, rows in zip(some, parts, strict=False):
                    mine = samples_of(output, rows, times * batch) if copies > 1 else output
                    found.append(number_of(metric(mine)))
    except KeyboardInterrupt:
        if not found:
            raise
    else:
        progress(len(places), len(places))
    return found
