from ..attention.planning import Plan
from ..attention.sharded.sharded_plan import ShardedPlan
from ..checking import Finding, Report
from ..drawing.element.figure import Figure
from ..editing.edit import Edit
from ..editing.effects import Effects
from ..layers.converting.convert import Conversion
from ..layers.converting.model_conversion import ModelConversion
from ..masks import BlockMap
from ..matrix.head_numbers import Roles
from ..matrix.head_results import Contexts
from ..matrix.summary import Summary, TopK
from ..matrix.totals import Totals
from ..reading.head_circuits import Circuits
from ..reading.logit_lens import Lens
from ..reading.logit_shares import LogitShares
from ..reading.written_tokens import Writes
from ..sharding.sharding import Sharding
from ..tracing.traced_call import Step, Trace
from ..watching.missing import Missing
from ..watching.seen import Seen
from ..watching.table import HeadRow, Table
from ..watching.watcher import Watch

__all__ = [
    "BlockMap",
    "Circuits",
    "Contexts",
    "Conversion",
    "Edit",
    "Effects",
    "Figure",
    "Finding",
    "HeadRow",
    "Lens",
    "LogitShares",
    "Missing",
    "ModelConversion",
    "Plan",
    "Report",
    "Roles",
    "Seen",
    "ShardedPlan",
    "Sharding",
    "Step",
    "Summary",
    "Table",
    "TopK",
    "Totals",
    "Trace",
    "Watch",
    "Writes",
]
