"""A number for each query, key or head, as the matrix and the summary have it; and effects."""

from typing import Any

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

import clearhead as ch
from clearhead.drawing.figures.cells import WEIGHTS, write_numbers
from clearhead.editing.effects import Effect, Effects
from tests.drawing.figures.drawn import bar_label, matrix, numbers, same, seen, words


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
def test_one_head_is_a_line_and_several_are_strips(kind: str) -> None:
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
    for heads in (None, [5, 2]):
        axes = weights.plot(kind, head=heads)
        chosen = per_query(weights, kind)[0][slice(None) if heads is None else heads]
        torch.testing.assert_close(numbers(axes), chosen)
        assert words(axes, "y") == [f"head {head}" for head in heads or range(6)]
    assert bar_label(axes) == LABELS[kind]


def test_many_tokens_are_averaged() -> None:
    weights = matrix(batch=1, query_len=750, kv_len=750)
    axes = weights.plot("entropy")
    means = weights.entropy()[0].double().unflatten(1, (250, 3)).mean(dim=2)
    torch.testing.assert_close(numbers(axes), means)
    assert axes.get_xlabel() == "query\none point = the mean of 3 tokens"
    line = weights.plot("entropy", head=1).lines[0]
    torch.testing.assert_close(torch.tensor(line.get_ydata()), means[1])
    assert list(line.get_xdata()) == list(range(1, 750, 3))
    received = weights.received()[0].double().mean(dim=0).unflatten(0, (250, 3)).mean(dim=1)
    torch.testing.assert_close(heights(weights.plot("received")), received / 2)


def test_padding_is_white() -> None:
    weights = matrix(mask=ch.padding([7, 3]))
    drawn = numbers(weights.plot("entropy", sample=1))
    assert drawn.isnan().equal((torch.arange(7) >= 3).expand(6, -1))
    assert bar_label(weights.plot("entropy", sample=1)) == "entropy (nats) white: padding"
    assert not numbers(weights.plot("entropy")).isnan().any()


@pytest.mark.parametrize("keep", ["matrix", "summary"])
@pytest.mark.parametrize("kind", ["entropy", "distance", "first"])
def test_layers_and_heads(keep: Any, kind: str) -> None:
    """Averages are over the queries that are no padding, of all samples."""
    mask = ch.padding([7, 3])
    matrices, found = seen(mask), seen(mask, keep=keep)
    real = torch.arange(7) < torch.tensor([[7], [3]])

    def rows(name: str, sample: slice) -> Tensor:
        each = per_query(matrices[name], kind)[sample].transpose(1, 2)
        return each[real[sample]].mean(dim=0)

    layers: Any = ["one", "two"]
    for sample, samples in ((None, slice(None)), (1, slice(1, 2))):
        axes = found.plot(kind, layers=layers, sample=sample)
        drawn = numbers(axes)
        torch.testing.assert_close(drawn[1], rows("two", samples))
        if kind != "first":  # a role, of queries with a choice
            torch.testing.assert_close(drawn[0, :2], rows("one", samples))
        assert drawn[0, 2:].isnan().all()
    assert words(axes, "y") == layers
    assert words(axes, "x") == ["0", "1", "2", "3"]
    assert "white: there is none" in bar_label(axes)
    some = found.plot(kind, layers=[1], heads=[3, 0])
    torch.testing.assert_close(numbers(some)[0], rows("two", slice(None))[[3, 0]])
    # A module that attended several times is one row; all are those of the table.
    whole = numbers(found.plot("entropy"))
    table = found.table()
    assert len(whole) == 3
    assert float(whole[1, 2]) == pytest.approx(table[4].entropy)


def test_numbers_are_written_where_there_is_room() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
    with ch.watch(layer) as found:
        layer(torch.zeros(1, 2, 8))
    axes = found.plot("entropy")
    assert [text.get_text() for text in axes.texts] == ["0.35", "0.35"]  # (0 + ln 2) / 2
    decoder = nn.TransformerDecoderLayer(8, nhead=2, batch_first=True)
    with ch.watch(decoder) as both:
        decoder(torch.zeros(1, 2, 8), torch.zeros(1, 3, 8))
    # Between two texts no token is before another.
    assert [text.get_text() for text in both.plot("previous").texts] == ["0.50", "0.50"]
    tiny = Figure(figsize=(0.8, 0.8)).subplots()
    assert not found.plot("entropy", ax=tiny).texts
    image = Figure().subplots().imshow([[0.0, 1.0]], cmap=WEIGHTS)
    assert image.axes is not None
    assert write_numbers(image.axes, image)
    # Black on light, and white on dark.
    assert [text.get_color() for text in image.axes.texts] == [[0, 0, 0], [1, 1, 1]]


