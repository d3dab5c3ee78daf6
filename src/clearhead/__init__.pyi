from . import errors, layers, reading, samples, testing, types
from ._common.version import __version__
from .attention.biases import Bias
from .attention.distance_biases import alibi, relative
from .attention.functional import attend, plan
from .checking import Contract, check
from .drawing.element.figure import figure
from .drawing.notebook.widget import view
from .editing.edit import edit
from .editing.effects import effects
from .editing.paths import paths
from .layers import MultiHeadAttention
from .layers.converting.convert import convert
from .masks import Mask, causal, dense, documents, full, padding, prefix, sliding_window
from .matrix.matrix import AttentionMatrix
from .matrix.roles import roles
from .sharding.sharding import across
from .tracing.trace import trace
from .watching.seen import load
from .watching.watch import watch

__all__ = [
    "AttentionMatrix",
    "Bias",
    "Contract",
    "Mask",
    "MultiHeadAttention",
    "__version__",
    "across",
    "alibi",
    "attend",
    "causal",
    "check",
    "convert",
    "dense",
    "documents",
    "edit",
    "effects",
    "errors",
    "figure",
    "full",
    "layers",
    "load",
    "padding",
    "paths",
    "plan",
    "prefix",
    "reading",
    "relative",
    "roles",
    "samples",
    "sliding_window",
    "testing",
    "trace",
    "types",
    "view",
    "watch",
]
