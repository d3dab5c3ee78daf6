"""The way up: what draws stands on a higher floor than what is drawn, and is fetched by name when
somebody wants to look."""

from importlib import import_module
from typing import Any


def drawing(module: str) -> Any:
    """A module of `clearhead.drawing`.

    Example:
        >>> drawing("labels").label("a\\tb")
        'a⇥b'
    """
    return import_module(f"clearhead.drawing.{module}")
