"""Edits of the contexts of heads, held against hooks on the output projections."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.editing.layer_edit import MEAN, OTHER
from clearhead.errors import EditError, EditWarning
from clearhead.watching.projections import projection_of
from tests.integrations.models import KINDS, OTHERS, inputs, make, pair
from tests.refusals import refusals

WIDTH, HEADS, LEN = 12, 4, 5


@contextmanager
def by_hand(
    model: nn.Module, path: str, heads: int, change: Callable[[Tensor], Any]
) -> Iterator[None]:
    """What a hook writes into the context that an output projection reads, (batch, heads, query_len, width)."""
    projection = projection_of(model, path)
    assert projection is not None

    def before(module: Any, given: Any) -> Any:
        flat = given[0].clone()
        batch = flat.shape[0]
        change(flat.view(batch, -1, heads, flat.shape[-1] // heads).transpose(1, 2))
        return (flat, *given[1:])

    handle = projection.register_forward_pre_hook(before)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize(
    ("name", "implementation"),
    [(name, how) for name, kind in KINDS.items() for how in kind.implementations]
    + [(name, "sdpa") for name in OTHERS],
)
@torch.no_grad()
def test_edits_are_those_of_hooks(name: str, implementation: str) -> None:
    model, given, other = pair(name, implementation)
    with ch.watch(model, keep="contexts") as clean:
        model(**other)
    for path in clean:
        sizes, other = clean[path].shape, clean[path].context
        vector = torch.randn(sizes[3], dtype=torch.float64)
        rows = torch.zeros(sizes[0], sizes[2], dtype=torch.bool)
        rows[1, 2] = rows[-1, 0] = True

        def replaced(z: Tensor, other: Tensor = other) -> None:
            z[:, 1] = other[:, 1]

        def at_last(z: Tensor, other: Tensor = other) -> None:
            z[:, 2, -1] = other[:, 2, -1]

        def of_rows(z: Tensor, other: Tensor = other, rows: Tensor = rows) -> None:
            z[:, 1][rows] = other[:, 1][rows]

        def added(z: Tensor, vector: Tensor = vector) -> None:
            z[:, 2, 1:3] += 4 * vector

        asked: list[tuple[Any, Any]] = [
            (replaced, lambda edit: edit.heads[1].replace(clean)),
            (at_last, lambda edit: edit.heads[2].replace(clean, query=-1)),
            (of_rows, lambda edit, o=other, r=rows: edit.heads[1].replace(o[:, 1:2], query=r)),
            (added, lambda edit, v=vector: edit.heads[2].add(v, scale=4, query=[1, 2])),
        ]
        for change, ask in asked:
            with by_hand(model, path, sizes[1], change):
                expected = model(**given)[0]
            with ch.edit(model) as edit:
                ask(edit[path])
                found = model(**given)[0]
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
            assert edit.report[0].queries


@torch.no_grad()
def test_a_whole_run_can_be_replaced_and_other_heads_keep_their_bits() -> None:
    model, given = make("llama", "sdpa"), inputs("llama", "left")
    with ch.watch(model, keep="contexts") as clean:
        expected = model(**given)[0]
    edit = ch.edit(model)
    edit["*"].replace(clean)
    said = pytest.warns(EditWarning, match="or it was there already")
    with said, edit:
        assert torch.equal(model(**given)[0], expected)
    layer, x = ch.MultiHeadAttention(WIDTH, num_heads=HEADS), torch.randn(2, 3, LEN, WIDTH)
    with ch.watch(layer, keep="contexts", heads=[3, 1]) as some:
        layer(x[0])
    with ch.watch(layer, keep="contexts") as plain:
        layer(x[1])
    with ch.edit(layer) as edit, ch.watch(layer, keep="contexts") as seen:
        edit[0].heads[-1].replace(some, query=slice(1, 3))
        edit[0].heads[1].replace(some[0])
        layer(x[1])
    expected = plain[0].context.clone()
    expected[:, 3, 1:3] = some[0].context[:, 0, 1:3]
    expected[:, 1] = some[0].context[:, 1]
    assert torch.equal(seen[0].context, expected)
    assert [each.queries for each in edit.report] == [6, 15]


@torch.no_grad()
def test_records_of_every_kind_are_read() -> None:
    layer, x = ch.MultiHeadAttention(WIDTH, num_heads=HEADS), torch.randn(2, 1, LEN, WIDTH)
    expected = layer(x[0])
    for keep in ("matrix", "contexts"):
        watch: Any = ch.watch(layer, keep=keep, contexts=True)
        with watch as clean:
            layer(x[0])
        for other in (clean, clean[0].context, ch.types.Contexts(clean[0].context, LEN)):
            with ch.edit(layer) as edit:
                edit[0].replace(other)
                torch.testing.assert_close(layer(x[1]), expected, rtol=0, atol=0)


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("name", ["llama", "mistral", "bart"])
@torch.no_grad()
def test_a_generation_is_edited_by_position(name: str, beams: int) -> None:
    model, given = make(name, "sdpa").double(), inputs(name)
    given.pop("decoder_input_ids", None)
    options: Any = {"max_new_tokens": 4, "num_beams": beams, "do_sample": False}
    path = [each for each, _ in model.named_modules() if each.endswith("self_attn")][-1]
    vector = torch.randn(model.config.hidden_size // 4, dtype=torch.float64) * 50
    if name == "bart":
        vector = torch.randn(24 // 3, dtype=torch.float64) * 50
    else:
        vector = torch.randn(6, dtype=torch.float64) * 50
    plain = model.generate(**given, **options)
    start = 1 if name == "bart" else given["input_ids"].shape[1]
    chosen = start + 1
    steps: list[int] = []

    def change(z: Tensor) -> None:
        end = sum(steps) + z.shape[2]
        steps.append(z.shape[2])
        if end - z.shape[2] <= chosen < end:
            z[:, 1, chosen - end] += vector

    heads = 3 if name == "bart" else 4
    with by_hand(model, path, heads, change):
        expected = model.generate(**given, **options)
    with ch.edit(model) as edit:
        edit[path].heads[1].add(vector, query=chosen)
        found = model.generate(**given, **options)
    assert torch.equal(found, expected)
    assert not torch.equal(found, plain)
    with ch.watch(model, keep="contexts", layers=[path]) as record:
        model.generate(**given, **options)
    if beams == 1:
        said = pytest.warns(EditWarning, match="or it was there already")
        with said, ch.edit(model) as edit:
            edit[path].replace(record)
            assert torch.equal(model.generate(**given, **options), plain)
        assert edit.report[0].queries == 0
        refused = pytest.raises(EditError, match="is asked for")
        with refused, ch.edit(model) as edit:
            edit[path].replace(record[path].context[:, :, :start])
            model.generate(**given, **options)


def test_gradients_go_back_to_what_is_put_in() -> None:
    layer = ch.MultiHeadAttention(WIDTH, num_heads=HEADS).double()
    x = torch.randn(2, LEN, WIDTH, dtype=torch.float64)
    vector = torch.randn(3, dtype=torch.float64, requires_grad=True)
    other = torch.randn(1, 1, LEN, 3, dtype=torch.float64, requires_grad=True)

    def run(vector: Tensor, other: Tensor) -> Tensor:
        with ch.edit(layer) as edit:
            edit[0].heads[1].add(vector, scale=2.0, query=-1)
            edit[0].heads[2].replace(other, query=[0, 2])
            return layer(x)

    assert torch.autograd.gradcheck(run, (vector, other))


@torch.no_grad()
def test_ablations_by_means_of_each_position_and_by_draws() -> None:
    layer, x = ch.MultiHeadAttention(WIDTH, num_heads=HEADS), torch.randn(2, LEN, WIDTH)
    mean = torch.randn(2, LEN, 3)
    with ch.edit(layer) as edit, ch.watch(layer, keep="contexts") as seen:
        edit[0].heads[0, 2].ablate(mean=mean, query=slice(1, None))
        edit[0].heads[1].ablate(query=0)
        layer(x)
    with ch.watch(layer, keep="contexts") as plain:
        layer(x)
    expected = plain[0].context.clone()
    expected[:, [0, 2], 1:] = mean[:, 1:]
    expected[:, 1, 0] = 0
    assert torch.equal(seen[0].context, expected)
    assert [each.queries for each in edit.report] == [16, 2]


def test_nested_edits_add_up() -> None:
    layer, x = ch.MultiHeadAttention(WIDTH, num_heads=HEADS), torch.randn(1, LEN, WIDTH)
    ones = torch.ones(3)
    with ch.edit(layer) as outer, ch.edit(layer) as inner, ch.watch(layer, keep="contexts") as seen:
        outer[0].heads[0].ablate()
        inner[0].heads[0].add(ones)
        inner[0].heads[0].add(ones, scale=-3.0, query=1)
        layer(x)
    assert seen.calls(0)[0].context[0, 0, :, 0].tolist() == [1.0, -2.0, 1.0, 1.0, 1.0]


REFUSING = ch.MultiHeadAttention(WIDTH, num_heads=HEADS)
GOOD = torch.zeros(2, HEADS, LEN, 3)


@torch.no_grad()
def seen(**options: Any) -> ch.types.Seen[Any]:
    with ch.watch(REFUSING, **options) as record:
        REFUSING(torch.randn(2, LEN, WIDTH))
    return record


@torch.no_grad()
def refused(ask: Callable[[Any], None]) -> None:
    with ch.edit(REFUSING) as edit:
        ask(edit[0])
        REFUSING(torch.randn(2, LEN, WIDTH))


OF_ALL = "[0, 1, 2, 3] // the model // 2 // 4 // … // 3"

test_what_does_not_fit_is_refused = refusals(
    refused,
    (
        lambda edit: edit.replace(GOOD[:1].repeat(3, 1, 1, 1)),
        "edit.context",
        f"{OF_ALL} // (3, 4, 5, 3) // [0, 1, 2, 3]",
    ),
    (
        lambda edit: edit.replace(GOOD[..., :2]),
        "edit.context",
        f"{OF_ALL} // (2, 4, 5, 2) // [0, 1, 2, 3]",
    ),
    (
        lambda edit: edit.heads[1].replace(GOOD),
        "edit.context",
        "[1] // the model // 2 // 1 // … // 3 // (2, 4, 5, 3) // [1]",
    ),
    (
        lambda edit: edit.heads[1].add(torch.zeros(2)),
        "edit.context",
        "[1] // the model // 2 // 1 // … // 3 // (1, 1, 1, 2) // [1]",
    ),
    (
        lambda edit: edit.heads[2, 3].ablate(mean=seen(heads=[1, 2], keep="contexts")),
        "edit.context",
        "[2, 3] // the model // 2 // 2 // … // 3 // (1, 2, 1, 3) // [1, 2]",
    ),
    (lambda edit: edit.replace(GOOD[:, :, :3]), "edit.context", "3 // the model // 4 // 3"),
    (lambda edit: edit.replace(GOOD.repeat(1, 1, 2, 1)), "edit.context", "'' // 10 // 5"),
    (lambda edit: edit.ablate(mean=GOOD[0, :, :4]), "edit.context", "4 // the model // 4 // 4"),
    (
        lambda edit: edit.replace(GOOD, query=torch.ones(3, LEN, dtype=torch.bool)),
        "edit.batch",
        "query // 3 // 2 // query",
    ),
    *(
        (
            lambda edit, make=make: edit.replace(make()),
            "edit.other",
            f"other // {OTHER} //  // {kind}",
        )
        for make, kind in (
            (seen, "Seen"),
            (lambda: seen(keep="total", contexts=True), "Seen"),
            (lambda: GOOD[0], "Tensor (4, 5, 3)"),
            (GOOD.long, "Tensor (2, 4, 5, 3)"),
            (int, "int"),
        )
    ),
    *(
        (lambda edit, make=make: edit.ablate(mean=make()), "mean.type", f"mean // {MEAN} // {kind}")
        for make, kind in (
            (seen, "Seen"),
            (lambda: seen(keep="total"), "Seen"),
            (lambda: seen(keep="total")[0], "Totals"),
            (GOOD.tolist, "list"),
        )
    ),
    (lambda edit: edit.add(3), "vector.type", "vector // a torch.Tensor // int"),
    (
        lambda edit: edit.add(torch.zeros(3), scale=float("nan")),
        "scale.value",
        "scale // a finite number // nan",
    ),
)


@torch.no_grad()
def test_rows_whose_positions_differ_are_refused_and_the_whole_text_is_not() -> None:
    layer = ch.MultiHeadAttention(WIDTH, num_heads=HEADS, mask=ch.causal())
    x, real = torch.randn(2, LEN, WIDTH), torch.ones(2, LEN, dtype=torch.bool)
    real[1, :2] = False
    with ch.watch(layer, keep="contexts") as clean:
        layer(x, mask=ch.padding(real))
    cache = ch.layers.GrowingCache()
    with ch.edit(layer) as edit, ch.watch(layer, keep="contexts") as seen:
        edit[0].replace(clean[0].context + 1)
        layer(x, cache=cache, mask=ch.padding(real))
    assert torch.equal(seen[0].context, clean[0].context + 1)
    refused = pytest.raises(EditError, match=re.escape("[edit.positions] the positions of the"))
    held = ch.layers.GrowingCache()
    layer(x, cache=held, valid=real)
    with refused, ch.edit(layer) as edit:
        edit[0].replace(clean)
        layer(x[:, :1], cache=held)  # a position further in one row than in the other
    layer = ch.MultiHeadAttention(WIDTH, num_heads=HEADS)
    source, held = torch.randn(2, 3, WIDTH), ch.layers.GrowingCache()
    layer(x[:, :2], source, cache=held)
    with refused, ch.edit(layer) as edit:
        edit[0].replace(clean[0].context[:, :, :2])
        layer(x[:, 2:4], source, cache=held)  # whose queries nothing counts
