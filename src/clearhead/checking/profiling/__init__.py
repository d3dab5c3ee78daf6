"""The cost of your attention over length, beside the fused call."""

from clearhead.checking.profiling.profile import profile
from clearhead.checking.profiling.report import Profile

__all__ = ["Profile", "profile"]
