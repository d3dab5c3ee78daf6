"""Whatever a public function or method gives shows itself at a prompt and in a notebook."""

import functools
import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead._common.elements import Drawn
from tests.surface import public_objects

PARTS = {
    "Bias": "an argument",
    "Cache": "an argument",
    "CacheBundle": "an argument",
    "ConformanceCase": "a parameter of a test",
    "HeadPicker": "a step on the way to an operation of an edit",
    "LayerEdit": "a step on the way to an operation of an edit",
    "Problem": "internal",
    "Spans": "internal",
    "Transposed": "a step on the way to a product",
}
"""Classes that functions return and that nobody looks at."""


def classes_in(hint: object) -> Iterator[type]:
    """Every class of clearhead that a return annotation names."""
    for each in typing.get_args(hint):
        yield from classes_in(each)
    found = typing.get_origin(hint) or hint
    if isinstance(found, type) and found.__module__.startswith("clearhead"):
        yield found


def returned(function: Any) -> set[type]:
    names = {name.rpartition(".")[2]: value for name, value in public_objects().items()}
    return set(classes_in(typing.get_type_hints(function, localns=names).get("return")))


def results() -> list[type]:
    """The classes that public functions return, and the methods of these."""
    waiting = list(public_objects().values())
    known: set[type] = set()
    while waiting:
        each = waiting.pop()
        functions = [each] if inspect.isfunction(each) else []
        if inspect.isclass(each) and not issubclass(each, BaseException | nn.Module):
            functions = [
                value.fget if isinstance(value, property) else value
                for name, value in inspect.getmembers(each)
                if not name.startswith("_") or name == "__enter__"
            ]
        for function in filter(inspect.isfunction, functions):
            new = returned(function) - known
            known |= new
            waiting += new
    plain = (BaseException, nn.Module, tuple)
    found = [each for each in known if not issubclass(each, plain) and each.__name__ not in PARTS]
    return sorted(found, key=lambda each: each.__name__)


@functools.cache
def made() -> dict[str, Any]:
    """One result of each kind."""
    torch.manual_seed(0)
    x = torch.randn(1, 5, 8)
    layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
    theirs = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    encoder = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)).eval()
    query = torch.randn(1, 2, 5, 4)
    with torch.no_grad(), ch.watch(layer, values=True) as seen:
        layer(x)
    with torch.no_grad(), ch.watch(layer, keep="contexts") as contexts:
        layer(x)
    with torch.no_grad(), ch.watch(layer, keep="total") as total:
        layer(x)

        layer(x)
    with torch.no_grad(), ch.edit(layer) as edit:
        edit[0].heads[1].hide(key=0)
        layer(x)
    block = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, norm_first=True)
    text = nn.Sequential(block, nn.LayerNorm(8), nn.Linear(8, 20)).eval()
    where = ch.across(world=2, tokens=8)
    shard = torch.empty(1, 2, 4, 4, device="meta")
    return {
        "AttentionMatrix": seen[0],
        "BlockMap": ch.causal().blocks(8, 8, block=(4, 4)),
        "Circuits": ch.reading.circuits(layer),
        "Contexts": contexts[0],
        "Conversion": ch.convert(theirs),
        "Edit": edit,
        "EditReport": edit.report,
        "Effects": ch.effects(layer, x, lambda out: out.sum(), progress=False),
        "HeadResults": contexts.results(0, layer),
        "FactoredHeads": ch.reading.circuits(layer).ov,
        "Figure": ch.figure(query, query, query),
        "HeadLinks": seen.find(-1, 0),
        "Lens": ch.reading.lens(text, x),
        "LogitShares": ch.reading.logits_of(text, x, 3),
        "Mask": ch.causal(),
        "ModelConversion": ch.convert(encoder, inputs=(x,)),
        "Norms": seen.norms(0),
        "Plan": ch.plan(query, query, query),
        "Report": ch.check(ch.attend, takes="qkv"),
        "Roles": ch.roles(seen[0]),
        "Seen": seen,
        "ShardedPlan": ch.plan(shard, shard, shard, across=where),
        "Sharding": where,
        "Summary": seen[0].summary(),
        "Table": seen.table(),
        "Totals": total[0],
        "Trace": ch.trace(ch.attend, query, query, query),
        "Watch": ch.watch(layer),
        "Writes": ch.reading.writes(text, x, top=2),
    }


NAMES = sorted(
    {
        *(each.__name__ for each in results()),
        "Contexts",
        "Conversion",
        "ModelConversion",
        "ShardedPlan",
    }
)


def test_there_is_one_of_each_kind() -> None:
    assert sorted(made()) == NAMES
    kinds = {each.__name__: each for each in results()}
    assert all(isinstance(thing, kinds[name]) for name, thing in made().items() if name in kinds)


@pytest.mark.parametrize("name", NAMES)
def test_it_shows_itself(name: str) -> None:
    thing = made()[name]
    drawn = thing._repr_html_()
    assert type(drawn) is str  # marimo takes no other
    assert drawn.startswith("<")
    assert len(drawn) < 300_000
    text = repr(thing)
    # Neither the default of objects nor that of dataclasses, which goes on for pages.
    assert " object at 0x" not in text
    assert not re.match(rf"{type(thing).__name__}\(\w+=", text)
    if type(thing).__repr__ is Drawn.__repr__:
        assert text == str(thing)


def test_names_are_escaped() -> None:
    model = nn.ModuleDict({"<b>": ch.MultiHeadAttention(8, num_heads=2)})
    x = torch.randn(1, 5, 8)
    with torch.no_grad(), ch.watch(model["<b>"]) as seen:
        model["<b>"](x)
    rows = [seen.find(0, 1), seen.table()]
    for each in rows:
        named = type(each)([row._replace(layer="<b>\x1b[31m") for row in each])
        drawn = named._repr_html_()
        assert "<b>" not in drawn
        assert "\x1b" not in drawn + repr(named)


def test_of_many_rows_the_first() -> None:
    layer = ch.MultiHeadAttention(70, num_heads=70)
    with torch.no_grad(), ch.watch(layer) as seen:
        layer(torch.randn(1, 3, 70))
    drawn = seen.table()._repr_html_()
    assert drawn.count("<tr") == 62
    assert "10 more rows; top(…) and sort(…) choose." in drawn
    roles = ch.roles(seen[0])
    assert "<td" in roles._repr_html_()
    one = ch.AttentionMatrix(torch.zeros(3, 2), torch.zeros(3, 2))
    assert ch.roles(one)._repr_html_().count("<tr") == 2
    several = ch.AttentionMatrix(torch.zeros(2, 2, 3, 2), torch.zeros(2, 2, 3, 2))
    assert "Sample 0 of 2." in ch.roles(several)._repr_html_()
