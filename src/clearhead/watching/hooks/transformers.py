"""The lookup of attention functions in the models of transformers.

There every implementation passes through, the eager one included, and key heads are not repeated
yet. transformers itself is not imported: it is loaded if a model of it is watched.
"""

import sys
from functools import partial, wraps
from typing import Any

from torch import Tensor

from clearhead._common.undoing import Undo
from clearhead.matrix.matrix import matrix_of
from clearhead.watching.hooks import tap
from clearhead.watching.hooks.described import NAME
from clearhead.watching.hooks.transformers_call import convention_of, read_call


def hold(undo: Undo) -> None:
    """Report the calls of models of transformers, if it is loaded, until `undo` is run; no-op if they are reported.

    Another patch on top is left alone.
    """
    loaded = sys.modules.get("transformers.modeling_utils")
    interface: Any = type(getattr(loaded, "ALL_ATTENTION_FUNCTIONS", None))
    if not hasattr(interface, "get_interface") or hasattr(interface.get_interface, "reports"):
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

    vars(get_interface)["reports"] = True
    undo.append(end)
    interface.get_interface = get_interface


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
