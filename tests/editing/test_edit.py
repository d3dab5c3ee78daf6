"""The effect of an edit on each way of attending, what it leaves alone, and what it refuses."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

import clearhead as ch
from clearhead.attention import planning
from clearhead.editing.edit import followed
from clearhead.editing.layer_edit import MEAN
from clearhead.errors import (
    EditError,
    EditWarning,
)
from clearhead.layers import FixedCache
from clearhead.watching.hooks import installing, tap
from tests.refusals import assert_refused, refusals, wrong
from tests.watching.models import Direct, Itself, OwnSoftmax

SDPA = F.scaled_dot_product_attention
BATCH, LEN, WIDTH, HEADS = 3, 7, 12, 4


@pytest.fixture(autouse=True)
def nothing_stays_behind() -> Iterator[None]:
    yield
    assert F.scaled_dot_product_attention is SDPA
    assert tap.editors == tap.observers == planning.editors == planning.observers == []
    assert not torch_module._global_forward_pre_hooks
    assert torch.backends.mha.get_fastpath_enabled()


def weights(query: Tensor, key: Tensor, visible: Tensor) -> Tensor:
    scores = query @ key.mT / query.shape[-1] ** 0.5
    return scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num()


class Layered(nn.Module):
    """PyTorch's layer between two others of it."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options) for _ in range(3)
        )

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, x, x, **options)[0]
        return x


def test_a_query_that_sees_nothing_more_gets_zeros_and_no_gradient() -> None:
    model = Direct()
    query, key, value = torch.randn(3, 1, 2, 5, 3).requires_grad_().unbind()
    with ch.edit(model) as edit:
        edit[""].hide(query=3)
        context = model(query, key, value)
    assert bool((context[:, :, 3] == 0).all())
    grad = torch.autograd.grad(context.sum(), query)[0]
    assert bool((grad[:, :, 3] == 0).all())
    assert bool((grad[:, :, 2] != 0).any())


def test_a_query_that_saw_nothing_stays_as_it_was_in_its_head_alone() -> None:
    model, visible = Direct(), torch.ones(1, HEADS, LEN, LEN, dtype=torch.bool).tril()
    visible[:, 1, 4] = False
    query, key = torch.randn(2, BATCH, HEADS, LEN, 5, dtype=torch.float64)
    value = torch.eye(LEN, dtype=torch.float64).expand(BATCH, HEADS, LEN, LEN)
    before = model(query, key, value, attn_mask=visible)
    with ch.edit(model) as edit:
        edit[""].heads[3, 1].hide(key=0)
        found = model(query, key, value, attn_mask=visible)
    visible[:, [1, 3], :, 0] = False
    expected = weights(query, key, visible)
    expected[:, 1, 4] = before[:, 1, 4]
    rest = [place for place in range(LEN) if place]  # the first query sees nothing now
    torch.testing.assert_close(found[:, [1, 3]][:, :, rest], expected[:, [1, 3]][:, :, rest])
    assert bool((found[:, [1, 3], 0] == 0).all())


def test_a_tensor_chooses_as_a_list_does_and_an_empty_one_nothing() -> None:
    x, found = torch.randn(1, LEN, WIDTH), []
    text = re.escape("[edit.no-effect] nothing in MultiHeadAttention was changed by hide of '': no")
    for chosen in ([1, 3], torch.tensor([1, 3]), torch.zeros(0, dtype=torch.bool), []):
        said = contextlib.nullcontext() if len(chosen) else pytest.warns(EditWarning, match=text)
        with said, ch.edit(LAYER) as edit:
            edit[0].hide(key=chosen)
            found.append(LAYER(x))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    plain = LAYER(x)
    assert torch.equal(found[2], plain)
    assert torch.equal(found[3], plain)
    assert not torch.allclose(found[0], plain)


@pytest.mark.parametrize("options", [{}, {"need_weights": False}, {"average_attn_weights": False}])
@pytest.mark.parametrize("grad", [True, False])
def test_pytorchs_layer_is_edited_in_all_of_its_ways(options: dict[str, Any], grad: bool) -> None:
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64).eval()
    x = torch.randn(BATCH, LEN, WIDTH, dtype=torch.float64)
    with torch.set_grad_enabled(grad), ch.edit(layer) as edit:
        edit[0].heads[1].ablate()
        edit[0].heads[2].hide(key=4)
        output, returned = layer(x, x, x, **options)
    query, key, value = F.linear(x, layer.in_proj_weight, layer.in_proj_bias).chunk(3, dim=-1)
    query, key, value = (t.unflatten(2, (HEADS, -1)).transpose(1, 2) for t in (query, key, value))
    visible = torch.ones(HEADS, LEN, LEN, dtype=torch.bool)
    visible[2, :, 4] = False
    expected = weights(query, key, visible)
    context = expected @ value
    context[:, 1] = 0
    torch.testing.assert_close(output, layer.out_proj(context.transpose(1, 2).flatten(2)))
    if options.get("need_weights", True):
        mean = options.get("average_attn_weights", True)
        torch.testing.assert_close(returned, expected.mean(1) if mean else expected)


