# The signatures as type checkers see them: without what only catches words of other libraries (`hints.catching`).
from torch import Tensor

from clearhead.attention.biases import Bias
from clearhead.attention.planning import Plan
from clearhead.masks.base import Mask
from clearhead.sharding.sharding import Sharding

def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: Bias | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float | None = None,
    kernel: str = "auto",
    across: Sharding | tuple[Sharding, Sharding] | None = None,
) -> Tensor: ...
def plan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: Bias | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float | None = None,
    kernel: str = "auto",
    across: Sharding | tuple[Sharding, Sharding] | None = None,
) -> Plan: ...
