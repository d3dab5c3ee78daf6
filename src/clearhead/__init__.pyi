from . import layers, samples, testing
from ._common.version import __version__
from .attention.biases import Bias
from .attention.distance_biases import alibi, relative
from .attention.functional import attend, plan
from .attention.planning import Plan
from .attention.sharded.sharded_plan import ShardedPlan
from .checking import Contract, Finding, Report, check
from .drawing.element.figure import Figure, figure
from .drawing.notebook.widget import view
from .editing.edit import Edit, edit
from .editing.effects import Effects, effects
from .editing.paths import paths
from .errors import (
    ArgumentError,
    ArgumentTypeError,
    ClearheadError,
    DeviceError,
    DtypeError,
    EditError,
    EditWarning,
    FileError,
    MaskError,
    MissingExtraError,
    ModelError,
    NoAttributeError,
    RankError,
    SelectionError,
    ShapeError,
    TooLargeError,
    UnsupportedError,
    WatchError,
    WatchWarning,
)
from .layers import MultiHeadAttention
from .layers.converting.convert import Conversion, convert
from .layers.converting.models import ModelConversion
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
from .matrix.contexts import Contexts
from .matrix.head_numbers import Roles
from .matrix.matrix import AttentionMatrix
from .matrix.roles import roles
from .matrix.rollout import rollout
from .matrix.some_totals import SomeTotals
from .matrix.summary import Summary, TopK
from .matrix.totals import Totals
from .sharding.sharding import Sharding, across
from .tracing.trace import Step, Trace, trace
from .watching.circuits import circuits
from .watching.estimate import Estimate
from .watching.logit_lens import Lens, lens
from .watching.logit_shares import LogitShares, logits_of
from .watching.missing import Missing
from .watching.relevance import relevance
from .watching.seen import Seen, load
from .watching.table import HeadRow, Table
from .watching.watch import watch
from .watching.watcher import Watch
from .watching.writes import Writes, writes

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "AttentionMatrix",
    "Bias",
    "BlockMap",
    "ClearheadError",
    "Contexts",
    "Contract",
    "Conversion",
    "DeviceError",
    "DtypeError",
    "Edit",
    "EditError",
    "EditWarning",
    "Effects",
    "Estimate",
    "Figure",
    "FileError",
    "Finding",
    "HeadRow",
    "Lens",
    "LogitShares",
    "Mask",
    "MaskError",
    "Missing",
    "MissingExtraError",
    "ModelConversion",
    "ModelError",
    "MultiHeadAttention",
    "NoAttributeError",
    "Plan",
    "RankError",
    "Report",
    "Roles",
    "Seen",
    "SelectionError",
    "ShapeError",
    "ShardedPlan",
    "Sharding",
    "SomeTotals",
    "Step",
    "Summary",
    "Table",
    "TooLargeError",
    "TopK",
    "Totals",
    "Trace",
    "UnsupportedError",
    "Watch",
    "WatchError",
    "WatchWarning",
    "Writes",
    "__version__",
    "across",
    "alibi",
    "attend",
    "causal",
    "check",
    "circuits",
    "convert",
    "dense",
    "documents",
    "edit",
    "effects",
    "figure",
    "full",
    "layers",
    "lens",
    "load",
    "logits_of",
    "padding",
    "paths",
    "plan",
    "prefix",
    "relative",
    "relevance",
    "roles",
    "rollout",
    "samples",
    "sliding_window",
    "testing",
    "trace",
    "view",
    "watch",
    "writes",
]
