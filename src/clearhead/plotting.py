"""The door from the things that can be looked at to their figures, which stand on a higher floor.

`A.plot()` belongs to the matrix, and what draws it needs to know the matrix. So the method hands
itself over here, and what draws, with matplotlib, is imported by the first figure that somebody asks
for.
"""

import importlib
from typing import Any


def figures() -> Any:
    """The package that draws figures.

    Raises:
        MissingExtraError: if matplotlib is not installed.

    Example:
        >>> figures().__name__
        'clearhead.drawing.figures'
    """
    return importlib.import_module("clearhead.drawing.figures")
