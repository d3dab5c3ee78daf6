"""A matrix, a summary and what was seen draw themselves."""

import pytest
import torch

import clearhead as ch
from clearhead.drawing.notebook.inline import matrices
from clearhead.drawing.notebook.inline.matrices import CELLS, MOST_HEADS, MOST_LAYERS, SIDE, shade
from tests.drawing.notebook.inline.reading import Markup, pixels

LIMIT = 300_000


def test_a_map_and_numbers_for_each_head() -> None:
    weights = ch.AttentionMatrix(*torch.randn(2, 3, 2, 7, 4), mask=ch.causal())
    found = Markup(str(weights._repr_html_()))
    assert repr(weights) in found.text
    assert "1.2 kB if it were in memory" in found.text
    assert "Sample 0 of 3." in found.text
    entropy, distance = weights.entropy()[0].mean(-1), weights.distance()[0].mean(-1)
    for head, image in enumerate(found.images):
        numbers = f"{entropy[head]:.2f} nats · {distance[head]:.1f} tokens"
        assert numbers in found.text
        assert numbers in image["alt"]
        pixel = SIDE // 7
        shown = pixels(image["src"])[::pixel, ::pixel]
        shares = weights[0, head].double()
        assert int((shown.int() - shade(shares / shares.max()).int()).abs().max()) <= 1
    assert len(found.images) == 2


def test_more_heads_than_are_drawn_are_counted() -> None:
    query = 10 * torch.randn(1, MOST_HEADS + 3, 97, 4)
    page = str(ch.AttentionMatrix(query, torch.randn_like(query))._repr_html_())
    assert len(page) < LIMIT
    found = Markup(page)
    assert len(found.images) == MOST_HEADS
    assert "3 more heads are not drawn." in found.text


def test_a_long_text_is_drawn_by_some_of_its_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrices, "PAIRS", 2 * 501 * 60)
    weights = ch.AttentionMatrix(*torch.randn(2, 1, 2, 501, 4), mask=ch.causal())
    text = Markup(str(weights._repr_html_())).text
    assert f"a row is one of {CELLS} queries, 501 in all" in text
    assert "Entropy and distance are averages of these queries" in text
    monkeypatch.setattr(matrices, "PAIRS", 0)
    found = Markup(str(weights._repr_html_()))
    assert found.images == []
    assert (
        "It is too large to be looked at in passing; summary() works its numbers out." in found.text
    )


def test_nothing_to_draw() -> None:
    empty = ch.AttentionMatrix(torch.zeros(2, 0, 4), torch.zeros(2, 3, 4))
    for thing in (empty, empty.summary()):
        found = Markup(str(thing._repr_html_()))
        assert "There are no numbers to draw." in found.text
        assert "nan" not in found.text
    summary = ch.AttentionMatrix(*torch.randn(2, 2, 5, 4)).summary()
    found = Markup(summary._repr_html_())
    assert found.images == []
    assert f"{summary.entropy[1].mean():.2f} nats" in found.text


def test_what_is_no_number_is_grey() -> None:
    query, key = torch.randn(2, 1, 5, 4)
    query[0, 2] = torch.nan
    (image,) = Markup(str(ch.AttentionMatrix(query, key)._repr_html_())).images
    shown = pixels(image["src"])[:: SIDE // 5, :: SIDE // 5]
    assert bool((shown[2] == 1).all())
    assert bool((shown[[0, 1, 3, 4]] > 1).all())


def test_a_row_for_each_layer() -> None:
    model = torch.nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=2) for _ in range(3)))
    with ch.watch(model) as seen:
        model(torch.randn(1, 5, 8))
    found = Markup(seen._repr_html_())
    assert len(found.images) == 3
    assert "Sequential: 3 modules attended" in found.text
    assert "2 heads, 5 × 5" in found.text
    low, high = (float(f(seen[1].entropy().mean(-1))) for f in (torch.min, torch.max))
    assert f"{low:.2f} to {high:.2f}" in found.text or f"{low:.2f}" in found.text
    assert [image["alt"] for image in found.images] == [f"maps of 2 heads of {n}" for n in range(3)]


def test_several_calls_and_summaries() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2)
    for keep in ("matrix", "summary"):
        with ch.watch(layer, keep=keep) as seen:
            for _ in range(2):
                layer(torch.randn(1, 3, 8))
        found = Markup(seen._repr_html_())
        assert "2 heads, 3 × 3, 2 calls, the first is drawn" in found.text
        assert len(found.images) == 1


def test_layers_without_numbers_have_a_dash() -> None:
    decoder = torch.nn.TransformerDecoderLayer(8, nhead=2, batch_first=True)
    for keep in ("matrix", "summary"):
        with ch.watch(decoder, keep=keep) as seen:
            decoder(torch.randn(1, 4, 8), torch.randn(1, 6, 8))
        found = Markup(seen._repr_html_())
        assert len(found.images) == 2
        assert found.text.count("—") == 1  # between two texts nothing has a distance
        layer = ch.MultiHeadAttention(8, num_heads=2)
        with ch.watch(layer, keep=keep) as seen:
            layer(torch.randn(1, 0, 8))
        found = Markup(seen._repr_html_())
        assert found.images == []
        assert "2 heads, 0 × 0 — — — There are no numbers to draw." in found.text
    model = torch.nn.ModuleList(ch.MultiHeadAttention(8, num_heads=2) for _ in range(2))
    with ch.watch(model) as seen:
        for tokens, each in enumerate(model):
            each(torch.randn(1, 3 * tokens, 8))
    # The second is a map, though the first is none.
    assert "The colours of each map go from 0" in Markup(seen._repr_html_()).text


@pytest.mark.parametrize(("layers", "heads"), [(24, 16), (MOST_LAYERS + 2, 5)])
def test_it_is_small_for_a_large_model(layers: int, heads: int) -> None:
    model = torch.nn.Sequential(
        *(ch.MultiHeadAttention(2 * heads, num_heads=heads) for _ in range(layers))
    )
    with ch.watch(model) as seen:
        model(10 * torch.randn(1, 67, 2 * heads))
    page = seen._repr_html_()
    assert len(page) < LIMIT
    found = Markup(page)
    assert len(found.images) == min(layers, MOST_LAYERS)
    assert ("2 more layers are not drawn." in found.text) == (layers > MOST_LAYERS)


def test_names_are_data() -> None:
    assert "0 modules attended" in Markup(ch.types.Seen("Model", "matrix")._repr_html_()).text
    model = torch.nn.Module()
    model.add_module("<script>", ch.MultiHeadAttention(8, num_heads=2))
    with ch.watch(model) as seen:
        model.get_submodule("<script>")(torch.randn(1, 3, 8))
    page = seen._repr_html_()
    assert "<script>" not in page
    assert "<script>" in Markup(page).text
