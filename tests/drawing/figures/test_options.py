"""Figures that are refused, with their words; and the axes of those that are drawn."""

from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

import clearhead as ch
from tests.drawing.figures.drawn import matrix, seen
from tests.refusals import refusals

KINDS = "map, entropy, distance, max, first, previous, received"
NOTHING = ch.AttentionMatrix(torch.zeros(1, 2, 0, 4), torch.zeros(1, 2, 3, 4))
EMPTY = "batch=1, num_heads=2, query_len=0, kv_len=3"
SEVEN = ["a"] * 7

test_of_a_matrix = refusals(
    lambda options: matrix().plot(**options),
    *(({"kind": kind}, "plot.kind", f"{KINDS} // {kind!r}") for kind in ("maps", None, 3, ["map"])),
    ({"kind": "entropy", "source_tokens": SEVEN}, "plot.option", "source_tokens // 'entropy'"),
    ({"tokens": SEVEN}, "plot.option", "tokens // 'map'"),
    ({"ax": 3}, "plot.option", "ax // 'map'"),
    ({"head": 0, "ax": 3}, "plot.axes", "int"),
    *(
        ({"kind": kind, "head": head}, "plot.part", f"head // from 0 to 5 // {shown}")
        for kind in ("map", "entropy", "received")
        for head, shown in (([], "[]"), ("0", "'0'"))
    ),
    *(
        ({"head": head}, "plot.part", f"head // from 0 to 5 // {shown}")
        for head, shown in ((6, "6"), (-7, "-7"), (1.0, "1.0"), (True, "True"), ([0, 6], "6"))
    ),
    ({"sample": 2}, "plot.part", "sample // 1 // 2"),
    ({"sample": "first"}, "plot.part", "sample // 1 // 'first'"),
    ({"head": 0, "tokens": ["a"] * 6}, "plot.tokens", "tokens // query // 7 // 6"),
    ({"head": 0, "tokens": "abcdefg"}, "plot.tokens", "tokens // str"),
    ({"head": 0, "tokens": range(7)}, "plot.tokens", "tokens // int"),
    ({"head": 0, "source_tokens": ["a"] * 3}, "plot.tokens", "source_tokens // key // 7 // 3"),
)
test_of_other_things = refusals(
    lambda call: call(),
    *((lambda kind=kind: NOTHING.plot(kind), "plot.empty", EMPTY) for kind in KINDS.split(", ")),
    (lambda: matrix().summary().plot("maps"), "plot.kind", f"{KINDS} // 'maps'"),
    (lambda: matrix().summary().plot(head=0), "plot.kind", KINDS.removeprefix("map, ")),
)

DECODER = nn.TransformerDecoderLayer(8, nhead=2, batch_first=True)
with ch.watch(DECODER) as BOTH:
    DECODER(torch.randn(1, 4, 8), torch.randn(1, 6, 8))

test_of_a_record = refusals(
    lambda options: seen().plot(**options),
    ({"kind": "maps"}, "plot.kind", f"{KINDS} // 'maps'"),
    ({"tokens": SEVEN}, "plot.option", "tokens // 'map'"),
    ({"ax": 3}, "plot.option", "ax // 'map'"),
    ({"kind": "entropy", "tokens": SEVEN}, "plot.option", "tokens // 'entropy'"),
    ({"layers": [1, 0], "heads": [3]}, "plot.part", "heads // from 0 to 1 // 3"),
    ({"kind": "entropy", "heads": [3]}, "plot.part", "heads // from 0 to 1 // 3"),
    ({"layers": "one"}, "plot.layers", "'one'"),
    ({"layers": 3.0}, "plot.layers", "3.0"),
    ({"layers": []}, "plot.layers"),
    ({"kind": "entropy", "layers": [7]}, "watch.layer", "7 // 0 ('one'), 1 ('two'), 2 ('three')"),
    ({"heads": [(0, 1), 2]}, "plot.part", "2"),
    ({"heads": [(0, 9)]}, "plot.part", "heads // from 0 to 1 // 9"),
    ({"heads": [(9, 0)]}, "watch.layer", "9 // 0 ('one'), 1 ('two'), 2 ('three')"),
    ({"heads": [(0, 0)], "columns": 0}, "plot.option", "columns // 0"),
    ({"heads": [(0, 0)], "width": -1.0}, "plot.option", "width // -1.0"),
    ({"heads": [(0, 0)], "layers": [0]}, "plot.option", "layers // 'map'"),
    ({"heads": [0], "width": 3.0}, "plot.option", "width // 'map'"),
    ({"heads": [(0, 0)], "tokens": ["a"]}, "plot.tokens", "tokens // query // 7 // 1"),
)
test_of_two_texts = refusals(
    lambda options: BOTH.plot(**options),
    ({"kind": "received"}, "plot.lengths", "[4, 6]"),
    ({"heads": [(0, 0), (1, 0)]}, "plot.lengths", "[(4, 4), (4, 6)]"),
)


@pytest.mark.parametrize("keep", ["matrix", "summary"])
def test_heads_that_were_kept_have_the_numbers_of_the_layer(keep: Any, tmp_path: Any) -> None:
    layer = ch.MultiHeadAttention(8, num_heads=4)
    with torch.no_grad(), ch.watch(layer, heads=[3, 1], keep=keep) as found:
        layer(torch.randn(1, 5, 8))
    for record in (found, ch.load(found.save(tmp_path / "a.clearhead"))):
        kept: Any = record[0]
        assert kept.plot(head=3).get_title() == "head 3"
        assert [each.get_title() for each in kept.plot()] == ["head 3", "head 1"]
        assert [each.get_title() for each in record.plot(heads=[1])[0]] == ["head 1"]
        strips = kept.plot("entropy")
        assert [each.get_text() for each in strips.get_yticklabels()] == ["head 3", "head 1"]
        line = record.plot("entropy", heads=[1])
        assert [each.get_text() for each in line.get_xticklabels()] == ["1"]
        assert line.images[0].get_array()[0, 0] == pytest.approx(record.table()[1].entropy)
        assert kept.plot("received", head=1).get_title() == "head 1"
        assert kept.plot("received").get_title() == "mean of heads 3, 1"
        assert "<b>head 3</b>" in kept._repr_html_()
        assert "heads, 3, 1" in record._repr_html_()
    text = r"\[plot.part\] head must be a whole number among 3, 1, the heads that were kept; got 0"
    with pytest.raises(ch.errors.SelectionError, match=text):
        found[0].plot(head=0)


def test_a_figure_is_one_of_pyplot_unless_axes_are_given() -> None:
    axes = matrix().plot(head=0)
    assert plt.gcf() is axes.figure
    assert matrix().plot(head=0).figure is not axes.figure
    plt.close("all")
    one = Figure().subplots()
    assert matrix().plot(head=0, ax=one) is one
    assert ch.causal().plot(3, 5, ax=one) is one
    assert matrix().plot("received", ax=one) is one
    assert plt.get_fignums() == []
