"""The content of a figure, as numbers and words."""

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

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
    bar = axes.figure.axes[-1]
    return " ".join((bar.get_ylabel() or bar.get_xlabel()).replace(";", "").split())


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


class Model(nn.Module):
    """Layers of different numbers of heads, the last of which attends twice, the second time to fewer tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.one = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        self.two = ch.MultiHeadAttention(8, num_heads=4, num_kv_heads=2)
        self.three = ch.MultiHeadAttention(8, num_heads=1)

    def forward(self, x: Tensor, mask: ch.Mask) -> Tensor:
        x = self.two(self.one(x, mask=mask), mask=mask)
        return self.three(self.three(x, mask=mask)[:, :5])


def seen(mask: ch.Mask | None = None, **options: object) -> ch.types.Seen[ch.AttentionMatrix]:
    """What a watch of the model has seen of two samples of seven tokens."""
    torch.manual_seed(0)
    model, x = Model(), 5 * torch.randn(2, 7, 8)
    with torch.no_grad(), ch.watch(model, **options) as found:  # type: ignore[call-overload]
        model(x, ch.full() if mask is None else mask)
    return found
