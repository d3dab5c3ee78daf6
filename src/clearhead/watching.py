"""The attention of a running model, without changing its kernel or its output.

While a model is watched, every reference to PyTorch's attention function is replaced by one that
notes query, key and mask and then calls the original with the same arguments. Which module is
running is known from hooks on all modules at once; hooks on the modules of the model itself would
turn PyTorch's fast paths off, and so change the result.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from types import TracebackType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from clearhead import planning
from clearhead.errors import ArgumentTypeError, SelectionError, WatchError
from clearhead.masks.base import Mask
from clearhead.masks.causal import causal
from clearhead.masks.dense import dense
from clearhead.matrix import AttentionMatrix
from clearhead.problem import Problem

_sdpa = F.scaled_dot_product_attention
_lock = threading.Lock()
_active: list["Watch"] = []
_restorers: list[Any] = []
_running = threading.local()


class Seen(Mapping[str, AttentionMatrix]):
    """What a watched model attended to: for each module that did, its attention matrix.

    Keys are the paths of the modules, in the order in which they first attended; the model itself
    is "". A number picks a module by its place in that order.

    Example:
        >>> import torch, clearhead as ch
        >>> model = torch.nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=2) for _ in range(2)))
        >>> with ch.watch(model) as seen:
        ...     output = model(torch.randn(1, 3, 8))
        >>> seen
        Sequential: 2 modules attended
          0  AttentionMatrix [batch=1, num_heads=2, query_len=3, kv_len=3]
          1  AttentionMatrix [batch=1, num_heads=2, query_len=3, kv_len=3]
        >>> seen["1"] is seen[-1]
        True
    """

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._calls: dict[str, list[AttentionMatrix]] = {}

    @property
    def layers(self) -> tuple[str, ...]:
        """The paths of the modules that attended, in order."""
        return tuple(self._calls)

    def calls(self, layer: str | int) -> tuple[AttentionMatrix, ...]:
        """Every call that a module made, in order.

        Raises:
            SelectionError: code `watch.layer`, if no such module attended.
        """
        name = layer
        if isinstance(layer, int):
            if not -len(self._calls) <= layer < len(self._calls):
                raise SelectionError(
                    "watch.layer", f"{len(self._calls)} modules attended; there is no {layer}."
                )
            name = self.layers[layer]
        if name not in self._calls:
            known = ", ".join(map(repr, self.layers))
            raise SelectionError("watch.layer", f"no module {name!r} attended; these did: {known}.")
        return tuple(self._calls[str(name)])

    def __getitem__(self, layer: str | int) -> AttentionMatrix:
        calls = self.calls(layer)
        if len(calls) != 1:
            raise SelectionError(
                "watch.several",
                f"{layer!r} attended {len(calls)} times; calls({layer!r}) has them all.",
            )
        return calls[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, layer: object) -> bool:
        return layer in self._calls

    def __repr__(self) -> str:
        lines = [f"{self._model_name}: {len(self)} modules attended"]
        width = max((len(name) for name in self._calls), default=0)
        for name, calls in self._calls.items():
            times = f"  and {len(calls) - 1} more" if len(calls) > 1 else ""
            lines.append(f"  {name or '(the model)':{width}}  {calls[0]!r}{times}")
        return "\n".join(lines)


class Watch:
    """The context manager that `watch` returns."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._model = model
        self._ran = False
        self._trouble: Exception | None = None
        self._mask: Tensor | None = None
        self.seen = Seen(type(model).__name__)

    def __enter__(self) -> Seen:
        with _lock:
            _active.append(self)
            if len(_active) == 1:
                _install()
        return self.seen

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with _lock:
            _active.remove(self)
            if not _active:
                _uninstall()
        if error is None:
            self._complain()

    def name_of(self, stack: list[nn.Module]) -> str | None:
        """The path of the innermost running module of this model, or None."""
        for module in reversed(stack):
            if id(module) in self._names:
                return self._names[id(module)]
        return None

    def note(self, name: str, read: Callable[["Watch"], AttentionMatrix]) -> None:
        """Keep a call that a module made. What goes wrong is told when the block ends: until then
        the model goes on as if nobody watched."""
        try:
            self.seen._calls.setdefault(name, []).append(read(self))
        except Exception as error:
            self._trouble = self._trouble or error

    def kept(self, mask: Tensor) -> Tensor:
        """A copy of a mask, which may be written to after the call. Layers that share a mask share
        the copy."""
        last = self._mask
        alike = last is not None and (last.dtype, last.device) == (mask.dtype, mask.device)
        if last is None or not (alike and torch.equal(last, mask)):
            last = self._mask = mask.clone()
        return last

    def _complain(self) -> None:
        if self._trouble is not None:
            raise WatchError(
                "watch.unreadable", f"a call of attention could not be read: {self._trouble}"
            ) from self._trouble
        name = type(self._model).__name__
        if self.seen:
            return
        if not self._ran:
            raise WatchError(
                "watch.not-run",
                f"{name} was not called while it was watched, so nothing was seen. Code that "
                "torch.compile has compiled is not seen either.",
            )
        raise WatchError(
            "watch.nothing-seen",
            f"{name} ran without calling torch.nn.functional.scaled_dot_product_attention.\n"
            '  - a transformers model does with attn_implementation="sdpa", not with "eager"\n'
            "  - nn.MultiheadAttention does with need_weights=False, and in eval mode once\n"
            "    torch.backends.mha.set_fastpath_enabled(False) has been called\n"
            "  - code that torch.compile has compiled is not seen",
        )