@torch.no_grad()
def test_a_mask_that_is_a_tensor_has_no_place_for_the_room_of_a_cache() -> None:
    layer = ch.MultiHeadAttention(WIDTH, num_heads=HEADS, mask=ch.causal()).double()
    x = torch.randn(BATCH, LEN, WIDTH, dtype=torch.float64)
    with ch.edit(layer) as edit:
        edit[0].hide(mask=ch.dense(torch.ones(LEN, LEN).tril(-1).bool()))
        torch.testing.assert_close(layer(x, cache=FixedCache(9)), layer(x))


def test_edits_of_one_model_add_up_and_end_by_an_exception() -> None:
    model = Layered()
    x = torch.randn(BATCH, LEN, WIDTH)
    before = model(x)
    with ch.edit(model) as edit:
        edit["layers.1"].heads[0].ablate()
        edit[1].heads[2].ablate()
        both = model(x)
    outer, inner = ch.edit(model), ch.edit(model)
    outer[1].heads[0].ablate()
    inner[1].heads[2].ablate()
    with outer, inner:
        torch.testing.assert_close(model(x), both)
        inner.clear()
        assert not torch.equal(model(x), both)
    with pytest.raises(AssertionError, match="embedding dimension"), outer:
        model(x[..., 1:])
    assert torch.equal(model(x), before)


def test_an_edit_that_cannot_begin_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Sequential(Itself(), Itself()), torch.randn(1, 3, 4)
    edit = ch.edit(model)
    edit["0"].ablate()

    def fails(_: object) -> None:
        raise RuntimeError("no hooks here")

    monkeypatch.setattr(installing, "hold", fails)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no hooks here"):
            edit.__enter__()
        torch.testing.assert_close(model(x), Itself()(Itself()(x)))


class Interrupted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyboardInterrupt


class Catching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(Interrupted())

    def forward(self, x: Tensor) -> Tensor:
        with contextlib.suppress(KeyboardInterrupt):
            self.part(x)
        return x


