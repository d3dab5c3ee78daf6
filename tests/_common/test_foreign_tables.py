"""Attributes of other libraries are answered by ours, wherever they are asked for."""

import re
from functools import cache
from typing import Any

import pytest
import torch

import clearhead as ch
from clearhead._common.foreign_names import ATTRIBUTES, TABLES
from clearhead.editing.layer_edit import HeadPicker, LayerEdit


@cache
def objects() -> dict[str, Any]:
    """An object of each class that has a table, with all that its answers begin with."""
    layer = ch.MultiHeadAttention(8, num_heads=2)
    with torch.no_grad(), ch.watch(layer) as seen:
        layer(torch.randn(1, 3, 8))
    edit = ch.edit(layer)
    return {
        "clearhead": ch,
        "Seen": seen,
        "Edit": edit,
        "LayerEdit": edit[0].heads[1],
        "HeadPicker": edit[0].heads,
        "MeasuredRows": ch.effects(layer, torch.randn(1, 3, 8), lambda output: output.sum()),
        "Circuits": ch.reading.circuits(layer),
        "BaseMatrix": seen[0],
        "NoTensor": seen[0],
    }


NAMES = [(owner, name) for owner, table in ATTRIBUTES.items() for name in table]
PREFIXES = {
    "A": ch.AttentionMatrix,
    "seen": ch.types.Seen,
    "rows": ch.types.Effects,
    "circuits": type(objects()["Circuits"]),
    "edit": ch.types.Edit,
    "": LayerEdit,
}


@pytest.mark.parametrize(("owner", "name"), NAMES)
def test_a_name_of_others_is_answered(owner: str, name: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(objects()[owner], name)
    error = raised.value
    assert isinstance(error, ch.errors.NoAttributeError)
    assert error.code == "attribute.name"
    assert f" has no {name}; " in error.message
    assert error.message.endswith(f"rite {ATTRIBUTES[owner][name]}.")


def test_every_answer_names_what_there_is() -> None:
    words = [answer for answers in TABLES["arguments"].values() for answer in answers.values()]
    answers = [answer for table in TABLES["attributes"].values() for answer in table.values()]
    for answer in (*words, *answers):
        for path in re.findall(r"\bclearhead((?:\.\w+)+)", answer):
            found: Any = ch
            for part in path.split(".")[1:]:
                found = getattr(found, part)
    for answer in answers:
        for prefix, member in re.findall(
            r"(?:\b(A|seen|rows|circuits|edit)|(?<= ))\.(\w+)\(", answer
        ):
            assert hasattr(PREFIXES[prefix], member), answer


def test_names_of_parts_are_found_in_their_packages() -> None:
    for given, name, words in (
        (ch, "Rotary", "no Rotary; write clearhead.layers.Rotary."),
        (ch, "Spans", "no Spans; write clearhead.masks.Spans."),
        (ch.layers, "KVCache", "clearhead.layers has no KVCache; write clearhead.lay"),
    ):
        with pytest.raises(ch.errors.NoAttributeError, match=re.escape(words)):
            getattr(given, name)


@pytest.mark.parametrize("name", ["colour", "_ipython_display_", "__wrapped__", "__deepcopy__"])
def test_what_nobody_has_is_simply_not_there(name: str) -> None:
    for each in (*objects().values(), ch.layers, ch.testing):
        if name != "__deepcopy__" or each is not objects()["MeasuredRows"]:
            assert not hasattr(each, name)
        with pytest.raises(AttributeError, match=name) as raised:
            getattr(each, name)
        assert not isinstance(raised.value, ch.errors.ClearheadError)


def test_a_name_is_answered_where_the_object_has_the_answer() -> None:
    report: Any = ch.edit(ch.MultiHeadAttention(8, num_heads=2)).report
    with pytest.raises(AttributeError, match="'EditReport' object has no attribute 'heatmap'"):
        _ = report.heatmap


@pytest.mark.parametrize("name", ["z", "context", "colour", "ablate"])
@pytest.mark.parametrize("kind", [LayerEdit, HeadPicker])
def test_nothing_is_assigned_in_an_edit(name: str, kind: type) -> None:
    with pytest.raises(AttributeError, match=f"cannot assign to field '{name}'"):
        setattr(objects()[kind.__name__], name, 0)
