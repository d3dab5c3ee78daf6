"""The content of a figure, as numbers and words."""

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

import clearhead as ch


def numbers(axes: Axes) -> Tensor:
    """The numbers of the image of some axes; NaN where it is masked."""
    array = np.ma.asarray(axes.images[0].get_array(), dtype=np.float64)
    return torch.from_numpy(array.filled(np.nan))


def same(drawn: Tensor, expected: Tensor) -> None:
    """Compare numbers to the last bit, NaN equal to NaN."""
    torch.testing.assert_close(drawn, expected, rtol=0, atol=0, equal_nan=True)


def blank(axes: Axes) -> Tensor:
    """The mask of the image."""
    return torch.from_numpy(np.ma.getmaskarray(np.ma.asarray(axes.images[0].get_array())).copy())


def words(axes: Axes, axis: str) -> list[str]:
    """The labels of the ticks."""
    ticks = axes.get_xticklabels() if axis == "x" else axes.get_yticklabels()
    return [text.get_text() for text in ticks]


def bar_label(axes: Axes) -> str:
    """The label of the last colour bar of the figure, without its line breaks."""
    label = axes.figure.axes[-1].get_ylabel()
    return " ".join(label.replace(";", "").split())


def matrix(
    batch: int = 2,
    heads: int = 6,
    kv_heads: int = 3,
    query_len: int = 7,
    kv_len: int = 7,
    mask: ch.Mask | None = None,
) -> ch.AttentionMatrix:
    """Some attention weights, of queries that are far from alike."""
    query = 3 * torch.randn(batch, heads, query_len, 5)
    return ch.AttentionMatrix(query, torch.randn(batch, kv_heads, kv_len, 5), mask=mask)
