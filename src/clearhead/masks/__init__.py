"""Masks of visible pairs: one idea a file, combined with `&`, `|` and `~`. True = may attend.

A mask answers four questions about a call, whose sizes are its `Extent`. `visible(query_index, key_index)`: any
pairs at all. `spans`: for each query, the few runs of keys that it sees, in O(tokens), where there is such a
description. `check`: whether it fits a problem. `&`, `|`, `~` work on all three.

`blocks()` counts the visible pairs of every block exactly, from the spans, in O(tokens + blocks). A mask without
spans, such as a tensor or holes in `padding(valid)`, is read in chunks of queries.

A mask of two texts that are packed apart (`masks/each_document.py`) asks another mask for each document
alone: its runs are those of the document, moved to where its keys begin. What counts through the row means
nothing next to it, so `Mask.cross` tells the algebra, biases and statistics.

Masks are not tensors that happen to be bool, because a tensor cannot say what it is for: which is how a 0/1
tensor gets added to the scores elsewhere.

`common_run`: the one run of keys that all queries see, if there is one, as numbers and without the spans.
"""

from clearhead.masks.base import Mask
from clearhead.masks.blocks import BlockMap
from clearhead.masks.causal import causal
from clearhead.masks.dense import dense
from clearhead.masks.documents import documents
from clearhead.masks.full import full
from clearhead.masks.padding import padding
from clearhead.masks.prefix import prefix
from clearhead.masks.sliding_window import sliding_window
from clearhead.masks.spans import Extent, Spans

__all__ = [
    "BlockMap",
    "Extent",
    "Mask",
    "Spans",
    "causal",
    "dense",
    "documents",
    "full",
    "padding",
    "prefix",
    "sliding_window",
]
