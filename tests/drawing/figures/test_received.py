"""The weight that keys receive, as the matrix has it, per query head."""

import pytest
import torch

import clearhead as ch
from tests.drawing.figures.drawn import bar_label, matrix, numbers, words
from tests.refusals import assert_refused


def test_bars_in_order() -> None:
    weights = matrix(mask=ch.causal())
    tokens = list("abcdefg")
    for thing in (weights, weights.summary()):
        axes = thing.plot("received", sample=1, tokens=tokens)
        assert axes.get_yscale() == "linear"
        assert thing.plot("received", log=True).get_yscale() == "log"
        heights = torch.tensor([bar.get_height() for bar in axes.patches])
        torch.testing.assert_close(heights.double(), weights[1].double().sum(dim=1).mean(dim=0))
        assert words(axes, "x") == tokens
        assert axes.get_title() == "sample 1, mean of 6 heads"
        assert axes.get_ylabel().replace("\n", " ") == "attention received (sum of weights)"


@pytest.mark.parametrize(("keys", "wide"), [(1, 3.2), (20, 4.4), (60, 12.0)])
def test_bars_are_as_broad_as_a_page_holds(keys: int, wide: float) -> None:
    figure = matrix(batch=1, query_len=3, kv_len=keys).plot("received").figure
    assert figure.get_size_inches()[0] == pytest.approx(wide + 0.8)


def test_heads_that_share_their_keys_are_known_together() -> None:
    weights = matrix(batch=1)
    axes = weights.plot("received", head=3)
    heights = torch.tensor([bar.get_height() for bar in axes.patches])
    torch.testing.assert_close(heights.double(), weights[0, 2:4].double().sum(dim=1).mean(dim=0))
    assert " ".join(axes.get_title().split()) == "mean of heads 2, 3, which share their keys"
    several = weights.plot("received", head=[0, 5])
    assert several.get_title() == "mean of heads 0, 1, 4, 5"
    heights = torch.tensor([bar.get_height() for bar in several.patches])
    torch.testing.assert_close(
        heights.double(), weights[0, [0, 1, 4, 5]].double().sum(dim=1).mean(dim=0)
    )


def test_kept_heads_in_an_order_of_ones_own() -> None:
    layer = ch.MultiHeadAttention(24, num_heads=6, num_kv_heads=3)
    with ch.watch(layer, heads=[1, 0, 5, 4]) as seen:
        layer(torch.randn(1, 7, 24))
    axes = seen[0].plot("received", head=5)
    assert " ".join(axes.get_title().split()) == "mean of heads 5, 4, which share their keys"
    heights = torch.tensor([bar.get_height() for bar in axes.patches])
    expected = seen[0][0, 2:].double().sum(dim=1).mean(dim=0)
    torch.testing.assert_close(heights.double(), expected)


def test_a_head_with_keys_of_its_own() -> None:
    weights = matrix(batch=1, kv_heads=6)
    axes = weights.plot("received", head=-1)
    heights = torch.tensor([bar.get_height() for bar in axes.patches])
    torch.testing.assert_close(heights.double(), weights[0, 5].double().sum(dim=0))
    assert axes.get_title() == "head 5"


@pytest.mark.parametrize("log", [False, True])
def test_of_many_keys_those_that_receive_most(log: bool) -> None:
    weights = matrix(batch=1, query_len=97, kv_len=101)
    tokens = [f"t{i}" for i in range(101)]
    axes = weights.plot("received", source_tokens=tokens, log=log)
    most, places = weights.received()[0].double().mean(dim=0).topk(24)
    widths = torch.tensor([bar.get_width() for bar in axes.patches])
    torch.testing.assert_close(widths.double(), most / 2)  # two heads share a key
    assert words(axes, "y") == [f"{place} t{place}" for place in places.tolist()]
    assert axes.get_ylabel() == "the 24 keys of 101 that receive most"
    assert axes.get_xscale() == ("log" if log else "linear")
    assert words(weights.plot("received"), "y") == [str(place) for place in places.tolist()]


def test_layers_one_above_the_other() -> None:
    model = torch.nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=2) for _ in range(3)))
    with ch.watch(model) as seen:
        model(torch.randn(2, 5, 8))
    axes = seen.plot("received", tokens=list("abcde"), sample=1)
    # Each cell lies around its number.
    assert axes.images[0].get_extent() == [-0.5, 4.5, 2.5, -0.5]
    expected = torch.stack([seen[i].received()[1].double().mean(dim=0) for i in range(3)])
    torch.testing.assert_close(numbers(axes), expected)
    assert words(axes, "x") == list("abcde")
    assert words(axes, "y") == ["layer 0", "layer 1", "layer 2"]
    assert bar_label(axes) == "attention received (sum of weights)"
    one = seen.plot("received", heads=[1])
    expected = torch.stack([seen[i].received()[0, 1].double() for i in range(3)])
    torch.testing.assert_close(numbers(one), expected)


def test_layers_with_other_keys() -> None:
    layer = torch.nn.TransformerDecoderLayer(8, nhead=2, batch_first=True)
    with ch.watch(layer) as seen:
        layer(torch.randn(1, 4, 8), torch.randn(1, 6, 8))
    assert_refused(lambda: seen.plot("received"), "plot.lengths", "[4, 6]")
    assert words(seen.plot("received", layers=["multihead_attn"]), "y") == ["multihead_attn"]