class Resuming(nn.Module):
    """Attends after a part in which another was interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Catching()

    def forward(self, x: Tensor) -> Tensor:
        x = self.part(x)
        return F.scaled_dot_product_attention(x, x, x)


def test_a_part_that_was_interrupted_is_over() -> None:
    model = Resuming()
    with followed(model) as edit, ch.watch(model) as seen:
        model(torch.randn(1, 3, 4))
    assert (list(edit.attended), list(seen)) == ([""], [""])


def test_an_edit_can_be_entered_again() -> None:
    model, x = Layered(), torch.randn(BATCH, LEN, WIDTH)
    edit = ch.edit(model)
    edit["layers.[02]"].ablate()
    assert repr(edit) == "edit(Layered): 1 operation\n  layers.[02]  ablate"
    found = []
    for _ in range(2):
        with edit:
            found.append(model(x))
    assert torch.equal(*found)
    # What no operation is for is not read.
    assert edit.attended == {"layers.0": HEADS, "layers.1": 0, "layers.2": HEADS}
    with edit:
        assert_refused(edit.__enter__, "edit.entered")
        model(x)


class Cached(nn.Module):
    """Keys that nobody can tell the positions of."""

    def forward(self, x: Tensor, keys: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, keys, keys)


LAYER = ch.MultiHeadAttention(WIDTH, num_heads=HEADS)
X = torch.randn(2, LEN, WIDTH)
MATRIX = ch.AttentionMatrix(torch.zeros(1, HEADS, 3, 3), torch.zeros(1, HEADS, 3, 3))

POSITIONS = "must be a position, a slice, positions, a bool tensor of shape (len,) or (batch, len), or None for all"
BY = "by // a finite number above 0; hide(key=…) is for 0"


def refused(make: Callable[[Any], Any]) -> None:
    """Run the layer with an edit, after which it gives what it gave before."""
    before = LAYER(X)
    try:
        with ch.edit(LAYER) as edit:
            make(edit)
            LAYER(X)
    finally:
        assert torch.equal(LAYER(X), before)


test_what_cannot_be_meant_is_refused = refusals(
    refused,
    (lambda e: e["none"].ablate(), "edit.layers", "'none' // ''"),
    (lambda e: e[5].ablate(), "edit.layers", "5 // ''"),
    (lambda e: e[0].heads[HEADS].ablate(), "edit.heads", "heads[4] // the model // 4"),
    (lambda e: e[0].heads[4:8].ablate(), "edit.heads", "heads[4:8] // the model // 4"),
    (lambda e: e[0].heads[2:2].ablate(), "edit.heads", "heads[2:2] // the model // 4"),
    (lambda e: e[0].heads[-5].ablate(), "edit.heads", "heads[-5] // the model // 4"),
    (lambda e: e[0].heads[3, -1].ablate(), "edit.heads", "heads[3, -1] // the model // 4"),
    (lambda e: e[0].heads["1"], "heads.type", "'1'"),
    (lambda e: e[0].heads[:"1"], "heads.type", "slice(None, '1', None)"),
    (lambda e: e[0].heads[::0], "heads.type", "slice(None, None, 0)"),
    (lambda e: e[0].heads[()], "heads.value", " // []"),
    (lambda e: e[0].heads[1, 1], "heads.value", " // [1, 1]"),
    (lambda e: e[0].hide(), "edit.hide"),
    (lambda e: e[0].hide(key=0, mask=ch.causal()), "edit.hide"),
    (lambda e: e[0].hide(mask=X), "mask.type", "Tensor"),
    (lambda e: e[0].hide(key="a"), "edit.selection", f"key {POSITIONS} // 'a'"),
    (lambda e: e[0].hide(key=X[0, 0, :1]), "edit.selection", f"key {POSITIONS} // {X[0, 0, :1]}"),
    (lambda e: e[0].hide(key=X > 0), "edit.selection", f"key {POSITIONS} // (2, 7, 12)"),
    (
        lambda e: e[0].hide(key=slice("a")),
        "edit.selection",
        f"key {POSITIONS} // slice(None, 'a', None)",
    ),
    (lambda e: e[0].hide(key=slice(4, 2, -1)), "edit.position", "key // slice(4, 2, -1)"),
    (lambda e: e[0].hide(key=slice(0, 1, 0)), "edit.position", "key // slice(0, 1, 0)"),
    (lambda e: e[0].hide(key=-LEN - 1), "edit.no-token", "key // '' // -8 // 7"),
    (lambda e: e[0].hide(query=LEN), "edit.no-token", "query // '' // 7 // 7"),
    (lambda e: e[0].hide(key=2**70), "edit.no-token", f"key // '' // {2**70} // 7"),
    (lambda e: e[0].hide(key=LEN), "edit.no-token", "key // '' // 7 // 7"),
    (lambda e: e[0].hide(key=torch.ones(3, LEN) > 0), "edit.batch", "key // 3 // 2 // key"),
    (
        lambda e: e[0].hide(mask=ch.padding([1, 2, 3])),
        "mask.batch",
        "padding([1, 2, 3]) // 3 // 2 // ",
    ),
    (lambda e: e[0].scale(by=0), "by.value", f"{BY} // 0.0"),
    (lambda e: e[0].scale(by="a"), "by.type", f"{BY} // str"),
    (lambda e: e[0].ablate(mean=1), "mean.type", f"mean // {MEAN} // int"),
    (
        lambda e: e[0].heads[0, 1].ablate(mean=torch.zeros(3, 3)),
        "edit.context",
        "[0, 1] // the model // 2 // 2 // … // 3 // (1, 3, 1, 3) // [0, 1]",
    ),
    (lambda e: e[0].patterns_from(X), "edit.other", "Tensor"),
    (
        lambda e: e[0].patterns_from(MATRIX),
        "edit.patterns",
        "(1, 4, 3, 3) // the model // (2, 4, 7, 7)",
    ),
    (
        lambda e: (e[0].patterns_from(MATRIX), e[0].heads[1].hide(key=0)),
        "edit.conflict",
        "the model",
    ),
)


def test_an_attribute_cannot_be_set() -> None:
    for chosen in (ch.edit(LAYER)[0], ch.edit(LAYER)[0].heads):
        with pytest.raises(AttributeError, match="z"):
            setattr(chosen, "z", 0)  # noqa: B010


def run_edited(model: nn.Module, layer: str) -> None:
    with ch.edit(model) as edit:
        edit[layer].ablate()
        model(torch.randn(1, 3, 4))


def test_a_layer_that_did_not_attend_is_reported() -> None:
    text = (
        "'0' of Sequential is edited (ablate), and did not attend in a way that can be edited: '1'"
    )
    with pytest.raises(EditError, match=re.escape(f"[edit.layers] {text} did.")):
        run_edited(nn.Sequential(OwnSoftmax(), Itself()), "0")


def test_a_layer_that_is_several_is_refused() -> None:
    named = nn.ModuleDict({"a": nn.TransformerDecoderLayer(WIDTH, HEADS)})
    text = "got 'a, which are 2'. These attend: 'a.self_attn', 'a.multihead_attn'."
    with pytest.raises(EditError, match=re.escape(text)):
        ch.edit(named)["a"]
    ch.edit(named)["a.*"].ablate()
    with pytest.raises(EditError, match=re.escape("'0' has '0.0' and '0.1'")):
        run_edited(nn.Sequential(nn.Sequential(Itself(), Itself())), "0")


def test_positions_that_cannot_be_told_are_refused() -> None:
    model, x, keys = Cached(), torch.randn(1, 1, 2, 3), torch.randn(1, 1, 5, 3)
    with ch.edit(model) as edit, ch.watch(model) as seen:
        edit[""].hide(key=4)
        model(x, keys)
    assert bool((seen[0].dense()[..., 4] == 0).all())
    refused: list[tuple[dict[str, Any], str]] = [
        (
            {"query": 1, "key": 4},
            "query= chooses queries by their position in the text, which cannot ",
        ),
        (
            {"mask": ch.causal()},
            "a mask needs the positions of the queries, which cannot be told here",
        ),
    ]
    for chosen, text in refused:
        edit = ch.edit(model)
        edit[""].hide(**chosen)
        with pytest.raises(EditError, match=re.escape(f"[edit.positions] {text}")), edit:
            model(x, keys)


def test_what_is_compiled_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].compile(backend="eager")
    assert_refused(ch.edit(model).__enter__, "edit.compiled", "0")
    assert_refused(lambda: ch.edit(wrong(print)), "edit.model", "builtin_function_or_method")


SINKS = torch.linspace(-1.0, 2.0, HEADS)
BIAS = torch.randn(1, HEADS, LEN, LEN)
MASKED = {"mask": ch.causal()}
OPTIONS: list[dict[str, Any]] = [
    {},
    MASKED,
    MASKED | {"scale": 3.0},
    {"sinks": SINKS},
    MASKED | {"bias": BIAS},
    MASKED | {"bias": BIAS[:, :1], "softcap": 2.0, "sinks": SINKS},
    {"bias": ch.alibi(HEADS), "softcap": 2.0},
    MASKED | {"bias": ch.alibi(slopes=torch.rand(HEADS))},
]


class Options(nn.Module):
    """Attends with the options of `attend`."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return ch.attend(query, key, value, **self.options)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("others", [*OPTIONS, None])
