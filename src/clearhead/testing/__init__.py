"""For other people's tests: `assert_attention`, `assert_trains`, `conformance`, `assert_no_worse`.

Names are imported when they are first used, since pytest loads the plugin of this package in every
environment that has clearhead, and need not wait for PyTorch.
"""

from clearhead._common import first_use

__getattr__, __dir__, __all__ = first_use.attach(__name__, __file__)
