"""The cost of your attention over length, beside the fused call.

`profile` is a verb of its own, not a part of the report, and the sizes of its peer are those that the
evidence shows: a report is right or wrong, and the same at every run. It tells memory by the allocations that
PyTorch's profiler lists, which are the same each time, and kernels by the operations in the same list.
"""

from clearhead.profiling.profile import profile
from clearhead.profiling.report import Profile

__all__ = ["Profile", "profile"]
