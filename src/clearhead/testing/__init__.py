"""For other people's tests: `assert_attention`, `conformance`, `assert_no_worse`."""

from clearhead.testing.asserting import assert_attention
from clearhead.testing.cases import ConformanceCase
from clearhead.testing.suite import conformance
from clearhead.testing.tolerances import assert_no_worse

__all__ = ["ConformanceCase", "assert_attention", "assert_no_worse", "conformance"]
