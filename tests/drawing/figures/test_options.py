"""Figures that are refused, and the words of the refusal."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import clearhead as ch
from tests.drawing.figures.drawn import matrix
from tests.refusals import assert_refused, refusals, wrong


def seen() -> ch.types.Seen[ch.AttentionMatrix]:
    layer = ch.MultiHeadAttention(8, num_heads=2)
    with ch.watch(layer) as found:
        layer(torch.randn(1, 5, 8))
    return found


@pytest.mark.parametrize("kind", ["maps", "", None, 3, ["map"]])
def test_a_kind_that_there_is_not(kind: object) -> None:
    common = "kind must be one of map, entropy, distance, max, first, previous, received"
    for thing in (matrix(), matrix().summary(), seen()):
        words = f"{common}; got {kind!r}."
        with pytest.raises(ch.errors.ArgumentError, match=re.escape(words)) as refusal:
            thing.plot(kind)  # type: ignore[arg-type]
        assert refusal.value.code == "plot.kind"


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("entropy", {"source_tokens": ["a"] * 7}),
        ("received", {"cells": 3}),
        ("map", {"tokens": ["a"] * 7}),
        ("map", {"source_tokens": ["a"] * 7}),
    ],
)
def test_options_that_a_kind_has_no_use_for(kind: str, option: dict[str, object]) -> None:
    with pytest.raises(ch.errors.ArgumentError, match="leave") as refusal:
        matrix().plot(kind, **option)  # type: ignore[arg-type]
    assert refusal.value.code == "plot.option"


@pytest.mark.parametrize(
    ("kind", "option"),
    [("map", {"tokens": ["a"] * 5}), ("entropy", {"tokens": ["a"] * 5}), ("entropy", {"cells": 3})],
)
def test_options_of_a_watch(kind: str, option: dict[str, object]) -> None:
    name = next(iter(option))
    words = f"{name} has no meaning for kind={kind!r} here; leave it out"
    with pytest.raises(ch.errors.ArgumentError, match=words) as refusal:
        seen().plot(kind, **option)  # type: ignore[arg-type]
    assert refusal.value.code == "plot.option"


def test_the_cells_of_a_summary_are_there_already() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2)
    with ch.watch(layer, keep="summary") as found:
        layer(torch.randn(1, 5, 8))
    with pytest.raises(
        ch.errors.ArgumentError, match="has the cells that it was made with"
    ) as refusal:
        found.plot(cells=3)
    assert refusal.value.code == "plot.option"


@pytest.mark.parametrize("head", [6, -7, 1.0, True, "0", [], [0, 6], [True]])
def test_heads_that_are_not_there(head: object) -> None:
    for kind in ("map", "entropy", "received"):
        with pytest.raises(
            ch.errors.SelectionError, match=r"head must be a whole number.* 0 to 5"
        ) as no:
            matrix().plot(kind, head=head)  # type: ignore[arg-type]
        assert no.value.code == "plot.part"


@pytest.mark.parametrize("sample", [2, -3, "first", 0.0])
def test_samples_that_are_not_there(sample: object) -> None:
    words = f"sample must be a whole number from 0 to 1; got {sample!r}"
    with pytest.raises(ch.errors.SelectionError, match=re.escape(words)) as refusal:
        matrix().plot(sample=sample)  # type: ignore[arg-type]
    assert refusal.value.code == "plot.part"


def test_heads_that_only_some_layers_have() -> None:
    model = torch.nn.Sequential(
        ch.MultiHeadAttention(8, num_heads=4), ch.MultiHeadAttention(8, num_heads=2)
    )
    with ch.watch(model) as found:
        model(torch.randn(1, 5, 8))
    assert_refused(lambda: found.plot("map", heads=[3]), "plot.part", "heads // 1 // 3")
    assert_refused(lambda: found.plot("entropy", heads=[3]), "plot.part", "heads // 1 // 3")


test_tokens = refusals(
    lambda tokens: matrix().plot(head=0, tokens=tokens),
    (["a"] * 6, "plot.tokens", "tokens // query // 7 // 6"),
    ("abcdefg", "plot.tokens", "tokens // str"),
    (range(7), "plot.tokens", "tokens // int"),
    (torch.arange(7), "plot.tokens", "tokens // Tensor"),
)


def test_tokens_of_keys() -> None:
    weights = matrix(query_len=3, kv_len=5)
    with pytest.raises(
        ch.errors.ShapeError, match="source_tokens must hold a word for each key, 5; got 3"
    ):
        weights.plot(head=0, source_tokens=["a"] * 3)


@pytest.mark.parametrize("kind", ["map", "entropy", "received"])
def test_nothing_to_draw(kind: str) -> None:
    for sizes in ({"query_len": 0}, {"kv_len": 0}):
        query = torch.zeros(1, 2, sizes.get("query_len", 3), 4)
        key = torch.zeros(1, 2, sizes.get("kv_len", 3), 4)
        with pytest.raises(
            ch.errors.ArgumentError, match="there is nothing to draw: batch=1"
        ) as no:
            ch.AttentionMatrix(query, key).plot(kind)
        assert no.value.code == "plot.empty"


def test_log_is_a_switch() -> None:
    assert_refused(lambda: matrix().plot(log=wrong("yes")), "log.type", "log // 'yes'")
    assert_refused(lambda: seen().plot(log=wrong("yes")), "log.type", "log // 'yes'")


@pytest.mark.parametrize("layers", ["one", 0, 3.0])
def test_layers_are_a_list(layers: object) -> None:
    words = f"layers must be a list of paths or numbers; got {layers!r}"
    with pytest.raises(ch.errors.ArgumentTypeError, match=re.escape(words)) as refusal:
        seen().plot(layers=layers)  # type: ignore[arg-type]
    assert refusal.value.code == "plot.layers"


def test_layers_that_are_not_there() -> None:
    assert_refused(lambda: seen().plot(layers=[]), "plot.layers")
    assert_refused(lambda: seen().plot("entropy", layers=[7]), "watch.layer", "1 // 7")


@pytest.mark.parametrize("keep", ["matrix", "summary"])
def test_heads_that_were_kept_have_the_numbers_of_the_layer(keep: Any, tmp_path: Path) -> None:
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
    with pytest.raises(
        ch.errors.SelectionError, match=r"\[plot.part\] heads must be a whole number"
    ):
        found.plot(heads=[2])
