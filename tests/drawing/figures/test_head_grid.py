"""Grids of heads: every map is its head's matrix, all on one scale."""

from typing import Any

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.drawing.figures.head_grid import LEAST_HIGH, LEAST_WIDE, MOST_HIGH, MOST_WIDE
from tests.drawing.figures.drawn import bar_label, matrix, numbers, seen


def test_a_map_for_each_head() -> None:
    weights = matrix(mask=ch.causal())
    axes = weights.plot(sample=1)
    assert axes.shape == (6,)
    for head, each in enumerate(axes):
        assert numbers(each).nan_to_num(0.0).equal(weights[1, head].double())
        assert each.get_title() == f"head {head}"
        assert each.images[0].norm.vmax == float(weights[1].max())
    words = "attention weight (share of 1) grey: hidden rows attend to columns"
    assert bar_label(axes[0]) == words
    # A grid with a gap at its end: a map each, and the colour bar.
    assert len(matrix(heads=7, kv_heads=7).plot()[0].figure.axes) == 7 + 1


@pytest.mark.parametrize(("heads", "layers"), [(1, 1), (40, 1), (1, 40)])
def test_a_grid_is_no_larger_than_a_screen(heads: int, layers: int) -> None:
    each = (ch.MultiHeadAttention(2 * heads, num_heads=heads) for _ in range(layers))
    model = nn.Sequential(*each)
    with ch.watch(model) as found:
        model(torch.randn(1, 2, 2 * heads))
    wide, high = found.plot()[0, 0].figure.get_size_inches()
    assert LEAST_WIDE <= wide <= MOST_WIDE
    assert LEAST_HIGH <= high <= MOST_HIGH


def test_some_heads_without_a_batch() -> None:
    weights = ch.AttentionMatrix(torch.randn(6, 7, 5), torch.randn(6, 7, 5))
    axes = weights.plot(head=[4, -6])
    assert [each.get_title() for each in axes] == ["head 4", "head 0"]
    assert numbers(axes[1]).equal(weights[0].double())


def test_many_tokens_are_pooled_into_small_maps() -> None:
    weights = matrix(batch=1, heads=2, kv_heads=2, query_len=130, kv_len=130)
    axes = weights.plot()
    pooled = weights.pool(44, 44)
    sizes = (torch.arange(130) * 44 // 130).bincount()
    for head, each in enumerate(axes):
        assert numbers(each).equal((pooled[0, head] / sizes[:, None]).double())
    assert bar_label(axes[0]).endswith("rows attend to columns one cell ≈ 3 × 3 tokens")


@pytest.mark.parametrize("keep", ["matrix", "summary"])
def test_layers_and_heads(keep: str) -> None:
    found = seen(keep=keep)
    axes = found.plot(layers=["one", 1], sample=1 if keep == "matrix" else None)
    assert [[each is None for each in row] for row in axes] == [
        [False, False, True, True],
        [False, False, False, False],
    ]
    weights = seen()
    sample = 1 if keep == "matrix" else 0
    for row, name in enumerate(["one", "two"]):
        for head in range(weights[name].shape[1]):
            drawn = numbers(axes[row, head]).nan_to_num(0.0)
            torch.testing.assert_close(drawn, weights[name][sample, head].double())
        assert axes[row, 0].get_ylabel() == name
    some = found.plot(layers=[1], heads=[3, 1])
    assert [each.get_title() for each in some[0]] == ["head 3", "head 1"]


def test_a_module_that_attended_in_several_runs_says_so() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2)
    model = nn.Sequential(layer, layer)
    for runs in (1, 2):
        with ch.watch(model) as found:
            for _ in range(runs):
                model(torch.randn(2, 7, 8))
        if runs == 1:  # as many layers
            assert found.plot().shape == (2, 2)
    with pytest.raises(ch.errors.SelectionError, match=r"'0' attended 4 times") as refusal:
        found.plot()
    assert refusal.value.code == "watch.several"


PAIRS: Any = [(0, 1), (1, 3), (1, 0), (0, 0)]


def test_chosen_heads_for_a_paper() -> None:
    found, words = seen(), list("abcdefg")
    axes = found.plot(heads=PAIRS, tokens=words, columns=3, width=3.35, sample=1)
    figure = axes[0].figure
    figure.draw_without_rendering()
    assert figure.get_figwidth() == 3.35
    for each, (layer, head) in zip(axes, PAIRS, strict=True):
        assert numbers(each).nan_to_num(0.0).equal(found[layer][1, head].double())
        assert each.get_title() == f"layer {layer}, head {head}"
        assert each.images[0].norm.vmax == axes[0].images[0].norm.vmax
        # Nothing is cut off at the edges, words included.
        box = each.get_tightbbox().transformed(figure.transFigure.inverted())
        assert 0 <= box.x0 < box.x1 <= 1
        assert 0 <= box.y0 < box.y1 <= 1
    outer = (
        [bool(each.get_yticklabels()) for each in axes],
        [bool(e.get_xticklabels()) for e in axes],
    )
    assert outer == ([True, False, False, True], [False, True, True, True])
    assert axes[0].get_yticklabels()[0].get_text().endswith("a")


def test_rows_of_chosen_heads_follow_close_on_each_other() -> None:
    axes = seen().plot(heads=PAIRS, tokens=list("abcdefg"), columns=2, width=3.35)
    axes[0].figure.draw_without_rendering()
    upper, lower = axes[0].get_window_extent(), axes[2].get_window_extent()
    assert upper.y0 - lower.y1 < 0.3 * upper.height
