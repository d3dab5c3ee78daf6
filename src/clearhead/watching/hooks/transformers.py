"""The lookup of attention functions in the models of transformers.

There every implementation passes through, the eager one included, and key heads are not repeated
yet. transformers itself is not imported: it is looked for among what is loaded, again before each
module runs, since it may be loaded later.
"""

import sys
from functools import partial, wraps
from typing import Any

from torch import Tensor

from clearhead._common.torch_internals import private
from clearhead._common.undoing import Undo
from clearhead.matrix.matrix import matrix_of
from clearhead.watching.hooks import tap
from clearhead.watching.hooks.described import NAME
from clearhead.watching.hooks.patching import Replacement, namespace
from clearhead.watching.hooks.transformers_call import convention_of, read_call

_KEY: Any = "clearhead.transformers"
_before: dict[Any, Any] = private("nn.modules.module._global_forward_pre_hooks")


def install(undo: Undo) -> None:
    """Report the calls of models of transformers from now on, until `undo` is run.

    If transformers is not loaded yet, a global hook looks again before each module runs.
    """

    def look(*_: object) -> None:
        """Replace the lookup of transformers if it is loaded, and stop looking."""
        loaded = sys.modules.get("transformers.modeling_utils")
        if hasattr(loaded, "ALL_ATTENTION_FUNCTIONS"):
            _before.pop(_KEY, None)
            _monkeypatch(loaded, undo)

    undo.append(lambda: _before.pop(_KEY, None))
    _before[_KEY] = look
    look()


def _monkeypatch(modeling_utils: Any, undo: Undo) -> None:
    """Have the models look up functions that report, until `undo` is run; another patch on top is left alone."""
    interface = type(modeling_utils.ALL_ATTENTION_FUNCTIONS)
    if not hasattr(interface, "get_interface"):
        _monkeypatch_each(modeling_utils.ALL_ATTENTION_FUNCTIONS, undo)
        return
    original = interface.get_interface

    @wraps(original)
    def get_interface(self: object, attn_implementation: str | None, default: Any) -> Any:
        """Return the function that the original lookup returns, reporting unless a reported call runs."""
        function = original(self, attn_implementation, default)
        return function if tap.is_guarded() else _reporting(attn_implementation, function)

    def end() -> None:
        """Put the original lookup back unless another patch is on top."""
        # Another patch on top of this one is left alone; below it this one reports nothing.
        if vars(interface).get("get_interface") is get_interface:
            interface.get_interface = original

    undo.append(end)
    interface.get_interface = get_interface


def _monkeypatch_each(functions: Any, undo: Undo) -> None:
    """Have each function of a registry of attention functions report until `undo` is run; for transformers ≤ 5.0.

    There models look functions up in the registry, or else call their module's `eager_attention_forward`.
    """
    # Without AttentionInterface, before transformers 4.50, it is a plain dictionary.
    put = getattr(type(functions), "register", functions.__setitem__)
    originals = dict(functions)
    eager = {
        id(function): function
        for module in list(sys.modules.values())
        if callable(function := (namespace(module) or {}).get("eager_attention_forward"))
    }

    def end() -> None:
        """Put the original functions back in the registry."""
        for name, function in originals.items():
            put(name, function)

    undo.append(end)
    for name, function in originals.items():
        put(name, _reporting(name, function))
    Replacement([(each, _reporting("eager", each)) for each in eager.values()]).install(undo)


def _reporting(implementation: str | None, function: Any) -> Any:
    """Return the function wrapped to report each call.

    The function itself if its conventions are unknown, or if it is clearhead's and no edited model is running.
    """
    # Ours reports its problems, unless the weights that it returns are edited as well; others may be
    # seen by what they call.
    if convention_of(implementation) is None or (implementation == NAME and not tap.is_edited()):
        return function
    read = partial(read_call, implementation)
    return tap.reporting(function, read, put=_put)


def _put(output: tuple[Any, ...], change: tap.Change, edited: tap.Read | None) -> tuple[Any, ...]:
    """Return the output with the change applied to its context, (batch, query_len, num_heads, value_head_dim).

    Weights next to it are those of the edited call, before dropout; unchanged if `edited` is None.
    """
    context, weights, *others = output
    context = change(context.transpose(1, 2)).transpose(1, 2).contiguous()
    if weights is not None and edited is not None:
        matrix = matrix_of(edited())
        weights = matrix.dense().to(weights.dtype) if isinstance(weights, Tensor) else matrix
    return context, weights, *others


def grows_by_update(cache: object) -> bool:
    """Return True for a DynamicCache of transformers itself, not a subclass, with growing or sliding layers only.

    False if it offloads, and while transformers' caches are not loaded.

    Example:
        >>> grows_by_update([])
        False
    """
    loaded: Any = sys.modules.get("transformers.cache_utils")
    if loaded is None or type(cache) is not loaded.DynamicCache:
        return False
    layers = {type(each).__name__ for each in getattr(cache, "layers", ())}
    is_plain = layers <= {"DynamicLayer", "DynamicSlidingWindowLayer"}
    return is_plain and not getattr(cache, "offloading", False)
