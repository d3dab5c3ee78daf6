"""Attention by a softmax of a model's own: the classes of some packages are read while they run.

Of other softmaxes, and of direct calls of FlexAttention, only the fact that they ran is recorded, so that a record can
say what it lacks.
"""

import re
import threading
from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import flex_attention
from torch.overrides import TorchFunctionMode

from clearhead._common.undoing import Undo
from clearhead.attention.problem import Problem, make_problem
from clearhead.watching.hooks import sdpa, tap
from clearhead.watching.hooks.transformers_call import split_added
from clearhead.watching.missing import ATTENDS

PACKAGES = ("timm", "torchvision", "transformers")
"""The packages whose classes of attention are read."""

SOFTMAXES = {"softmax", "Softmax", "shifted_window_attention"}
"""In the code of a forward: it takes a softmax of its own."""

KEEPS = ("clone", "contiguous", "dropout", "to")
"""The functions between the softmax and the product with the values."""

VALUES = re.compile(r"(.+)(.)(.),\1\3(.)->\1\2\4")
SCORES = re.compile(r"(.+)(.)(.),\1(.)\3->\1\2\4")
"""The equations of a @ b and of a @ b.mT."""

_state = threading.local()
"""`reads` is True while code runs in a `_Reader` of the thread; missing or False otherwise."""


class _Reader(TorchFunctionMode):
    """Reports softmax(query @ key.mT · scale + bias) @ value where the code in the block computes it.

    `unread` has the shapes of the softmaxes that were not reported.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unread: list[tuple[int, ...]] = []
        # The last product, as scaled so far, with its query, key and scale.
        self._product: tuple[Any, ...] = (torch.empty(0), None, None, 1.0)
        # The weights of the last softmax, dropped as far as they are, with its scores and the rate of dropout.
        self._softmax: tuple[Any, ...] = (None, None, None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function and return its output; note a product, its scale and its softmax, and report its values."""
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if tap.is_guarded() or not args:
            return func(*args, **kwargs)
        (left, right), first, lead = _sides(name, args), args[0], getattr(args[-1], "shape", ())
        (product, query, key, scale), (weights, scores, dropout) = self._product, self._softmax
        if left is not None and left is weights and left.shape[:-2] == right.shape[:-2]:
            self.unread.pop()
            self._softmax = (None, None, None)
            read = partial(_problem, query, key, right, scores, scale, dropout)
            return tap.reporting(func, lambda *_: read(), put=sdpa.put)(*args)
        made = func(*args, **kwargs)
        if left is not None and min(left.ndim, right.ndim) > 3:
            self._product = made, left, right.mT, 1.0
        elif first is product and name in ("mul", "div") and lead[-2:] in ((), (1, 1)):
            self._product = made, query, key, scale * args[1] if name == "mul" else scale / args[1]
        elif name == "softmax":
            self.unread.append(tuple(first.shape))
            is_product = (product.shape[-3:], product.numel()) == (first.shape[-3:], first.numel())
            self._softmax = made if is_product else None, first, 0.0
        elif first is weights and (name in KEEPS or made is first):
            share = kwargs.get("p", 0.0) * kwargs.get("training", False)
            self._softmax = made if name in KEEPS else None, scores, dropout + share
        return made


def _sides(name: str, args: Any) -> Any:
    """Return a and b of a call of matmul or einsum that computes a @ b; (None, None) for any other call."""
    if name == "matmul" and len(args) == 2:
        return args
    if name == "einsum" and len(args) == 3:
        equation, left, right = args
        if VALUES.fullmatch(equation.replace(" ", "")):
            return left, right
        if SCORES.fullmatch(equation.replace(" ", "")):
            return left, right.mT
    return None, None


def _problem(query: Any, key: Any, value: Any, scores: Any, scale: Any, dropout: float) -> Problem:
    """Return the problem whose weights are softmax(scores), up to rounding.

    The difference of the scores from query @ key.mT · scale becomes mask and bias, and the scale a factor of the query.
    """
    query, key, value = (sdpa.four_dimensions(each) for each in (query * scale, key, value))
    product = query @ key.mT
    rest, share = scores.reshape(product.shape) - product, dropout or None
    rounding = 8 * torch.finfo(product.dtype).eps * product.abs().max()
    mask, bias = split_added(rest.masked_fill(rest.abs() <= rounding, 0.0), query.dtype)
    return make_problem(query, key, value, mask=mask, bias=bias, scale=1.0, dropout=share)


def _read(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward wrapped to report the attention in its code, and its other softmaxes to the witnesses."""

    @wraps(forward)
    def read(*args: Any, **kwargs: Any) -> Any:
        """Run the forward in a `_Reader`, and return its output; as it is if its module holds one with a fast path."""
        if tap.is_guarded() or any(isinstance(a, nn.MultiheadAttention) for a in args[0].modules()):
            return forward(*args, **kwargs)
        before, _state.reads = getattr(_state, "reads", False), True
        try:
            with _Reader() as reader:
                made = forward(*args, **kwargs)
        finally:
            _state.reads = before
        for shape in reader.unread:
            tap.witness("softmax", shape)
        return made

    return read


def hold(classes: Iterable[type[nn.Module]], undo: Undo) -> None:
    """Have the classes of `PACKAGES` that attend by a softmax of their own report it until `undo` is run."""
    for kind in classes:
        code = getattr(vars(kind).get("forward"), "__code__", _OURS)
        known = kind.__module__.partition(".")[0] in PACKAGES and ATTENDS.search(kind.__name__)
        if known and code is not _OURS and not SOFTMAXES.isdisjoint(code.co_names):
            undo.append(partial(setattr, kind, "forward", kind.forward))
            kind.forward = _read(kind.forward)


_OURS = _read(len).__code__
"""The code of every wrapped forward."""


def _noticed(function: Any) -> Any:
    """Return the softmax function wrapped to report each call over the last dimension to the witnesses.

    Not reported: calls inside reported attention, those without a `dim`, and of what is no tensor. Results are
    unchanged. Those in a class that is read are left to its `_Reader`.
    """

    @wraps(function)
    def noticed(scores: Any, *args: Any, **kwargs: Any) -> Any:
        """Report the call if it is over the last dimension, and return the function's result."""
        is_read = tap.is_guarded() or getattr(_state, "reads", False)
        if tap.witnesses and not is_read and isinstance(scores, Tensor):
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
