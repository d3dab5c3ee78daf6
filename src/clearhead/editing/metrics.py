"""The metric of edits, and progress reports of runs."""

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor

from clearhead._text import shown
from clearhead.errors import ArgumentTypeError, ClearheadError

Metric = Callable[[Any], Tensor | float]
"""Returns a number of the output of a model."""

Progress = Callable[[int, int], None]
"""Called with the number of edits that are done, and of all."""


def check_metric(metric: Any) -> Callable[[Any], Any]:
    """Return the metric wrapped so that its Attribute-, Index-, Key- or TypeErrors name the type of the model's output.

    Raises:
        ArgumentTypeError: code `effects.metric`, for what is no function; of the result, for these errors.
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
