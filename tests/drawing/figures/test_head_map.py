"""One head as a map: its image is the matrix."""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

import clearhead as ch
from clearhead.drawing.colours import HIDDEN, NO_NUMBER
from clearhead.drawing.figures.cells import around_zero, grain, upwards
from clearhead.matrix.head_view import HeadMaps
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
    assert numbers(matrix().plot(head=-1, sample=-2)).shape == (7, 7)


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


def test_queries_and_keys_of_their_own() -> None:
    weights = matrix(query_len=3, kv_len=11)
    source = [f"s{i}" for i in range(11)]
    axes = weights.plot(head=-6, tokens=["a", "b", "c"], source_tokens=source)
    assert numbers(axes).equal(weights[0, 0].double())
    assert (words(axes, "y"), words(axes, "x")) == (["a", "b", "c"], source)
    only = weights.plot(head=0, source_tokens=source)
    assert words(only, "x") == source
    assert words(only, "y") != ["a", "b", "c"]


def test_a_matrix_without_heads_is_one_map() -> None:
    weights = ch.AttentionMatrix(torch.randn(3, 5), torch.randn(4, 5))
    for axes in weights.plot(), weights.plot(head=0):
        assert numbers(axes).equal(weights[...].double())
        assert axes.get_title() == ""


def test_a_pooled_map_counts_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(self: object, index: object) -> None:
        raise AssertionError("the matrix was indexed")

    monkeypatch.setattr(ch.AttentionMatrix, "__getitem__", whole)
    query = torch.randn(1, 2, 3_000, 4)
    weights = ch.AttentionMatrix(query, query, mask=ch.causal())
    axes = weights.plot(head=1, tokens=[f"t{i}" for i in range(3_000)])
    assert axes.images[0].get_array().shape == (250, 250)
    assert (axes.get_xlim(), axes.get_ylim()) == ((0.0, 3_000.0), (3_000.0, 0.0))
    # The middle of the first token's stretch, not that of the cell.
    assert axes.get_xticks()[0] == 0.5
    assert axes.get_xlabel().endswith("one cell = 12 × 12 tokens")


@pytest.mark.parametrize(
    ("shape", "lengths", "words"),
    [
        ((11, 13), (11, 13), ""),
        ((7, 8), (41, 43), "one cell ≈ 6 × 5 tokens"),
        ((10, 10), (300_000, 20_000), "one cell = 30 000 × 2 000 tokens"),
    ],
)
def test_a_grain_is_said_where_there_is_one(
    shape: tuple[int, int], lengths: tuple[int, int], words: str
) -> None:
    assert grain(HeadMaps(torch.rand(2, *shape), None, *lengths)) == words


def test_a_summary_has_the_map_that_it_keeps() -> None:
    weights = matrix(query_len=11, kv_len=13)
    summary = weights.summary(pool=(5, 4))
    assert summary.pooled is not None
    axes = summary.plot(head=4, sample=1)
    queries = torch.tensor([3, 2, 2, 2, 2])
    assert numbers(axes).equal((summary.pooled[1, 4] / queries[:, None]).double())
    assert axes.get_xlabel().endswith("one cell ≈ 2 × 3 tokens")
    assert bar_label(axes) == "share of a query's attention, mean"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    query = torch.randn(1, 2, 5, 4, dtype=dtype, requires_grad=True)
    weights = ch.AttentionMatrix(query, query)
    assert numbers(weights.plot(head=1)).equal(weights[0, 1].detach().double())


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_it_is_written_in_every_format(kind: str, tmp_path: object) -> None:
    """Tokens are drawn as they are: a formula is not typeset, a control character not obeyed."""
    hostile = ["$x^2$", "$\\frac{", "猫", "\u202eabc", "\x1b[31m", "a" * 40, ""]
    figure = Figure()
    axes = matrix().plot(head=0, tokens=hostile, ax=figure.subplots())
    assert words(axes, "y") == [*hostile[:3], "\\u202eabc", "\\x1b[31m", "a" * 19 + "…", "∅"]
    figure.savefig(f"{tmp_path}/head.{kind}")


@pytest.mark.parametrize("values", [[0.0, 0.0], [], [np.nan], [0.5], [0.25, 0.5, np.nan]])
def test_a_scale_goes_from_zero_to_the_largest_number(values: list[float]) -> None:
    hidden = np.ma.MaskedArray([9.0], mask=[True])
    scale = upwards([np.array(values), hidden])
    assert (scale.vmin, scale.vmax) == (0.0, 0.5 if 0.5 in values else 1.0)


@pytest.mark.parametrize("values", [[-np.inf, 2.0], [0.0], []])
def test_zero_is_in_the_middle(values: list[float]) -> None:
    scale = around_zero(np.array(values))
    assert float(scale(0.0)) == 0.5
    assert scale.vmax == (2.0 if 2.0 in values else 1.0)
