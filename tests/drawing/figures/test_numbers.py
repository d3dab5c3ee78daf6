"""A number for each query or head, as the matrix and the summary have it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from tests.drawing.figures.drawn import bar_label, matrix, numbers, words


def per_query(weights: ch.AttentionMatrix, kind: str) -> Tensor:
    return getattr(weights.summary(), kind).double()


LABELS = {
    "entropy": "entropy (nats)",
    "distance": "distance (tokens)",
    "max": "largest weight (share of 1)",
    "first": "weight on the first key (share of 1)",
    "previous": "weight on the token before (share of 1)",
}


@pytest.mark.parametrize("kind", LABELS)
def test_one_head_is_a_line(kind: str) -> None:
    weights = matrix(mask=ch.causal())
    tokens = list("abcdefg")
    for thing in (weights, weights.summary()):
        axes = thing.plot(kind, head=4, sample=1, tokens=tokens)
        (line,) = axes.lines
        torch.testing.assert_close(torch.tensor(line.get_ydata()), per_query(weights, kind)[1, 4])
        assert list(line.get_xdata()) == list(range(7))
        assert " ".join(axes.get_ylabel().split()) == LABELS[kind]
        assert words(axes, "x") == tokens
        assert axes.get_title() == "sample 1, head 4"


@pytest.mark.parametrize("kind", LABELS)
def test_several_heads_are_strips(kind: str) -> None:
    weights = matrix(mask=ch.causal())
    for heads in (None, [5, 2]):
        axes = weights.plot(kind, head=heads)
        chosen = per_query(weights, kind)[0][slice(None) if heads is None else heads]
        torch.testing.assert_close(numbers(axes), chosen)
        assert words(axes, "y") == [f"head {head}" for head in heads or range(6)]
    assert bar_label(axes) == LABELS[kind]


def test_many_queries_are_averaged() -> None:
    weights = matrix(batch=1, query_len=60, kv_len=60)
    axes = weights.plot("entropy", cells=20)
    means = weights.entropy()[0].double().unflatten(1, (20, 3)).mean(dim=2)
    torch.testing.assert_close(numbers(axes), means)
    assert axes.get_xlabel() == "query\none point = the mean of 3 queries"
    line = weights.plot("entropy", head=1, cells=20).lines[0]
    torch.testing.assert_close(torch.tensor(line.get_ydata()), means[1])
    assert list(line.get_xdata()) == list(range(1, 60, 3))


def test_padding_is_white() -> None:
    weights = matrix(mask=ch.padding([7, 3]))
    drawn = numbers(weights.plot("entropy", sample=1))
    assert drawn.isnan().equal((torch.arange(7) >= 3).expand(6, -1))
    assert bar_label(weights.plot("entropy", sample=1)) == "entropy (nats) white: padding"
    assert not numbers(weights.plot("entropy")).isnan().any()
    means = numbers(weights.plot("entropy", sample=1, cells=2))
    torch.testing.assert_close(means[:, 0], weights.entropy()[1, :, :3].double().mean(dim=1))
    assert means[:, 1].isnan().all()


class Model(nn.Module):
    """Two layers, the second of which attends twice and has fewer heads."""

    def __init__(self) -> None:
        super().__init__()
        self.one = ch.MultiHeadAttention(8, num_heads=4)
        self.two = ch.MultiHeadAttention(8, num_heads=2)

    def forward(self, x: Tensor, mask: ch.Mask) -> Tensor:
        x = self.one(x, mask=mask)
        return self.two(self.two(x, mask=mask)[:, :5], mask=ch.full())


@pytest.mark.parametrize("keep", ["matrix", "summary"])
@pytest.mark.parametrize("kind", ["entropy", "distance", "first"])
def test_layers_and_heads(keep: Any, kind: str) -> None:
    """Averages are over the queries that are no padding, of all samples and calls."""
    model, x = Model(), torch.randn(2, 7, 8)
    with ch.watch(model) as matrices:
        model(x, ch.padding([7, 3]))
    with ch.watch(model, keep=keep) as found:
        model(x, ch.padding([7, 3]))
    real = torch.arange(7) < torch.tensor([[7], [3]])

    def rows(calls: tuple[ch.AttentionMatrix, ...], sample: slice) -> Tensor:
        each = [per_query(call, kind)[sample].transpose(1, 2) for call in calls]
        counted = [each[0][real[sample]], *(call.flatten(0, 1) for call in each[1:])]
        return torch.cat(counted).mean(dim=0)

    for sample, samples in ((None, slice(None)), (1, slice(1, 2))):
        axes = found.plot(kind, sample=sample)
        drawn = numbers(axes)
        torch.testing.assert_close(drawn[0], rows(matrices.calls("one"), samples))
        torch.testing.assert_close(drawn[1, :2], rows(matrices.calls("two"), samples))
        assert drawn[1, 2:].isnan().all()
    assert words(axes, "y") == ["one", "two"]
    assert words(axes, "x") == ["0", "1", "2", "3"]
    assert "white: there is none" in bar_label(axes)
    some = found.plot(kind, layers=[0], heads=[3, 0])
    torch.testing.assert_close(numbers(some)[0], rows(matrices.calls("one"), slice(None))[[3, 0]])


def test_the_mean_entropy_is_that_of_the_table() -> None:
    model = Model()
    with ch.watch(model) as found:
        model(torch.randn(2, 7, 8), ch.padding([7, 3]))
    drawn = numbers(found.plot("entropy"))
    for row in found.table():
        place = found.layers.index(row.layer)
        assert float(drawn[place, row.head]) == pytest.approx(row.entropy)


def test_numbers_are_written_where_there_is_room() -> None:
    from matplotlib.figure import Figure

    layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
    with ch.watch(layer) as found:
        layer(torch.zeros(1, 2, 8))
    axes = found.plot("entropy")
    assert [text.get_text() for text in axes.texts] == ["0.35", "0.35"]  # (0 + ln 2) / 2
    decoder = nn.TransformerDecoderLayer(8, nhead=2, batch_first=True)
    with ch.watch(decoder) as both:
        decoder(torch.zeros(1, 2, 8), torch.zeros(1, 3, 8))
    # Between two texts no token is before another.
    texts = [text.get_text() for text in both.plot("previous").texts]
    assert texts == ["0.50", "0.50", "", ""]
    tiny = Figure(figsize=(0.8, 0.8)).subplots()
    assert not found.plot("entropy", ax=tiny).texts


@pytest.mark.parametrize("head", [None, 2])
def test_a_logarithmic_scale(head: int | None) -> None:
    axes = matrix().plot("distance", head=head, log=True)
    scale = axes.get_yscale() if head is not None else type(axes.images[0].norm).__name__
    assert scale in ("log", "LogNorm")
