"""The tensors that a cache takes: their layout, and which tokens of a batch are real."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead._common.axes import KEY_AXES, VALUE_AXES, describe_tensor
from clearhead._common.checks import as_int, check_tensor
            raise ArgumentTypeError("rows.type", f"{expected} {shown(rows)}.")
        index = torch.tensor([int(row) for row in rows], dtype=torch.int64, device="cpu")
    if index.ndim != 1 or index.shape[0] == 0:
        raise ShapeError(
            "cache.reorder-shape",
            f"rows must have shape (new_batch,), with at least one row; got {tuple(index.shape)}.",
        )
    lowest, highest = int(index.min()), int(index.max())
    if lowest < 0 or highest >= batch:
        there = f"0 to {batch - 1}" if batch else "none: nothing was appended yet"
        raise SelectionError(
            "cache.reorder",
            f"rows must be those of the batch, {there}; got {lowest if lowest < 0 else highest}.",
        )
    return index
