from .conformance_cases import ConformanceCase
from .suite import conformance
from .tolerances import assert_attention, assert_no_worse
from .trains import assert_trains, check_training

__all__ = [
    "ConformanceCase",
    "assert_attention",
    "assert_no_worse",
    "assert_trains",
    "check_training",
    "conformance",
]
