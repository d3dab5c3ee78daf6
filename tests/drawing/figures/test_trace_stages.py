"""The stages of a trace: every panel is its stage."""

import pytest
import torch

import clearhead as ch
from clearhead import ladder
from tests.drawing.figures.drawn import bar_label, blank, numbers, same, words
from tests.refusals import refusals, run

SIX = ["The", "cat", "sat", "on", "the", "mat"]


def traced(tokens: int = 6) -> ch.types.Trace:
    layer = ch.MultiHeadAttention(8, num_heads=4, num_kv_heads=2, mask=ch.causal())
    words = SIX if tokens == 6 else None
    return ch.trace(layer, torch.randn(2, tokens, 8), tokens=words)


def part(trace: ch.types.Trace, name: str, sample: int, head: int) -> torch.Tensor:
    """The stage of one sample and head; two query heads share a key."""
    tensor = trace[name].detach().double()[sample]
    return tensor if tensor.ndim == 2 else tensor[head // 2 if name in ("key", "value") else head]


@pytest.mark.parametrize("tokens", [6, 23])
def test_every_panel_is_its_stage(tokens: int) -> None:
    trace = traced(tokens)
    axes = trace.plot(sample=1, head=3)
    names = [name for name, step in trace.steps.items() if step.same_as is None]
    assert [each.get_title().split("\n")[0] for each in axes] == names
    hidden = ~torch.ones(tokens, tokens).tril().bool()
    for name, each in zip(names, axes, strict=True):
        expected = part(trace, name, 1, 3)
        if name in ("masked_scores", "weights"):
            assert blank(each).equal(hidden)
            expected = expected.masked_fill(hidden, torch.nan)
            assert each.patch.get_hatch()
        same(numbers(each), expected)
        low, high = each.images[0].get_clim()
        assert low == (0.0 if name == "weights" else -high)


def test_negative_numbers_are_orange_as_on_the_page() -> None:
    image = traced().plot(["query"])[0].images[0]
    (below, above) = (image.cmap(image.norm(image.norm.vmin * sign)) for sign in (1, -1))
    assert below[0] > below[2]  # more red than blue
    assert above[0] < above[2]


def test_small_stages_have_their_numbers() -> None:
    trace = traced()
    (axes,) = trace.plot(["weights"])
    weights = trace["weights"][0, 0].detach()
    written = [text.get_text() for text in axes.texts]
    expected = [f"{float(weights[row, key]):.2f}" for row in range(6) for key in range(row + 1)]
    assert written == expected
    assert words(axes, "x") == words(axes, "y") == SIX
    (long,) = traced(23).plot(["weights"])
    assert not long.texts
    assert bar_label(long) == "share of 1 hatched: hidden"


def test_large_numbers_stay_in_their_cells() -> None:
    query = torch.tensor([[1e6, 3.0], [-2.0, 40.0]])
    axes = ch.trace(ch.attend, query, 5 * query, query).plot(["query", "scores"])
    assert [text.get_text() for text in axes[0].texts] == ["1e06", "3.00", "−2.00", "40.00"]
    figure = axes[0].figure
    figure.canvas.draw()
    for each in axes:
        (left, right), columns = each.get_window_extent().intervalx, len(each.get_xticks())
        for text in each.texts:
            assert text.get_window_extent().width <= (right - left) / columns


def test_stages_in_the_order_asked_for() -> None:
    trace = traced()
    axes = trace.plot(["weights", "dropped_weights", "query"])
    titles = [each.get_title().split("\n")[0] for each in axes]
    assert titles == ["weights", "dropped_weights", "query"]
    assert words(axes[0], "y") == SIX


def test_queries_and_keys_of_their_own() -> None:
    rung = ladder.CrossAttention(3, head_dim=2, value_head_dim=2)
    trace = ch.trace(
        rung, torch.randn(2, 3), torch.randn(5, 3), tokens=["a", "b"], source_tokens=list("vwxyz")
    )
    axes = dict(
        zip(["query", "key", "weights"], trace.plot(["query", "key", "weights"]), strict=True)
    )
    assert words(axes["query"], "y") == words(axes["weights"], "y") == ["a", "b"]
    assert words(axes["key"], "y") == words(axes["weights"], "x") == list("vwxyz")


TRACE = traced()
EMPTY = ch.trace(ch.attend, torch.zeros(0, 2), torch.zeros(3, 2), torch.zeros(3, 2))
test_what_is_refused = refusals(
    run,
    (lambda: TRACE.plot(["weight"]), "trace.stage", f"'weight' // {', '.join(TRACE.steps)}"),
    (lambda: TRACE.plot(head=7), "trace.part", "4 // num_heads // 7"),
    (lambda: TRACE.plot("weights"), "plot.stages", "'weights'"),
    (lambda: TRACE.plot([]), "plot.stages"),
    (EMPTY.plot, "plot.empty"),
)
