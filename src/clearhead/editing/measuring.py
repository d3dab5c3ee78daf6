"""The metric of each edit: runs of a model, one edit or several in each, from the block on that is edited."""

import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor

from clearhead._text import shown
from clearhead.editing.activation_patching import Patched, Runs, as_found, samples_of
from clearhead.editing.edit import followed
from clearhead.editing.replaying import Replay
from clearhead.errors import ArgumentTypeError, ClearheadError
from clearhead.watching.stream import called

Metric = Callable[[Any], Tensor | float]
"""Returns a number of the output of a model."""

Progress = Callable[[int, int], None]
"""Called with the number of edits that are done, and of all."""


def check_metric(metric: Any) -> Callable[[Any], Any]:
    """Return the metric wrapped so that its Attribute-, Index-, Key- or TypeErrors name the type of the model's output.

    Raises:
        ArgumentTypeError: code `effects.metric`, for what is no function; the wrapped metric, instead of such an error.
    """
    if not callable(metric):
        raise ArgumentTypeError(
            "effects.metric", f"metric must make one number of an output; got {shown(metric)}."
        )

    def of_output(output: Any) -> Any:
        """Return what the metric returns; ArgumentTypeError if it raises an Attribute-, Index-, Key- or TypeError."""
        try:
            return metric(output)
        except ClearheadError:
            raise
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            parts = f" with {', '.join(output)}" if isinstance(output, Mapping) else ""
            raise ArgumentTypeError(
                "effects.metric",
                f"metric gets the output of the model, here {type(output).__name__}{parts}, and must make one number "
                f"of it, such as output.logits[0, -1, 3]; it raised {type(error).__name__}: {error}.",
            ) from error

    return of_output


def reporter(progress: object) -> Progress:
    """Return a function that reports progress: the user's own, one for a terminal, or a no-op.

    Raises:
        ArgumentTypeError: code `effects.progress`.
    """
    if callable(progress):
        return cast(Progress, progress)
    if not isinstance(progress, bool):
        raise ArgumentTypeError(
            "effects.progress",
            "progress must be True, False, or a function of the runs done and all runs; got "
            f"{shown(progress)}.",
        )
    return _line if progress else lambda done, total: None


def number_of(metric: object) -> float:
    """Return the result of a metric, a number or a tensor of one, as a float.

    Raises:
        ArgumentTypeError: code `effects.metric`, for anything else, and for NaN.
    """
    if isinstance(metric, Tensor) and metric.numel() == 1:
        metric = metric.detach().item()
    if not isinstance(metric, int | float) or math.isnan(metric):
        got = tuple(metric.shape) if isinstance(metric, Tensor) else metric
        raise ArgumentTypeError(
            "effects.metric", f"metric must make one number of an output; got {shown(got)}."
        )
    return float(metric)


def _line(done: int, total: int) -> None:
    """Print the progress to stderr, over the same line; no-op if that is no terminal. The last call clears it."""
    if sys.stderr.isatty():
        end = "\r" if done < total else "\r\x1b[K"
        print(f"effects: {done} of {total} runs", end=end, file=sys.stderr, flush=True)


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
