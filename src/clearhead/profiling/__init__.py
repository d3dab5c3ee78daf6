"""What somebody's own attention costs over length, beside the fused call."""

from clearhead.profiling.profile import profile
from clearhead.profiling.report import Profile

__all__ = ["Profile", "profile"]
