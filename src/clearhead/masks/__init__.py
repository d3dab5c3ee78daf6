"""Masks of visible pairs: one idea a file, combined with `&`, `|` and `~`. True = may attend."""

from clearhead.masks.base import Mask
from clearhead.masks.blocks import BlockMap
from clearhead.masks.causal import causal
from clearhead.masks.dense import dense
from clearhead.masks.documents import documents
from clearhead.masks.full import full
from clearhead.masks.padding import padding
from clearhead.masks.prefix import prefix
from clearhead.masks.sliding_window import sliding_window

__all__ = [
    "BlockMap",
    "Mask",
    "causal",
    "dense",
    "documents",
    "full",
    "padding",
    "prefix",
    "sliding_window",
]
