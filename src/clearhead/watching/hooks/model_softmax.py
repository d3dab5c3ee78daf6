"""Attention that cannot be read: a model's own softmax, and direct calls of FlexAttention.

Nothing is recorded of it but that it ran, so that a record can say what it lacks.
"""

from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention

from clearhead._common.undoing import Undo
from clearhead.watching.hooks import tap


def _noticed(function: Any) -> Any:
    """Return the softmax function wrapped to report each call over the last dimension to the witnesses.

    Not reported: calls inside reported attention, those without a `dim`, and of what is no tensor. Results are
    unchanged.
    """

    @wraps(function)
    def noticed(scores: Any, *args: Any, **kwargs: Any) -> Any:
        """Report the call if it is over the last dimension, and return the function's result."""
        if tap.witnesses and not tap.is_guarded() and isinstance(scores, Tensor):
            dim = kwargs.get("dim", args[0] if args else None)
            if isinstance(dim, int) and dim in (-1, scores.ndim - 1):
                tap.witness("softmax", tuple(scores.shape))
        return function(scores, *args, **kwargs)

    return noticed


_flex = flex_attention.flex_attention


@wraps(_flex)
def _noticed_flex(*args: Any, **kwargs: Any) -> Any:
    """Report a call of FlexAttention to the witnesses, and return its output; what it calls is not reported."""
    if tap.witnesses and not tap.is_guarded():
        tap.witness("flex_attention", ())
    with tap.guard():
        return _flex(*args, **kwargs)


_method = Tensor.softmax
_noticed_method = _noticed(_method)

FUNCTIONS = [
    (torch.softmax, _noticed(torch.softmax)),
    (torch.special.softmax, _noticed(torch.special.softmax)),
    (_flex, _noticed_flex),
]
"""`torch.nn.functional.softmax` calls the method of the tensor."""


def install(undo: Undo) -> None:
    """Report calls of `Tensor.softmax` over the last dimension from now on, until `undo` is run."""
    before = vars(Tensor).get("softmax")

    def restore() -> None:
        """Put the earlier `Tensor.softmax` back; no-op if somebody else has replaced it since."""
        if vars(Tensor).get("softmax") is _noticed_method:
            if before is None:
                del Tensor.softmax
            else:
                Tensor.softmax = before

    undo.append(restore)
    Tensor.softmax = _noticed_method
