"""The private parts of transformers; each use has a test.

A part that a version does not have is not known: a mask is then materialised, and the attentions of
a model are made whether they are requested or not.
"""

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

REMAPPED = "remap_positions_for_packed_sequence"

FUNCTIONS = (
    "causal_mask_function",
    "bidirectional_mask_function",
    "and_masks",
    "or_masks",
    "sliding_window_overlay",
    "sliding_window_bidirectional_overlay",
    "packed_sequence_mask_function",
    REMAPPED,
)
"""The mask functions of `masking_utils`, as far as they are read."""

INTERFACE = "ALL_ATTENTION_FUNCTIONS"
"""The name by which a model of transformers looks its function of attention up."""


def masking_utils() -> Any:
    """Return the module of the masks, imported in here so that the compiler can follow."""
    from transformers import masking_utils

    return masking_utils


def read_closure(function: Callable[..., Any]) -> tuple[str | None, dict[str, Any]]:
    """Return the name in `masking_utils` of a function, or of the one that made it, and the variables of its closure.

    (None, {}) for a function of another module.

    Example:
        >>> read_closure(masking_utils().sliding_window_overlay(3))
        ('sliding_window_overlay', {'sliding_window': 3})
    """
    masking, code = masking_utils(), getattr(function, "__code__", None)
    for name in FUNCTIONS:
        known = getattr(masking, name, None)
        if known is not None and (code is known.__code__ or code in known.__code__.co_consts):
            return name, dict(inspect.getclosurevars(function).nonlocals)
    return None, {}


def collects_attentions() -> bool:
    """Return True if the running model collects the attentions of its modules, or that cannot be known (before 5.3)."""
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:  # before transformers 5.3
        return True
    return any("attentions" in name for name in _active_collector.get() or ())


def looks_attention_up(kind: type[Any], base: type[Any]) -> bool:
    """Return True if a method of a class, below a base, looks its function of attention up by name."""
    methods = [
        inspect.unwrap(method)
        for parent in kind.__mro__[: kind.__mro__.index(base)]
        for method in vars(parent).values()
        if inspect.isfunction(method)
    ]
    return any(INTERFACE in method.__code__.co_names for method in methods)


def classes_by_name(kind: type[Any]) -> str | None:
    """Return the name of the dict of attention classes in a model class's module; None if there is none.

    The dict maps the name of an implementation to a class, and is read when the model is made.
    """
    for name, table in vars(sys.modules.get(kind.__module__, inspect)).items():
        if isinstance(table, dict) and "eager" in table and "ATTENTION" in name.upper():
            return name
    return None


def keeps_to_own_code(kind: type[Any], base: type[Any]) -> bool:
    """Return True if the module of a model's class has attentions, and none looks its function up by name."""
    module = sys.modules.get(kind.__module__)
    own = [
        each
        for each in vars(module or inspect).values()
        if isinstance(each, type)
        and issubclass(each, base)
        and each.__module__ == kind.__module__
        and not hasattr(each, "get_correct_attn_implementation")  # a whole model
    ]
    attending = [each for each in own if "Attention" in each.__name__]
    return bool(attending) and not any(looks_attention_up(each, base) for each in own)


def check_when_made(check: Callable[[type[Any], object], None]) -> None:
    """Have `check` called with class and implementation of each model of transformers before it is made, for good.

    Only the first call has an effect.
    """
    from transformers import PreTrainedModel

    original: Any = PreTrainedModel.get_correct_attn_implementation
    if hasattr(original, "checked"):
        return

    @wraps(original)
    def checked(self: Any, requested_attention: str | None, *args: Any, **kwargs: Any) -> str:
        """Call `check`, and return what the original method returns."""
        check(type(self), requested_attention)
        return original(self, requested_attention, *args, **kwargs)

    vars(checked)["checked"] = True
    PreTrainedModel.get_correct_attn_implementation = checked
