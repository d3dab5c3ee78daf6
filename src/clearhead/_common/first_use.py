"""Names that are imported when they are first used, by one thread at a time."""

import threading
from collections.abc import Callable
from typing import Any

import lazy_loader

# One for all packages: imports that meet in a circle from two threads find half a module.
_LOCK = threading.RLock()


def attach(name: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose names stand in its stub.

    Args:
        name: `__name__` of the package.
        file: its `__file__`.
    """
    found, names, public = lazy_loader.attach_stub(name, file)

    def first_use(attribute: str) -> Any:
        with _LOCK:
            return found(attribute)

    return first_use, names, public
