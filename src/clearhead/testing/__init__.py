"""For other people's tests: `assert_attention`."""

from clearhead.testing.asserting import assert_attention

__all__ = ["assert_attention"]
