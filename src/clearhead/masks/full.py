"""No mask: every query sees every key."""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead._common.hints import with_hints
from clearhead.masks.base import Mask
from clearhead.masks.spans import Extent, Spans, every_key


@dataclass(frozen=True, eq=False, repr=False)
class Full(Mask, kind="full"):
    """Every query sees every key."""

    def visible(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return a bool tensor, True for every pair; as `Mask.visible` describes."""
        # torch.broadcast_shapes imports sympy when it is first called, which takes half a second.
        pairs, _ = torch.broadcast_tensors(query_index, key_index)
        return torch.ones((), dtype=torch.bool, device=key_index.device).expand(pairs.shape)

    def spans(self, extent: Extent) -> Spans:
        """Return one run of all keys for each query."""
        return every_key(extent)

    def common_run(self, extent: Extent) -> slice:
        """Return the run of all keys."""
        return slice(0, extent.kv_len)

    def describe(self) -> str:
        """Return the call that makes this mask, as text."""
        return "full()"


@with_hints
def full() -> Mask:
    """Return the mask that lets every query attend to every key.

    Three queries over three keys::

        ● ● ●
        ● ● ●

    Elsewhere: PyTorch `attn_mask=None`; FlexAttention `noop_mask`.

    Example:
        >>> import clearhead as ch
        >>> ch.full().to_dense(1, 2)
        tensor([[True, True]])
    """
    return Full()
