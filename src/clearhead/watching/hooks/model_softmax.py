"""Attention by a softmax of a model's own: the classes of some packages are read while they run.

Of other softmaxes, and of direct calls of FlexAttention, only the fact that they ran is recorded, so that a record can
say what it lacks.
"""

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

_running = threading.local()
"""`reader` is the `_Reader` of the class that runs in the thread; missing or None without one."""


class _Reader(TorchFunctionMode):
    """Reports softmax(query @ key.mT · scale + bias) @ value where the code in the block computes it.

    The bias is the difference of the scores from the scaled product, so the weights are those of the softmax whatever
    made them. `unread` has the shapes of the softmaxes that were not reported.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unread: list[tuple[int, ...]] = []
        self._product: Any = None
        self._scores: Any = None
        self._weights: Any = None
        self._query_key: Any = None
        self._scale: Any = 1.0
        self._dropout = 0.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function, and note the product, its scale, the softmax and its dropout; report the last product."""
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if tap.is_guarded() or not args:
            return func(*args, **kwargs)
        first, sides = args[0], _sides(name, args)
        left, right = sides or (None, None)
        if right is not None and left is self._weights and left.shape[:-2] == right.shape[:-2]:
            del self.unread[-1:]
            read = partial(self._problem, right)
            return tap.reporting(func, lambda *_: read(), put=sdpa.put)(*args)
        made = func(*args, **kwargs)
        if right is not None and min(left.ndim, right.ndim) > 3:
            self._product, self._query_key, self._scale = made, (left, right.mT), 1.0
        elif first is self._product and name in ("mul", "div"):
            self._product = made
            self._scale = self._scale * args[1] if name == "mul" else self._scale / args[1]
        elif name == "softmax":
            self.unread.append(tuple(first.shape))
            shape = torch.Size() if self._product is None else self._product.shape
            is_product = first.shape[-3:] == shape[-3:] and first.shape.numel() == shape.numel()
            self._scores, self._weights = first, made if is_product else None
            self._dropout = 0.0
        elif first is self._weights and (name in KEEPS or made is first):
            self._weights = made if name in KEEPS else None
            self._dropout += kwargs.get("p", 0.0) * kwargs.get("training", False)
        return made

    def _problem(self, value: Tensor) -> Problem:
        """Return the problem of the last softmax; a scale of each head is multiplied into the query."""
        query, key = self._query_key
        scale = self._scale
        if isinstance(scale, Tensor):
            query, scale = query * scale, 1.0
        query, key, value = (sdpa.four_dimensions(t) for t in (query, key, value))
        product = query @ key.mT * scale
        bias = self._scores.reshape(product.shape) - product
        rounding = 8 * torch.finfo(product.dtype).eps * product.abs().max()
        mask, rest = split_added(bias.masked_fill(bias.abs() <= rounding, 0.0), query.dtype)
        dropout = self._dropout or None
        return make_problem(query, key, value, mask=mask, bias=rest, scale=scale, dropout=dropout)


def _sides(name: str, args: Any) -> tuple[Tensor, Tensor] | None:
    """Return a and b of a call of matmul or einsum that computes a @ b; None for any other call."""
    if name == "matmul" and len(args) == 2:
        return args
    if name != "einsum" or len(args) != 3 or "->" not in args[0]:
        return None
    left, right, made = args[0].replace(" ", "").replace("->", ",").split(",")
    if (left[:-2] + left[-1:], made) == (right[:-1], left[:-1] + right[-1:]):
        return args[1], args[2]
    turned = (left[:-2], left[-1:], made) == (right[:-2], right[-1:], left[:-1] + right[-2:-1])
    return (args[1], args[2].mT) if turned else None


def _read(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward wrapped to report the attention in its code, and its other softmaxes to the witnesses."""

    @wraps(forward)
    def read(*args: Any, **kwargs: Any) -> Any:
        if tap.is_guarded():
            return forward(*args, **kwargs)
        outer, reader = getattr(_running, "reader", None), _Reader()
        try:
            _running.reader = reader
            with reader:
                made = forward(*args, **kwargs)
        finally:
            _running.reader = outer
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
        is_read = tap.is_guarded() or getattr(_running, "reader", None) is not None
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
        if vars(Tensor).get("softmax") is _noticed_method:
            if before is None:
                del Tensor.softmax
            else:
                Tensor.softmax = before

    undo.append(restore)
    Tensor.softmax = _noticed_method
