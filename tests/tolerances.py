"""The tolerance of a result, as `clearhead.testing` has it for everybody's tests."""

from clearhead.testing import assert_no_worse

__all__ = ["assert_no_worse"]
