"""clearhead: attention you can see through.

What is public stands in `__init__.pyi`. A name is imported when it is first used, so the command
line answers and pytest starts without PyTorch.
"""

from clearhead._common import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
