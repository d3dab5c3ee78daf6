"""The cost of your attention over length, beside the fused call."""

from clearhead.profiling.profile import profile
from clearhead.profiling.report import Profile

__all__ = ["Profile", "profile"]
