"""The metric of each edit of a model: a run for each, or one run for several on copies of the inputs."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from clearhead._common.checks import arguments_of
from clearhead._text import shown
from clearhead.editing.context_operations import Ablate, Find, OfContext, Replace
from clearhead.editing.edit import followed
from clearhead.editing.selections import selection
from clearhead.errors import ArgumentTypeError, ClearheadError
from clearhead.matrix.contexts import Contexts
from clearhead.watching.stream import called

Metric = Callable[[Any], Tensor | float]
"""Returns a number of the output of a model."""

Progress = Callable[[int, int], None]
"""Called with the number of edits that are done, and of all."""

TOKENS = 256
"""Tokens in one run of several edits: larger products are no faster for each token."""

FEW = 10
"""Edits that are run one by one, since the first run of several has one copy without any."""

PLAIN = bool | int | float | complex | str | torch.dtype | torch.device


class Patched(NamedTuple):
    """The place of one edit.

    Attributes:
        layer: the path of the module.
        head: which head; None for all of the layer.
        position: of the query; None for all.
    """

    layer: str
    head: int | None
    position: int | None = None

    def operation(self, find: Find | None, samples: slice | None) -> OfContext:
        """Return the operation on some samples: a replaced context, or an ablation where `find` is None."""
        heads = slice(None) if self.head is None else (self.head,)
        query = selection("query", self.position)
        made = Ablate(heads, query) if find is None else Replace(heads, query, find)
        made.samples = samples
        return made


class Runs(NamedTuple):
    """A model and its inputs, to be run with edits.

    Attributes:
        model, inputs: the model, and what it is called with.
        metric: returns a number of an output.
        contexts: the contexts that replace those of the run, by the path of the module; None to ablate.
    """

    model: nn.Module
    inputs: object
    metric: Callable[[Any], Any]
    contexts: Mapping[str, Tensor] | None


def as_found(contexts: Mapping[str, Tensor], times: int = 1) -> Find:
    """Return what finds the contexts of a module, with the batch repeated `times` times."""
    return lambda path, heads: Contexts(contexts[path].repeat(times, 1, 1, 1), 0)


def measured(
    runs: Runs, places: Sequence[Patched], plain: Any, batch: int, copies: int, progress: Progress
) -> list[float]:
    """Return the metric of each edit; after an interrupt, of those that are done.

    Args:
        runs: the model and its inputs.
        places: the edits.
        plain: the output of the model without an edit.
        batch: the batch size of the inputs.
        copies: the number of copies of the inputs in a run, as `copies_in_a_run` returns it.
        progress: called with the number of edits that are done.
    """
    model, inputs, metric, contexts = runs
    found: list[float] = []
    # The first run of several edits has one copy without any, which must have the output of a run alone.
    unedited = copies > 1
    try:
        with torch.no_grad(), followed(model) as edits:
            while len(found) < len(places):
                progress(len(found), len(places))
                some = places[len(found) :][: copies - unedited]
                times = len(some) + unedited
                find = None if contexts is None else as_found(contexts, times)
                parts = [slice(at * batch, (at + 1) * batch) for at in range(times)]
                for place, rows in zip(some, parts, strict=False):
                    operation = place.operation(find, rows if copies > 1 else None)
                    edits.add(place.layer, "patched", operation)
                try:
                    output = _of_copies(model, inputs, times)
                except Exception:
                    if not unedited:
                        raise
                    output = None  # the model does not take a larger batch
                if unedited and not _is_copy(output, parts[-1], times * batch, plain):
                    copies, unedited = 1, False
                    edits.clear()
                    continue
                unedited = False
                edits.check_effects()
                edits.clear()
                for _, rows in zip(some, parts, strict=False):
                    own = output if copies == 1 else samples_of(output, rows, times * batch)
                    found.append(number_of(metric(own)))
    except KeyboardInterrupt:
        if not found:
            raise
    else:
        progress(len(places), len(places))
    return found


def copies_in_a_run(
    model: nn.Module, inputs: object, sizes: set[tuple[int, int]], count: int
) -> int:
    """Return the number of edits in a run, each on a copy of the inputs: 1 unless the model takes rows of samples only.

    Args:
        model: the model.
        inputs: what it is called with.
        sizes: batch and query_len of each call of attention in a run.
        count: the number of edits.
    """
    given, named = arguments_of(inputs)
    batch = max(sizes)[0]
    times = min(count, TOKENS // max(1, batch * max(query_len for _, query_len in sizes)))
    hooked = any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    is_rows = all(
        each is None or isinstance(each, PLAIN) or _has_rows(each, batch)
        for each in (*given, *named.values())
    )
    alike = all(each == batch for each, _ in sizes)
    return times if times > 1 and count > FEW and alike and is_rows and not hooked else 1


def _of_copies(model: nn.Module, inputs: object, times: int) -> Any:
    """The output for a batch that is repeated."""
    if times == 1:
        return called(model, inputs)
    given, named = arguments_of(inputs)

    def copies(each: Any) -> Any:
        return torch.cat([each] * times) if isinstance(each, Tensor) else each

    return model(*map(copies, given), **{name: copies(each) for name, each in named.items()})


def samples_of(output: Any, part: slice, batch: int) -> Any:
    """Return the output of the samples in `part`: tensors of `batch` rows are cut, anything else is unchanged."""
    return _pytree.tree_map(lambda each: each[part] if _has_rows(each, batch) else each, output)


def _has_rows(each: Any, count: int) -> bool:
    return isinstance(each, Tensor) and each.ndim > 0 and len(each) == count


def _is_copy(output: Any, part: slice, batch: int, plain: Any) -> bool:
    """Return True if an output holds rows of samples, and those in `part` are the plain output, up to rounding."""
    if any(
        isinstance(each, Tensor | PLAIN) and not _has_rows(each, batch) for each in _leaves(output)
    ):
        return False
    mine, theirs = _leaves(samples_of(output, part, batch)), _leaves(plain)
    return len(mine) == len(theirs) and all(map(_is_close, mine, theirs))


def _leaves(output: Any) -> list[Any]:
    return _pytree.tree_leaves(output)


def _is_close(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return type(one) is type(other)
    if one.shape != other.shape or not one.is_floating_point():
        return torch.equal(one, other)
    off = torch.linalg.vector_norm(one - other)
    return bool(off <= torch.finfo(one.dtype).eps ** 0.5 * torch.linalg.vector_norm(other))


def check_metric(metric: Any) -> Callable[[Any], Any]:
    """Return a metric that names the output of the model where it takes that for something else.

    Raises:
        ArgumentTypeError: code `effects.metric`, also when the metric raises.
    """
    if not callable(metric):
        raise ArgumentTypeError(
            "effects.metric", f"metric must make one number of an output; got {shown(metric)}."
        )

    def of_output(output: Any) -> Any:
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
    """Return what reports the runs that are done: a line on a terminal for True, nothing for False, or a function.

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
    """Return what a metric made, as a number.

    Raises:
        ArgumentTypeError: code `effects.metric`.
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
    """Write a line on a terminal that counts."""
    if sys.stderr.isatty():
        end = "\r" if done < total else "\r\x1b[K"
        print(f"effects: {done} of {total} runs", end=end, file=sys.stderr, flush=True)
