"""The types of what functions return, for annotations and `isinstance`: nobody constructs one.

What is public stands in `__init__.pyi`.
"""

from clearhead._common import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