def watch(model: nn.Module) -> Watch:
    """See every call of PyTorch's attention function that a model makes.

    The model runs on its own kernel and gives its own output, bit for bit. Query and key of each
    call are kept (O(tokens) memory); the matrix of weights is worked out where somebody looks.
    Layers of clearhead are seen as well. Weights are those before dropout.

    Args:
        model: any PyTorch model.

    Returns:
        A context manager; entering it gives a `Seen`, which maps the paths of modules to their
        `AttentionMatrix`.

    Raises:
        ArgumentTypeError: code `watch.model`, for something that is not a module.
        WatchError: when the block ends, codes `watch.not-run` if the model was not called and
            `watch.nothing-seen` if it attends by another route.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = torch.nn.TransformerEncoderLayer(16, nhead=2, batch_first=True)
        >>> with ch.watch(layer) as seen:
        ...     output = layer(torch.randn(1, 5, 16))
        >>> seen.layers
        ('self_attn',)
        >>> seen["self_attn"].shape
        torch.Size([1, 2, 5, 5])
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(
            "watch.model", f"model must be a torch.nn.Module; got {type(model).__name__}."
        )
    return Watch(model)


def _stack() -> list[nn.Module]:
    if not hasattr(_running, "stack"):
        _running.stack, _running.ours = [], False
    return _running.stack


def _enter_module(module: nn.Module, inputs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    _stack().append(module)
    for each in _active:
        each._ran = each._ran or module is each._model


def _leave_module(module: nn.Module, inputs: Any, output: Any) -> None:
    if torch.compiler.is_compiling():
        return
    stack = _stack()
    # A module that raised before its hook ran is still on top.
    while stack and stack.pop() is not module:
        pass


def _watchers() -> list[tuple["Watch", str]]:
    stack = _stack()
    named = [(each, each.name_of(stack)) for each in _active]
    return [(each, name) for each, name in named if name is not None]


def _observe(problem: Problem) -> Callable[[], None]:
    """Note a problem that runs on a kernel of our own."""
    options = {
        "mask": problem.mask,
        "bias": problem.bias,
        "scale": problem.scale,
        "softcap": problem.softcap,
        "sinks": None if problem.sinks is None else problem.sinks.detach().clone(),
    }
    for each, name in _watchers():
        each.note(name, lambda watch: _matrix(problem.query, problem.key, **options))
    # The fused kernel calls PyTorch's function in turn; that is the same attention.
    _running.ours = True
    return _end_of_ours


def _end_of_ours() -> None:
    _running.ours = False


def _matrix(query: Tensor, key: Tensor, **options: Any) -> AttentionMatrix:
    if is_functorch_wrapped_tensor(query):
        raise WatchError("watch.transformed", "it ran inside a transformation such as torch.vmap.")
    # Copies: a cache may be written to after the call.
    return AttentionMatrix(query.detach().clone(), key.detach().clone(), **options)


@wraps(_sdpa)
def _noting_sdpa(*args: Any, **kwargs: Any) -> Tensor:
    if not torch.compiler.is_compiling() and not getattr(_running, "ours", False):
        for each, name in _watchers():
            each.note(name, lambda watch: _read_call(watch, *args, **kwargs))
    return _sdpa(*args, **kwargs)


def _read_call(
    watch: Watch,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionMatrix:
    """The matrix of a call of PyTorch's function, in its conventions."""
    leading = query.shape[:-2]
    if not enable_gqa:
        leading = torch.broadcast_shapes(leading, key.shape[:-2])
        query, key = (t.expand(*leading, *t.shape[-2:]) for t in (query, key))
    mask: Mask | None = causal(offset=0) if is_causal else None
    bias = None
    if attn_mask is not None:
        attn_mask = watch.kept(attn_mask.detach()).expand(*leading, query.shape[-2], key.shape[-2])
        attn_mask = _four_dimensions(attn_mask)
        if attn_mask.dtype == torch.bool:
            mask = dense(attn_mask) if mask is None else mask & dense(attn_mask)
        else:
            bias = attn_mask
    return _matrix(
        _four_dimensions(query), _four_dimensions(key), mask=mask, bias=bias, scale=scale
    )


def _four_dimensions(tensor: Tensor) -> Tensor:
    """(…, num_heads, len, dim) as (batch, num_heads, len, dim)."""
    if tensor.ndim < 4:
        return tensor[(None,) * (4 - tensor.ndim)]
    return tensor if tensor.ndim == 4 else tensor.flatten(0, -4)


def _install() -> None:
    _stack().clear()
    _running.ours = False
    _restorers.append(register_module_forward_pre_hook(_enter_module).remove)
    _restorers.append(register_module_forward_hook(_leave_module, always_call=True).remove)
    planning.observers.append(_observe)
    _restorers.append(lambda: planning.observers.remove(_observe))
    _replace(_sdpa, _noting_sdpa)


def _uninstall() -> None:
    # What was imported or replaced meanwhile is found as well, and somebody else's patch left alone.
    _replace(_noting_sdpa, _sdpa)
    while _restorers:
        _restorers.pop()()


def _replace(old: Any, new: Any) -> None:
    """Put one function in the place of another, in every module that has it under any name."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        if names is globals():
            continue
        for name in [name for name, value in list(names.items()) if value is old]:
            names[name] = new
