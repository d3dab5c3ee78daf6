"""Helpers for users' tests: `assert_attention`, `assert_trains`, `conformance`, `assert_no_worse`.

Names are imported when they are first used, since pytest loads the plugin of this package in every
environment that has clearhead, and need not wait for PyTorch.

The laws of training are checked on copies (`testing/training/`): a rehearsal copies model, optimizer, loss and
state together, so that references between them stay intact. The target of each token is not declared: the gradient of a
cross-entropy with respect to the logits is below zero there alone. What the script alone knows, how it saves,
accumulates and decodes, is passed as functions.

A suite for kernel authors (`testing/suite.py`) asks by declared features instead: alone, in pairs, all at
once. A case holds the answer against `stages.py` in float64, with a tolerance that is measured on the same
tensors. A pair that is refused with NotImplementedError is skipped: to refuse is not to be wrong.
"""

from clearhead._common import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
