"""Grids of heads: every map is its head's matrix, all on one scale."""

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.drawing.figures.head_grid import MOST_HIGH, MOST_WIDE
from tests.drawing.figures.drawn import bar_label, matrix, numbers
from tests.refusals import assert_refused, refusals


class Model(nn.Module):
    """Layers of different numbers of heads, the last of which attends twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        self.two = ch.MultiHeadAttention(8, num_heads=4, num_kv_heads=2)
        self.three = ch.MultiHeadAttention(8, num_heads=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.three(self.three(self.two(self.one(x))))


def seen() -> ch.types.Seen[ch.AttentionMatrix]:
    model = Model()
    with ch.watch(model) as found:
        model(5 * torch.randn(2, 7, 8))
    return found


def test_a_map_for_each_head() -> None:
    weights = matrix(mask=ch.causal())
    axes = weights.plot(sample=1)
    assert axes.shape == (6,)
    for head, each in enumerate(axes):
        drawn = numbers(each)
        assert drawn.nan_to_num(0.0).equal(weights[1, head].double())
        assert each.get_title() == f"head {head}"
        assert each.images[0].norm.vmax == float(weights[1].max())
    assert bar_label(axes[0]) == "attention weight (share of 1) grey: hidden"


def test_a_grid_with_a_gap_at_its_end() -> None:
    axes = matrix(heads=7, kv_heads=7).plot()
    assert len(axes[0].figure.axes) == 7 + 1  # a map each, and the colour bar


@pytest.mark.parametrize(("heads", "layers"), [(1, 1), (40, 1), (1, 40)])
def test_a_grid_is_no_larger_than_a_screen(heads: int, layers: int) -> None:
    each = (ch.MultiHeadAttention(2 * heads, num_heads=heads) for _ in range(layers))
    model = nn.Sequential(*each)
    with ch.watch(model) as found:
        model(torch.randn(1, 2, 2 * heads))
    wide, high = found.plot()[0, 0].figure.get_size_inches()
    assert 4.0 <= wide <= MOST_WIDE
    assert 2.4 <= high <= MOST_HIGH


def test_heads_without_a_batch() -> None:
    weights = ch.AttentionMatrix(torch.randn(3, 7, 5), torch.randn(3, 7, 5))
    for head, each in enumerate(weights.plot()):
        assert numbers(each).equal(weights[head].double())
        assert each.get_title() == f"head {head}"


def test_some_heads() -> None:
    weights = matrix()
    axes = weights.plot(head=[4, -6])
    assert [each.get_title() for each in axes] == ["head 4", "head 0"]
    assert numbers(axes[1]).equal(weights[0, 0].double())


def test_many_tokens_are_pooled_into_small_maps() -> None:
    weights = matrix(batch=1, heads=2, kv_heads=2, query_len=130, kv_len=130)
    axes = weights.plot()
    pooled = weights.pool(44, 44)
    sizes = (torch.arange(130) * 44 // 130).bincount()
    for head, each in enumerate(axes):
        assert numbers(each).equal((pooled[0, head] / sizes[:, None]).double())
    figure = axes[0].figure
    assert figure.get_supxlabel() == "attended to (key); one cell ≈ 3 × 3 tokens"


def test_layers_and_heads() -> None:
    found = seen()
    axes = found.plot(layers=["one", 1], sample=1)
    assert axes.shape == (2, 4)
    assert [[each is None for each in row] for row in axes] == [
        [False, False, True, True],
        [False, False, False, False],
    ]
    for row, name in enumerate(["one", "two"]):
        for head in range(found[name].shape[1]):
            drawn = numbers(axes[row, head]).nan_to_num(0.0)
            assert drawn.equal(found[name][1, head].double())
        assert axes[row, 0].get_ylabel() == name
    some = found.plot(layers=[1], heads=[3, 1])
    assert some.shape == (1, 2)
    assert numbers(some[0, 0]).equal(found["two"][0, 3].double())


def test_a_module_that_attended_in_several_runs_says_so() -> None:
    model = Model()
    with ch.watch(model) as found:
        model(torch.randn(2, 7, 8))
        model(torch.randn(2, 7, 8))
    with pytest.raises(ch.errors.SelectionError, match=r"'one' attended 2 times") as refusal:
        found.plot()
    assert refusal.value.code == "watch.several"
    # In one run it is as many layers.
    assert seen().plot().shape == (4, 4)


def test_given_axes_are_for_each_head_of_each_layer() -> None:
    from matplotlib.figure import Figure

    found = seen()
    axes = Figure().subplots(2, 3)
    drawn = found.plot(layers=[0, 1], ax=axes)
    assert drawn[1, 3] is axes[1, 2]
    with pytest.raises(
        ch.errors.ShapeError, match="6 axes, one for each head of each layer; got 4"
    ):
        found.plot(layers=[0, 1], ax=Figure().subplots(2, 2))


def test_summaries_have_the_maps_that_the_watch_kept() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2)
    with ch.watch(layer, keep="summary") as found:
        layer(torch.randn(1, 70, 8))
    axes = found.plot()
    pooled = found[0].pooled
    assert pooled is not None
    queries = (torch.arange(70) * 64 // 70).bincount()
    assert numbers(axes[0, 1]).equal((pooled[0, 1] / queries[:, None]).double())


def test_chosen_heads_for_a_paper() -> None:
    """It took four tries and then a grid by hand."""
    found, words = seen(), list("abcdefg")
    pairs = [(0, 1), (1, 3), (1, 0), (0, 0)]
    axes = found.plot(heads=pairs, tokens=words, columns=3, width=3.35, sample=1)
    figure = axes[0].figure
    figure.draw_without_rendering()
    assert figure.get_figwidth() == 3.35
    for each, (layer, head) in zip(axes, pairs, strict=True):
        # Cells, not an image, whose pixels a PDF would keep.
        assert not each.images
        drawn = torch.from_numpy(each.collections[0].get_array().filled(0.0))
        assert drawn.double().equal(found[layer][1, head].double())
        assert each.get_xlim() == (-0.5, 6.5)
        assert each.get_ylim() == (6.5, -0.5)
        assert each.get_title() == f"layer {layer}, head {head}"
        assert each.collections[0].norm.vmax == axes[0].collections[0].norm.vmax
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
    axes = seen().plot(
        heads=[(0, 1), (1, 3), (1, 0), (0, 0)], tokens=list("abcdefg"), columns=2, width=3.35
    )
    figure = axes[0].figure
    figure.draw_without_rendering()
    upper, lower = axes[0].get_window_extent(), axes[2].get_window_extent()
    assert upper.y0 - lower.y1 < 0.3 * upper.height


test_what_a_paper_cannot_show = refusals(
    lambda options: seen().plot(**options),
    ({"heads": [(0, 1), 2]}, "plot.part", "2"),
    ({"heads": [(0, 9)]}, "plot.part", "heads // 1 // 9"),
    ({"heads": [(9, 0)]}, "watch.layer", "3 // 9"),
    ({"heads": [(0, 0)], "columns": 0}, "plot.option", "columns // 0"),
    ({"heads": [(0, 0)], "width": -1.0}, "plot.option", "width // -1.0"),
    ({"heads": [(0, 0)], "layers": [0]}, "plot.option", "layers // 'map'"),
    ({"heads": [0], "width": 3.0}, "plot.option", "width // 'map'"),
    ({"heads": [(0, 0)], "tokens": ["a"]}, "plot.tokens", "tokens // query // 7 // 1"),
)


def test_chosen_heads_of_other_lengths_are_refused() -> None:
    model = nn.ModuleList([ch.MultiHeadAttention(8, num_heads=1) for _ in range(2)])
    with ch.watch(model) as found:
        for layer, length in zip(model, (5, 7), strict=True):
            layer(torch.randn(1, length, 8))
    assert_refused(lambda: found.plot(heads=[(0, 0), (1, 0)]), "plot.lengths", "[(5, 5), (7, 7)]")
