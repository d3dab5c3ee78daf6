"""PyTorch's layer in every way that it attends: what is seen is what it computes."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clearhead as ch
from clearhead.watching.hooks import sdpa, torch_attention
from tests.refusals import assert_refused
from tests.tolerances import assert_no_worse
from tests.watching.hooks.recording import operations, recorded, weights_of

BATCH, QUERY_LEN, KV_LEN, WIDTH, HEADS = 3, 5, 7, 12, 2
PAST = torch.ones(QUERY_LEN, KV_LEN, dtype=torch.bool).tril(2)
SOME = torch.rand(BATCH * HEADS, KV_LEN, KV_LEN, generator=torch.Generator().manual_seed(2)) > 0.8
PADDED = torch.zeros(BATCH, KV_LEN, dtype=torch.bool)
PADDED[1, 5:] = True
PADDED[2, :2] = True

LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": {"batch_first": True},
    "without bias": {"bias": False},
    "other widths": {"kdim": 5, "vdim": 11},
    "a learned key": {"add_bias_kv": True},
    "a key of zeros": {"add_zero_attn": True},
    "both": {"add_bias_kv": True, "add_zero_attn": True},
}

MASKS: dict[str, dict[str, Tensor]] = {
    "none": {},
    "bool": {"attn_mask": ~PAST},
    "bool per head": {"attn_mask": SOME[:, :QUERY_LEN]},
    "float": {"attn_mask": torch.linspace(-2, 2, QUERY_LEN * KV_LEN).view(QUERY_LEN, KV_LEN)},
    "padding": {"key_padding_mask": PADDED},
    "float padding": {"key_padding_mask": torch.linspace(-2, 2, BATCH * KV_LEN).view(BATCH, -1)},
    "both bool": {"attn_mask": ~PAST, "key_padding_mask": PADDED},
    "both float": {
        "attn_mask": torch.linspace(-2, 2, QUERY_LEN * KV_LEN).view(QUERY_LEN, KV_LEN),
        "key_padding_mask": torch.zeros(BATCH, KV_LEN).masked_fill(PADDED, -torch.inf),
    },
}


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_the_value_is_what_the_weights_are_multiplied_by(name: str, need_weights: bool) -> None:
    layer, inputs = layer_and_inputs(LAYERS[name])
    with ch.watch(layer, values=True) as seen:
        output, _ = layer(*inputs, need_weights=need_weights)
    assert seen[0].value is not None
    context = (seen[0] @ seen[0].value).transpose(1, 2).flatten(2)
    expected = output if layer.batch_first else output.transpose(0, 1)
    torch.testing.assert_close(layer.out_proj(context), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["a learned key", "a key of zeros", "both"])
def test_keys_that_are_no_tokens_have_no_place_in_the_text(name: str) -> None:
    layer = nn.MultiheadAttention(12, 2, batch_first=True, **LAYERS[name])
    x = torch.randn(2, 5, 12)
    with ch.watch(layer, keep="gradients") as seen:
        output, _ = layer(x, x, x, need_weights=False)
    assert seen[0].cross
    row = seen.table()[0]
    assert (row.distance, row.previous) == (None, None)
    assert_refused(lambda: ch.reading.relevance(seen, output.sum()), "relevance.cross", "'' // …")


@pytest.mark.parametrize(
    ("name", "need_weights"), [("a learned key", False), ("a key of zeros", True), ("both", False)]
)
def test_padded_queries_beside_keys_that_are_no_tokens(name: str, need_weights: bool) -> None:
    layer = nn.MultiheadAttention(12, 2, batch_first=True, **LAYERS[name])
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x, padded = torch.randn(2, 5, 12), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    rows = {}
    for keep in ("matrix", "summary", "total"):
        with torch.no_grad(), ch.watch(layer, keep=keep) as seen:
            layer(x, x, x, padded, need_weights)
        rows[keep] = seen.table()[1]
    _, weights = layer.double()(
        *[x.double()] * 3, key_padding_mask=padded, average_attn_weights=False
    )
    entropy = torch.special.entr(weights).sum(dim=-1)[:, 1][~padded].mean().detach()
    for row in rows.values():
        assert row.queries == 8
        assert row.entropy == pytest.approx(float(entropy), rel=1e-5)
        assert (row.distance, row.previous) == (None, None)


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_value_of_a_fast_path(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(12, 2, 16, batch_first=True, norm_first=norm_first).eval()
    x = torch.randn(2, 5, 12)
    with torch.no_grad(), ch.watch(layer, values=True) as seen:
        layer(x)
    with torch.enable_grad(), ch.watch(layer, values=True) as slow:
        layer(x)
    torch.testing.assert_close(seen[0].value, slow[0].value)


def layer_and_inputs(options: dict[str, Any]) -> tuple[nn.MultiheadAttention, list[Tensor]]:
    layer = nn.MultiheadAttention(WIDTH, HEADS, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    query = torch.randn(BATCH, QUERY_LEN, WIDTH)
    key = torch.randn(BATCH, KV_LEN, layer.kdim)
    value = torch.randn(BATCH, KV_LEN, layer.vdim)
    if not layer.batch_first:
        query, key, value = (each.transpose(0, 1) for each in (query, key, value))
    return layer, [query, key, value]


def exact(layer: nn.Module, tensors: list[Tensor], masks: dict[str, Tensor]) -> Tensor:
    """The weights in float64, by the layer itself."""
    wide = {
        name: mask.double() if mask.is_floating_point() else mask for name, mask in masks.items()
    }
    doubles = [each.double() for each in tensors]
    _, weights = copy.deepcopy(layer).double()(*doubles, average_attn_weights=False, **wide)
    return weights.detach()


@contextmanager
def fast_path(enabled: bool) -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(enabled)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@pytest.mark.parametrize("options", LAYERS)
def test_every_kind_of_call(options: str) -> None:
    """Every mask with every layer; with weights and without, in turns, for each of the two."""
    layer, tensors = layer_and_inputs(LAYERS[options])
    with_weights = list(LAYERS).index(options) % 2 == 0
    for masks, given in MASKS.items():
        with_weights = not with_weights
        alone = layer(*tensors, need_weights=with_weights, **given)
        with ch.watch(layer) as seen:
            watched = layer(*tensors, need_weights=with_weights, **given)
        assert torch.equal(watched[0], alone[0]), (masks, with_weights)
        assert seen.layers == ("",)
        _, plain = layer(*tensors, average_attn_weights=False, **given)
        # A row that sees nothing is NaN in the layer, and 0 here.
        truth, plain = exact(layer, tensors, given).nan_to_num(), plain.detach().nan_to_num()
        assert_no_worse(seen[0].dense(), truth, plain)


def test_what_is_returned_with_weights_is_the_same() -> None:
    layer, tensors = layer_and_inputs({"dropout": 0.5})
    torch.manual_seed(3)
    alone = layer(*tensors)
    torch.manual_seed(3)
    with ch.watch(layer):
        watched = layer(*tensors)
    assert torch.equal(watched[0], alone[0])
    assert torch.equal(watched[1], alone[1])


def test_is_causal_is_a_hint() -> None:
    layer, tensors = layer_and_inputs({})
    with ch.watch(layer) as seen:
        layer(*tensors, attn_mask=~PAST, is_causal=True)
    mask = seen[0].problem.mask
    assert mask is not None
    assert mask.describe() == "causal()"


def test_masks_become_descriptions() -> None:
    layer, tensors = layer_and_inputs({})
    with ch.watch(layer) as seen:
        layer(*tensors, attn_mask=~PAST, key_padding_mask=PADDED)
    mask = seen[0].problem.mask
    assert mask is not None
    assert mask.describe() == "causal() & padding(<valid 3 × 7>)"
    assert torch.equal(mask.to_dense(QUERY_LEN, KV_LEN)[:, 0], PAST & ~PADDED[:, None])


def test_without_a_batch() -> None:
    layer, (query, key, value) = layer_and_inputs({})
    tensors = [query[:, 1], key[:, 1], value[:, 1]]
    masks = {"attn_mask": ~PAST, "key_padding_mask": PADDED[1]}
    with ch.watch(layer) as seen:
        layer(*tensors, **masks)
    _, plain = layer(*tensors, average_attn_weights=False, **masks)
    truth = exact(layer, tensors, masks)[None]
    assert_no_worse(seen[0].dense(), truth, plain.detach()[None])


def test_the_function_itself_with_a_key_of_before() -> None:
    layer, (query, key, value) = layer_and_inputs({})
    static = torch.randn(BATCH * HEADS, 3, WIDTH // HEADS)
    arguments: list[Any] = [
        query, key, value, WIDTH, HEADS, layer.in_proj_weight, layer.in_proj_bias,
        None, None, False, 0.0, layer.out_proj.weight, layer.out_proj.bias,
    ]  # fmt: skip
    with recorded(torch_attention, sdpa) as problems:
        for needed in (True, False):
            F.multi_head_attention_forward(
                *arguments, need_weights=needed, static_k=static, static_v=static
            )
    by_hand, by_sdpa = problems
    assert torch.equal(by_hand.key, static.view(BATCH, HEADS, 3, -1))
    torch.testing.assert_close(weights_of(by_hand), weights_of(by_sdpa))


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("masks", ["none", "bool", "bool per head", "padding", "both bool"])
def test_the_fast_path_of_the_layer(masks: str, need_weights: bool) -> None:
    layer, _ = layer_and_inputs({"batch_first": True})
    layer.eval()
    x = torch.randn(BATCH, KV_LEN, WIDTH)
    attn_masks = {
        "bool": ~torch.ones(KV_LEN, KV_LEN, dtype=torch.bool).tril(),
        "bool per head": SOME,
    }
    attn_masks["both bool"] = attn_masks["bool"]
    given = {"attn_mask": attn_masks[masks]} if masks in attn_masks else {}
    if masks in ("padding", "both bool"):
        given["key_padding_mask"] = PADDED
    with torch.no_grad():
        alone, _ = layer(x, x, x, need_weights=need_weights, **given)
        with ch.watch(layer) as seen, operations() as ran:
            watched, _ = layer(x, x, x, need_weights=need_weights, **given)
        with fast_path(False):
            _, plain = layer(x, x, x, average_attn_weights=False, **given)
            truth = exact(layer, [x, x, x], given)
    assert ran.count("aten::_native_multi_head_attention") == 1
    assert torch.equal(watched.nan_to_num(9), alone.nan_to_num(9))
    assert seen.layers == ("",)
    assert_no_worse(seen[0].dense(), truth.nan_to_num(), plain.nan_to_num())


ENCODERS: dict[str, dict[str, Any]] = {
    "norm last": {"norm_first": False},
    "norm first": {"norm_first": True},
    "gelu": {"activation": "gelu"},
}
ENCODER_MASKS = ("none", "causal", "padding", "padding, left", "both")


def encoder(**options: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 11, batch_first=True, **options)
    nested = not options.get("norm_first", False)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()


def matrices(model: nn.Module, x: Tensor, **masks: Tensor) -> list[Tensor]:
    """The weights of every layer, on the plain path, where PyTorch's function is called."""
    with fast_path(False), torch.no_grad(), ch.watch(model) as seen:
        model(x, **masks)
    return [seen[name].dense() for name in seen]


