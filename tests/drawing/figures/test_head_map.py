"""One head as a map: its image is the matrix."""

import numpy as np
import pytest
import torch
from matplotlib.colors import LogNorm, to_rgba
from matplotlib.figure import Figure

import clearhead as ch
from clearhead.drawing.figures.cells import HIDDEN, NO_NUMBER
from tests.drawing.figures.drawn import bar_label, blank, matrix, numbers, same, words

SIX = ["The", "cat", "sat", "on", "the", "mat", "."]


def test_the_image_is_the_matrix() -> None:
    weights = matrix(mask=ch.causal())
    axes = weights.plot(head=3, sample=1, tokens=SIX)
    seen = torch.ones(7, 7).tril().bool()
    same(numbers(axes), weights[1, 3].double().where(seen, torch.nan))
    assert blank(axes).equal(~seen)
    assert axes.get_title() == "sample 1, head 3"
    assert words(axes, "x") == words(axes, "y") == SIX
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("attended to (key)", "attends (query)")
    assert bar_label(axes) == "attention weight (share of 1) grey: hidden"
    scale, top = axes.images[0].norm, float(weights[1, 3].max())
    assert (scale.vmin, scale.vmax) == (0.0, top)
    # By the square root, so that small weights are seen.
    assert float(scale(top / 4)) == pytest.approx(0.5)


def test_hidden_and_no_number_look_different() -> None:
    query = torch.randn(1, 1, 3, 5)
    query[..., 1, :] = torch.nan
    axes = ch.AttentionMatrix(query, query.nan_to_num(), mask=ch.causal()).plot(head=0)
    map_, broken = axes.images
    assert tuple(map_.cmap.get_bad()) == to_rgba(HIDDEN)
    assert broken.to_rgba(broken.get_array())[1, 0].tolist() == list(to_rgba(NO_NUMBER))
    drawn = ~np.ma.getmaskarray(broken.get_array())
    assert drawn.tolist() == [[False] * 3, [True, True, False], [False] * 3]
    assert bar_label(axes) == "attention weight (share of 1) grey: hidden orange: no number"


def test_negative_numbers_count_from_the_end() -> None:
    weights = matrix()
    assert numbers(weights.plot(head=-1, sample=-2)).equal(weights[0, 5].double())


def test_queries_and_keys_of_their_own() -> None:
    weights = matrix(query_len=3, kv_len=11)
    source = [f"s{i}" for i in range(11)]
    axes = weights.plot(head=0, tokens=["a", "b", "c"], source_tokens=source)
    assert numbers(axes).equal(weights[0, 0].double())
    assert (words(axes, "y"), words(axes, "x")) == (["a", "b", "c"], source)
    only = weights.plot(head=0, source_tokens=source)
    assert words(only, "x") == source
    assert words(only, "y") != ["a", "b", "c"]


def test_weights_of_zero_are_not_hidden_on_a_logarithmic_scale() -> None:
    query = 200 * torch.eye(3)
    weights = ch.AttentionMatrix(query, torch.eye(3), mask=ch.causal())
    axes = weights.plot(log=True)
    assert float(weights[2, 0]) == 0.0
    assert blank(axes).equal(~torch.ones(3, 3).tril().bool())
    scale = axes.images[0].norm
    assert isinstance(scale, LogNorm)
    assert float(scale(0.0)) == 0.0
    assert not np.ma.is_masked(scale(0.0))


def test_a_matrix_without_heads_is_one_map() -> None:
    weights = ch.AttentionMatrix(torch.randn(3, 5), torch.randn(4, 5))
    axes = weights.plot()
    assert numbers(axes).equal(weights[...].double())
    assert axes.get_title() == ""
    assert weights.plot(head=0).get_title() == ""


def test_a_pooled_map_counts_tokens() -> None:
    weights = matrix(batch=1, query_len=60, kv_len=60)
    axes = weights.plot(head=2, cells=20, tokens=[f"t{i}" for i in range(60)])
    assert axes.images[0].get_array().shape == (20, 20)
    assert (axes.get_xlim(), axes.get_ylim()) == ((0.0, 60.0), (60.0, 0.0))
    # The middle of the first token's stretch, not that of the cell.
    assert axes.get_xticks()[0] == 0.5
    assert axes.get_xlabel().endswith("one cell = 3 × 3 tokens")


def test_a_summary_has_the_map_that_it_keeps() -> None:
    weights = matrix(query_len=11, kv_len=13)
    summary = weights.summary(pool=(5, 4))
    assert summary.pooled is not None
    axes = summary.plot(head=4, sample=1)
    queries = torch.tensor([3, 2, 2, 2, 2])
    assert numbers(axes).equal((summary.pooled[1, 4] / queries[:, None]).double())
    assert axes.get_xlabel().endswith("one cell ≈ 2 × 3 tokens")
    with pytest.raises(
        ch.errors.ArgumentError, match=r"holds no map; A\.summary\(pool="
    ) as refusal:
        weights.summary().plot(head=0)
    assert refusal.value.code == "plot.kind"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    query = torch.randn(1, 2, 5, 4, dtype=dtype, requires_grad=True)
    weights = ch.AttentionMatrix(query, query)
    assert numbers(weights.plot(head=1)).equal(weights[0, 1].detach().double())


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_it_is_written_in_every_format(kind: str, tmp_path: object) -> None:
    """Tokens are drawn as they are; no glyph is missing, which would be a warning."""
    hostile = ["$x^2$", "$\\frac{", "猫", "\u202eabc", "👩\u200d🚀", "กำ", ""]
    figure = Figure()
    axes = matrix().plot(head=0, tokens=hostile, ax=figure.subplots())
    assert words(axes, "y")[:2] == ["$x^2$", "$\\frac{"]
    figure.savefig(f"{tmp_path}/head.{kind}")