def test_the_patterns_of_another_run_are_those_that_are_watched(
    options: dict[str, Any], others: dict[str, Any] | None
) -> None:
    """None is a matrix of weights."""
    model = Options(**options)
    query, value = torch.randn(2, HEADS, LEN, 3), torch.randn(2, HEADS, LEN, LEN)
    key = torch.randn(2, 2, LEN, 3)
    other = ch.AttentionMatrix(*torch.randn(2, 2, HEADS, LEN, 3), **(others or MASKED))
    if others is None:
        other = ch.AttentionMatrix.from_weights(other.dense())
    with ch.watch(model) as plain:
        before = model(query, key, value[:, :2])
    with ch.edit(model) as edit, ch.watch(model) as seen:
        edit[""].heads[3, 1].patterns_from(other)
        context = model(query, key, value[:, :2])
    expected = plain[0].dense().index_copy(1, torch.tensor([3, 1]), other.dense()[:, [3, 1]])
    torch.testing.assert_close(seen[0].dense(), expected)
    repeated = value[:, :2].repeat_interleave(2, dim=1)
    torch.testing.assert_close(context, expected @ repeated)
    assert torch.equal(context[:, [0, 2]], before[:, [0, 2]])


def test_patterns_of_ones_own_beside_the_weights_that_a_layer_returns() -> None:
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    own = torch.rand(2, HEADS, LEN, LEN).softmax(-1)
    with ch.edit(layer) as edit, ch.watch(layer) as seen:
        edit[0].heads[1].patterns_from(ch.AttentionMatrix.from_weights(own))
        weights = layer(X, X, X, average_attn_weights=False)[1]
    torch.testing.assert_close(weights[:, 1], own[:, 1])
    torch.testing.assert_close(seen[0].dense(), weights)
