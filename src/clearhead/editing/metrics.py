"""The metric that edits are measured by, and the report of the runs that are done."""

import math
import sys
from collections.abc import Callable
from typing import Any, cast

from torch import Tensor

from clearhead._common.text import shown
from clearhead.errors import ArgumentTypeError

Progress = Callable[[int, int], None]
"""Called with the number of runs that are done, and of all."""


def check_metric(metric: Any) -> Callable[[Any], Any]:
    """Refuse what is no function of an output.

    Raises:
        ArgumentTypeError: code `effects.metric`.
    """
    if not callable(metric):
        raise ArgumentTypeError(
            "effects.metric", f"metric must make one number of an output; got {shown(metric)}."
        )
    return metric


def reporter(progress: object) -> Progress:
    """Return what reports the runs that are done: a line on a terminal, nothing, or a function of the caller's.

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
    """A line on a terminal that counts."""
    if sys.stderr.isatty():
        end = "\r" if done < total else "\r\x1b[K"
        print(f"effects: {done} of {total} runs", end=end, file=sys.stderr, flush=True)
