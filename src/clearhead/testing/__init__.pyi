from .asserting import assert_attention
from .cases import ConformanceCase
from .suite import conformance
from .tolerances import assert_no_worse

__all__ = ["ConformanceCase", "assert_attention", "assert_no_worse", "conformance"]
