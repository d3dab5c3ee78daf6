"""clearhead: attention you can see through.

What is public stands in `__init__.pyi`. A name is imported when it is first used, so the command
line answers and pytest starts without PyTorch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
