"""Rounded numbers of a page, read as its script reads them."""

from typing import Any

import torch
from torch import Tensor


def restored(codes: Tensor, about: dict[str, Any]) -> Tensor:
    """The numbers that codes stand for; 0 for a hidden cell."""
    codes = codes.int()
    top = torch.tensor(about["top"]).view(-1, *[1] * (codes.ndim - 1))
    values = top * ((codes - 1).clamp(min=0) / about["levels"]) ** about["power"]
    return values.masked_fill(codes == about["levels"] + 2, torch.nan)
