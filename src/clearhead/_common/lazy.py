"""Lazy imports upwards: the modules that draw are above what is drawn, and imported on first use."""

from importlib import import_module
from typing import Any


def drawing(module: str) -> Any:
    """Return a module of `clearhead.drawing`.

    Example:
        >>> drawing("labels").label("a\\tb")
        'a⇥b'
    """
    return import_module(f"clearhead.drawing.{module}")


def integration(module: str) -> Any:
    """Return a module of `clearhead.integrations`, which the conversion of another library's model needs.

    Example:
        >>> integration("transformers_adapter").TransformersAdapter.__name__
        'TransformersAdapter'
    """
    return import_module(f"clearhead.integrations.{module}")


def sample(module: str) -> Any:
    """Return a module of `clearhead.samples`, which has the model that is read where none is named.

    Example:
        >>> sample("packages").SAMPLES["minilm"].licence
        'Apache-2.0'
    """
    return import_module(f"clearhead.samples.{module}")
