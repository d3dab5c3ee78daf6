"""The metric of each edit: runs of a model with one edit, or with several on copies of the inputs."""

import math
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils import _pytree

from clearhead._common.checks import arguments_of
from clearhead._text import shown
from clearhead.editing.activation_patching import Patched, Runs, as_found, copies_of
from clearhead.editing.edit import followed
from clearhead.editing.replaying import Replay
from clearhead.errors import ArgumentTypeError, EditWarning
from clearhead.watching.hooks.transformers import grows_by_update
from clearhead.watching.stream import called

Metric = Callable[[Any], Tensor | float]
"""Returns a number of the output of a model."""

Progress = Callable[[int, int], None]
"""Called with the number of edits that are done, and of all."""

FEW = 10
"""As many edits are a whole run each: to record the blocks costs about three runs."""

TOKENS = 256
"""Tokens in one run of several edits: products of more are no faster for each token."""

PLAIN = bool | int | float | complex | str | torch.dtype | torch.device | None


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


def _line(done: int, total: int) -> None:
    """Print the progress to stderr, over the same line; no-op if that is no terminal. The last call clears it."""
    if sys.stderr.isatty():
        end = "\r" if done < total else "\r\x1b[K"
        print(f"effects: {done} of {total} runs", end=end, file=sys.stderr, flush=True)


def number_of(metric: Any, output: Any) -> float:
    """Return the metric of an output of the model, a number or a tensor of one, as a float.

    Raises:
        ArgumentTypeError: code `effects.metric`, for a metric that is no function, any other result, and NaN.
        Exception: what the metric raises, with a note that names the type of the output.
    """
    number = metric
    if callable(metric):
        try:
            number = metric(output)
        except Exception as error:
            error.add_note(f"The metric gets the output of the model, a {type(output).__name__}.")
            raise
        if isinstance(number, Tensor) and number.numel() == 1:
            number = number.detach().item()
        if isinstance(number, int | float) and not math.isnan(number):
            return float(number)
    got = tuple(number.shape) if isinstance(number, Tensor) else number
    raise ArgumentTypeError(
        "effects.metric", f"metric must make one number of an output; got {shown(got)}."
    )


def until_interrupted(numbers: Iterator[float], total: int, progress: Progress) -> list[float]:
    """Return the numbers of an iterator that has `total` of them, and report how many are done.

    After Ctrl-C return those that are done, with an EditWarning; KeyboardInterrupt if there are none.
    """
    found: list[float] = []
    try:
        progress(0, total)
        for number in numbers:
            found.append(number)
            progress(len(found), total)
    except KeyboardInterrupt:
        if not found:
            raise
        text = f"[edit.interrupted] {len(found)} of {total} runs are done; their rows are returned."
        warnings.warn(text, EditWarning, stacklevel=4)
    return found


def measured(
    runs: Runs, places: Sequence[Patched], sizes: Collection[tuple[int, int]]
) -> Iterator[float]:
    """Yield the metric of each edit, in order.

    Each run begins at the edited layer where that gives the same (`Replay`). Several edits are one run on copies of the
    inputs where all that the model takes and returns are rows of samples. In the first such run one copy is not edited,
    and must have the output of the run without edits.

    Args:
        runs: the model and its inputs.
        places: what is edited.
        sizes: batch and query_len of each call of attention in a run.

    Raises:
        EditError: as `Edit.check_effects` does.
        ArgumentTypeError: code `effects.metric`, for a metric that is no number.
    """
    done = 0
    # A BatchEncoding of transformers is a mapping that PyTorch takes for a leaf.
    given = dict(runs.inputs) if isinstance(runs.inputs, Mapping) else runs.inputs
    copies, batch = _copies(runs, sizes, len(places)), max(sizes)[0]
    tested = copies == 1
    layers = list(dict.fromkeys(place.layer for place in places))
    replay = Replay(runs, layers) if len(places) > FEW else None
    with torch.no_grad(), followed(runs.model) as edits:
        while done < len(places):
            some = places[done : done + copies - (not tested)]
            times = len(some) + (not tested)
            rows = [slice(at * batch, (at + 1) * batch) for at in range(times)]
            find = None if runs.contexts is None else as_found(runs.contexts, times)
            for place, part in zip(some, rows, strict=False):
                operation = place.operation(find, part if copies > 1 else None)
                edits.add(place.layer, "patched", operation)
            inputs = runs.inputs if copies == 1 else copies_of(given, times, batch)
            try:
                from_there = replay and replay.before([each.layer for each in some], times, batch)
                with from_there or nullcontext():
                    output = called(runs.model, inputs)
            except Exception:
                if tested:
                    raise
                output = None
            if not tested and not _is_copy(output, rows[-1], times * batch, runs.output):
                copies = 1
            else:
                edits.check_effects()
                parts = [output if copies == 1 else _samples_of(output, each) for each in rows]
                yield from (number_of(runs.metric, part) for part in parts[: len(some)])
                done += len(some)
            tested = True
            edits.clear()


def _copies(runs: Runs, sizes: Collection[tuple[int, int]], count: int) -> int:
    """Return the number of copies of the inputs in one run; 1 unless all inputs are rows of samples or plain values.

    It is 1 as well for few edits, for long texts, and if a hook of the user sees the run.

    Args:
        runs: the model and its inputs.
        sizes: batch and query_len of each call of attention.
        count: the number of edits.
    """
    given, named = arguments_of(runs.inputs)
    batch = max(sizes)[0]
    times = TOKENS // max(1, batch * max(query_len for _, query_len in sizes))
    is_hooked = any(each._forward_hooks or each._forward_pre_hooks for each in runs.model.modules())
    is_rows = len(dict(sizes)) == 1 and all(
        isinstance(each, PLAIN) or _is_rows(each, batch) for each in (*given, *named.values())
    )
    return min(count, times) if count > FEW and times > 1 and is_rows and not is_hooked else 1


def _is_copy(output: Any, part: slice, rows: int, alone: Any) -> bool:
    """Return True if a part of the output of copies equals, to half of the digits, the output of a run alone.

    False if the output has anything but tensors of `rows` rows, None, and caches of transformers that only grow.
    """
    leaves, others = _pytree.tree_leaves(output), _pytree.tree_leaves(alone)
    return len(leaves) == len(others) and all(
        _is_close(one[part], other)
        if _is_rows(one, rows) and isinstance(other, Tensor)
        else type(one) is type(other) and (one is None or grows_by_update(one))
        for one, other in zip(leaves, others, strict=True)
    )


def _is_close(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors have the same shape and are equal to half of the digits of their dtype."""
    if one.shape != other.shape or not one.is_floating_point():
        return torch.equal(one, other)
    off = torch.linalg.vector_norm(one - other)
    return bool(off <= torch.finfo(one.dtype).eps ** 0.5 * torch.linalg.vector_norm(other))


def _is_rows(each: Any, count: int) -> bool:
    """Return True for a tensor with `count` rows."""
    return isinstance(each, Tensor) and each.ndim > 0 and len(each) == count


def _samples_of(output: Any, part: slice) -> Any:
    """Return the output of some samples: each tensor is cut to these rows, any other leaf is unchanged."""
    return _pytree.tree_map(lambda each: each[part] if isinstance(each, Tensor) else each, output)
