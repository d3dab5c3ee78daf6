"""clearhead: attention you can see through."""

from clearhead import layers, testing
from clearhead.biases import Bias, alibi, relative
from clearhead.conformance import Contract, Finding, Report, check
from clearhead.errors import (
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
from clearhead.functional import attend
from clearhead.head_roles import roles
from clearhead.influence import rollout
from clearhead.layers import MultiHeadAttention
from clearhead.layers.converting.convert import Conversion, convert
from clearhead.masks import (
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
from clearhead.matrix import AttentionMatrix
from clearhead.planning import Plan, plan
from clearhead.profiling import Profile, profile
from clearhead.routes.sizes import Estimate
from clearhead.seen import Seen, load
from clearhead.summary import Roles, Summary, TopK
from clearhead.table import HeadRow, Table
from clearhead.tracing import Step, Trace, trace
from clearhead.viewing import view
from clearhead.watching import Watch, watch

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
