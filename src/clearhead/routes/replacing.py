"""One function in the place of another, under every name that a module has for it."""

import sys
from collections.abc import Callable
from typing import Any


def replace(
    old: Callable[..., Any], new: Callable[..., Any], home: dict[str, Any]
) -> Callable[[], None]:
    """Put a function in the place of another, in every loaded module that has it under any name.

    Args:
        old: the function to replace.
        new: what stands in for it.
        home: the names of the module that has both, and keeps them.

    Returns:
        What takes the function away again: from files that were loaded meanwhile as well. A patch
        that somebody else put in its place is left alone.

    Example:
        >>> import math
        >>> def rounded(x): return 1.0
        >>> take_away = replace(math.cos, rounded, home={})
        >>> math.cos(0.5)
        1.0
        >>> take_away()
        >>> round(math.cos(0.5), 2)
        0.88
    """
    _put(old, new, home)
    return lambda: _put(new, old, home)


def _put(old: Callable[..., Any], new: Callable[..., Any], home: dict[str, Any]) -> None:
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        # Tens of thousands of names are looked at: by `map` it takes half of the time.
        if names is home or id(old) not in map(id, list(names.values())):
            continue
        for name in [name for name, value in list(names.items()) if value is old]:
            names[name] = new
