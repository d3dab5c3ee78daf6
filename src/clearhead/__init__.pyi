from . import layers, testing
from .biases import Bias, alibi, relative
from .conformance import Contract, Finding, Report, check
from .errors import (
    ArgumentError,
    ArgumentTypeError,
    ClearheadError,
    DeviceError,
    DtypeError,
    FileError,
    MaskError,
    MissingExtraError,
    ModelError,
    SelectionError,
    ShapeError,
    TooLargeError,
    UnsupportedError,
    WatchError,
)
from .functional import attend
from .head_roles import roles
from .influence import rollout
from .layers import MultiHeadAttention
from .layers.converting.convert import Conversion, convert
from .masks import (
    BlockMap,
    Mask,
    causal,
    dense,
    documents,
    full,
    padding,
    prefix,
    sliding_window,
)
from .matrix import AttentionMatrix
from .planning import Plan, plan
from .profiling import Profile, profile
from .routes.sizes import Estimate
from .seen import Seen, load
from .summary import Roles, Summary, TopK
from .table import HeadRow, Table
from .tracing import Step, Trace, trace
from .viewing import view
from .watching import Watch, watch

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "AttentionMatrix",
    "Bias",
    "BlockMap",
    "ClearheadError",
    "Contract",
    "Conversion",
    "DeviceError",
    "DtypeError",
    "Estimate",
    "FileError",
    "Finding",
    "HeadRow",
    "Mask",
    "MaskError",
    "MissingExtraError",
    "ModelError",
    "MultiHeadAttention",
    "Plan",
    "Profile",
    "Report",
    "Roles",
    "Seen",
    "SelectionError",
    "ShapeError",
    "Step",
    "Summary",
    "Table",
    "TooLargeError",
    "TopK",
    "Trace",
    "UnsupportedError",
    "Watch",
    "WatchError",
    "alibi",
    "attend",
    "causal",
    "check",
    "convert",
    "dense",
    "documents",
    "full",
    "layers",
    "load",
    "padding",
    "plan",
    "prefix",
    "profile",
    "relative",
    "roles",
    "rollout",
    "sliding_window",
    "testing",
    "trace",
    "view",
    "watch",
]