# Within nn.TransformerEncoder, which makes such tensors itself.
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    ("options", "masks"),
    [
        *((name, masks) for name in ("norm last", "norm first") for masks in ENCODER_MASKS),
        ("gelu", "padding"),
    ],
)
def test_the_fast_path_of_the_encoder(options: str, masks: str) -> None:
    model = encoder(**ENCODERS[options])
    x = torch.randn(BATCH, KV_LEN, WIDTH)
    padded = torch.zeros(BATCH, KV_LEN, dtype=torch.bool)
    padded[1, 4:] = padded[0, 5:] = padded[2, 5:] = True
    given: dict[str, Tensor] = {}
    if masks in ("causal", "both"):
        given["mask"] = ~torch.ones(KV_LEN, KV_LEN, dtype=torch.bool).tril()
    if masks in ("padding", "both"):
        given["src_key_padding_mask"] = padded
    if masks == "padding, left":
        given["src_key_padding_mask"] = padded.flip(1)
    with torch.no_grad():
        alone = model(x, **given)
        with ch.watch(model) as seen, operations() as ran:
            watched = model(x, **given)
    assert ran.count("aten::_transformer_encoder_layer_fwd") == 2
    assert torch.equal(watched, alone)
    assert seen.layers == ("layers.0.self_attn", "layers.1.self_attn")
    real = ~given.get("src_key_padding_mask", torch.zeros_like(padded))
    plain = matrices(model, x, **given)
    truth = matrices(copy.deepcopy(model).double(), x.double(), **given)
    for layer, theirs, reference in zip(seen.values(), plain, truth, strict=True):
        found = layer.dense()
        # Nested tensors are as long as the longest sample.
        longest = found.shape[-1]
        rows = real[:, :longest]
        assert longest == 5 if options != "norm first" and masks == "padding" else longest == KV_LEN
        found, theirs, reference = (
            each[:, :, :longest, :longest].transpose(1, 2)[rows]
            for each in (found, theirs, reference)
        )
        assert_no_worse(found, reference, theirs)


def test_a_float_mask_hides_on_the_fast_path() -> None:
    """PyTorch's fast path takes whatever is not 0 for hidden; what is seen is what it does."""
    layer = encoder().layers[0]
    x = torch.randn(1, 5, WIDTH)
    hidden = ~torch.ones(5, 5, dtype=torch.bool).tril()
    with torch.no_grad():
        assert torch.equal(layer(x, src_mask=hidden.float()), layer(x, src_mask=hidden))
        with ch.watch(layer) as seen:
            layer(x, src_mask=hidden.float())
    mask = seen[0].problem.mask
    assert mask is not None
    assert mask.describe() == "causal()"