def heights(axes: Axes) -> Tensor:
    return torch.tensor([bar.get_height() for bar in axes.patches]).double()  # type: ignore[attr-defined]


def test_what_keys_receive() -> None:
    weights = matrix(mask=ch.causal())
    tokens = list("abcdefg")
    for thing in (weights, weights.summary()):
        axes = thing.plot("received", sample=1, tokens=tokens)
        torch.testing.assert_close(heights(axes), weights[1].double().sum(dim=1).mean(dim=0))
        assert words(axes, "x") == tokens
        assert axes.get_title() == "sample 1, mean of 6 heads"
        assert axes.get_ylabel().replace("\n", " ") == "attention received (sum of weights)"


@pytest.mark.parametrize(
    ("kv_heads", "head", "members", "title"),
    [
        (3, 3, [2, 3], "mean of heads 2, 3, which share their keys"),
        (3, [0, 5], [0, 1, 4, 5], "mean of heads 0, 1, 4, 5"),
        (6, -1, [5], "head 5"),
    ],
)
def test_heads_that_share_their_keys_are_known_together(
    kv_heads: int, head: Any, members: list[int], title: str
) -> None:
    weights = matrix(batch=1, kv_heads=kv_heads)
    axes = weights.plot("received", head=head)
    expected = weights[0, members].double().sum(dim=1).mean(dim=0)
    torch.testing.assert_close(heights(axes), expected)
    assert " ".join(axes.get_title().split()) == title


def test_kept_heads_in_an_order_of_ones_own() -> None:
    layer = ch.MultiHeadAttention(24, num_heads=6, num_kv_heads=3)
    with ch.watch(layer, heads=[1, 0, 5, 4]) as found:
        layer(torch.randn(1, 7, 24))
    axes = found[0].plot("received", head=5)
    assert " ".join(axes.get_title().split()) == "mean of heads 5, 4, which share their keys"
    torch.testing.assert_close(heights(axes), found[0][0, 2:].double().sum(dim=1).mean(dim=0))


def test_layers_one_above_the_other() -> None:
    model = nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=2) for _ in range(3)))
    with ch.watch(model) as found:
        model(torch.randn(2, 5, 8))
    axes = found.plot("received", tokens=list("abcde"), sample=1)
    # Each cell lies around its number.
    assert axes.images[0].get_extent() == [-0.5, 4.5, 2.5, -0.5]
    expected = torch.stack([found[i].received()[1].double().mean(dim=0) for i in range(3)])
    torch.testing.assert_close(numbers(axes), expected)
    assert words(axes, "x") == list("abcde")
    assert words(axes, "y") == ["layer 0", "layer 1", "layer 2"]
    assert bar_label(axes) == "attention received (sum of weights)"
    one = found.plot("received", heads=[1])
    expected = torch.stack([found[i].received()[0, 1].double() for i in range(3)])
    torch.testing.assert_close(numbers(one), expected)


NONE = float("nan")


@pytest.mark.parametrize(
    ("rows", "clean", "expected", "labels", "axis"),
    [
        # A layer may have fewer heads than another.
        (
            [("a", 0, 2.0), ("a", 1, -3.0), ("b", 0, 0.5)],
            None,
            [[2.0, -3.0], [0.5, NONE]],
            ["0", "1"],
            "head ablated",
        ),
        ([("a", None, 2.0), ("b", None, -1.0)], None, [[2.0], [-1.0]], ["all"], "head ablated"),
        # Of the heads of one position the one that changes most; the share that is restored.
        (
            [("a", 0, 1.0, 0, 0.1), ("a", 1, 1.0, 0, -0.4), ("a", 0, 1.0, 2, 0.3)],
            9.0,
            [[-0.4, NONE, 0.3]],
            ["0", "1", "2"],
            "position, its largest head patched",
        ),
    ],
)
def test_a_cell_is_an_effect(
    rows: list[tuple[Any, ...]],
    clean: float | None,
    expected: list[list[float]],
    labels: list[str],
    axis: str,
) -> None:
    effects = [Effect(layer, head, 7.0, *rest) for layer, head, *rest in rows]
    axes = Effects(effects, 5.0, clean).plot()
    same(numbers(axes), torch.tensor(expected, dtype=torch.float64))
    assert words(axes, "x") == labels
    assert words(axes, "y") == list(dict.fromkeys(layer for layer, *_ in rows))
    assert axes.get_xlabel() == axis
    measured = "change of the metric" if clean is None else "share of the metric restored"
    assert bar_label(axes) == measured
