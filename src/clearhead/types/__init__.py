"""The types of results, for annotations and `isinstance`; users do not construct them.

The public names are in `__init__.pyi`.
"""

from clearhead._common import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
