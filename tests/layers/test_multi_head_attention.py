"""The layer against the definition and against PyTorch's own."""

import copy
import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead import stages
from clearhead.errors import (
    ClearheadError,
    DtypeError,
    MaskError,
)
from clearhead.masks.base import Mask
from tests.refusals import assert_refused, refusals
from tests.tensors import assert_close, drawn
from tests.tolerances import assert_no_worse

BATCH, TOKENS, SOURCE_TOKENS = 3, 7, 11

LAYERS: dict[str, dict[str, Any]] = {
    "self": {"embed_dim": 10, "num_heads": 2},
    "one head": {"embed_dim": 13, "num_heads": 1},
    "causal": {"embed_dim": 15, "num_heads": 5, "mask": ch.causal()},
    "cross": {"embed_dim": 10, "num_heads": 2, "context_dim": 17},
    "cross of one width": {"embed_dim": 10, "num_heads": 2},
    "grouped": {"embed_dim": 30, "num_heads": 6, "num_kv_heads": 2, "mask": ch.causal()},
    "one key head": {"embed_dim": 15, "num_heads": 5, "num_kv_heads": 1},
    "without a bias": {"embed_dim": 10, "num_heads": 2, "output_bias": False},
    "with every bias": {"embed_dim": 10, "num_heads": 2, "bias": True},
    "any widths": {
        "embed_dim": 19, "num_heads": 6, "num_kv_heads": 3, "head_dim": 5, "value_head_dim": 2,
        "context_dim": 17, "output_dim": 23, "bias": True, "mask": ch.causal(offset=3),
    },
}  # fmt: skip
CROSS = {"cross", "cross of one width", "any widths"}


def made(name: str) -> tuple[ch.MultiHeadAttention, tuple[Tensor, ...]]:
    """A layer in float64 and what to call it with."""
    layer = ch.MultiHeadAttention(**LAYERS[name]).double()
    inputs = [drawn(BATCH, TOKENS, layer.embed_dim)]
    if name in CROSS:
        inputs.append(drawn(BATCH, SOURCE_TOKENS, layer.context_dim))
    return layer, tuple(inputs)


def heads(tensor: Tensor, projection: nn.Linear, num_heads: int) -> Tensor:
    """(batch, num_heads, tokens, dim), one head at a time."""
    weight, bias = projection.weight, projection.bias
    dim = weight.shape[0] // num_heads
    each = []
    for head in range(num_heads):
        rows = slice(head * dim, (head + 1) * dim)
        projected = tensor @ weight[rows].mT
        each.append(projected if bias is None else projected + bias[rows])
    return torch.stack(each, dim=1)


def defined(
    layer: ch.MultiHeadAttention, x: Tensor, context: Tensor | None = None, mask: Mask | None = None
) -> Tensor:
    """The output by the definition, with the layer's weights, in the precision of the layer."""
    source = x if context is None else context
    query = heads(x, layer.query_projection, layer.num_heads)
    key = heads(source, layer.key_projection, layer.num_kv_heads)
    value = heads(source, layer.value_projection, layer.num_kv_heads)
    steps = stages.compute(
        query,
        stages.repeat_kv_heads(key, layer.num_heads),
        stages.repeat_kv_heads(value, layer.num_heads),
        scale=1 / math.sqrt(query.shape[-1]),
        visible=None if mask is None else mask.to_dense(x.shape[1], source.shape[1]),
    )
    joined = torch.cat(list(steps.context.unbind(1)), dim=-1)
    output = joined @ layer.output_projection.weight.mT
    bias = layer.output_projection.bias
    return output if bias is None else output + bias


# No number here is a sum of more than 64 products, four deep.
close = functools.partial(assert_close, terms=4 * 64)


def gradients(
    layer: ch.MultiHeadAttention, output: Tensor, inputs: tuple[Tensor, ...], weight: Tensor
) -> dict[str, Tensor]:
    named = {**dict(zip(("x", "context"), inputs, strict=False)), **dict(layer.named_parameters())}
    found = torch.autograd.grad((output * weight).sum(), list(named.values()))
    return dict(zip(named, found, strict=True))


def copied(source: ch.MultiHeadAttention, dtype: torch.dtype) -> ch.MultiHeadAttention:
    return copy.deepcopy(source).to(dtype)


@pytest.mark.parametrize("name", LAYERS)
def test_agrees_with_the_definition(name: str) -> None:
    layer, inputs = made(name)
    inputs = tuple(each.requires_grad_() for each in inputs)
    output, expected = layer(*inputs), defined(layer, *inputs, mask=layer.mask)
    assert output.shape == (BATCH, TOKENS, layer.output_dim)
    close(output, expected)
    weight = drawn(*output.shape)
    actual = gradients(layer, output, inputs, weight)
    for what, gradient in gradients(layer, expected, inputs, weight).items():
        close(actual[what], gradient)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["causal", "any widths"])
def test_is_as_accurate_as_the_definition(name: str, dtype: torch.dtype) -> None:
    layer, inputs = made(name)
    low = copied(layer, dtype)
    lowered = tuple(each.to(dtype) for each in inputs)
    truth = defined(low.double(), *(each.double() for each in lowered), mask=layer.mask)
    low = low.to(dtype)
    plain = defined(low, *lowered, mask=layer.mask)
    assert_no_worse(low(*lowered), truth, plain, what=name)


def test_inputs_of_two_dimensions() -> None:
    layer, (x, context) = made("any widths")
    output = layer(x[1], context[1])
    assert output.shape == (TOKENS, layer.output_dim)
    close(output, layer(x, context)[1])
    assert layer.weights(x[1], context[1]).shape == (1, 6, TOKENS, SOURCE_TOKENS)
    own, (x,) = made("causal")
    close(own(x[2]), own(x)[2])


def test_inputs_need_not_be_contiguous() -> None:
    layer, (x, context) = made("any widths")
    turned = x.mT.contiguous().mT
    assert not turned.is_contiguous()
    close(layer(turned, context[:, ::2]), layer(x, context[:, ::2].contiguous()))


def test_nothing_to_attend_to_leaves_the_bias() -> None:
    layer, (x, context) = made("any widths")
    alone = layer.output_projection.bias.expand(BATCH, TOKENS, -1)
    assert torch.equal(layer(x, context[:, :0]), alone)
    assert torch.equal(layer(x, context, mask=~ch.full()), alone)
    assert layer(x[:, :0], context).shape == (BATCH, 0, 23)
    assert layer(x[:0], context[:0]).shape == (0, TOKENS, 23)


def test_the_mask_of_a_call_is_beside_that_of_the_layer() -> None:
    layer, (x,) = made("causal")
    padding = ch.padding([2, 5, 7])
    close(layer(x, mask=padding), defined(layer, x, mask=ch.causal() & padding))
    assert torch.equal(layer(x), layer(x, mask=ch.full()))
    assert layer.make_problem(x, mask=padding).mask is not None
    assert "causal() & padding([2, 5, 7])" in layer.make_problem(x, mask=padding).describe()
    bare, (x,) = made("self")
    close(bare(x, mask=padding), defined(bare, x, mask=padding))


def test_masks_that_are_tensors() -> None:
    seen = torch.rand(TOKENS, TOKENS) < 0.5
    layer, (x,) = made("self")
    expected = defined(layer, x, mask=ch.dense(seen))
    close(layer(x, mask=seen), expected)
    per_head = torch.rand(BATCH, 5, TOKENS, TOKENS) < 0.5
    causal, (y,) = made("causal")
    close(causal(y, mask=per_head), defined(causal, y, mask=ch.causal() & ch.dense(per_head)))
    own = ch.MultiHeadAttention(10, num_heads=2, mask=seen).double()
    assert isinstance(own.mask, Mask)
    own.load_state_dict(layer.state_dict())
    close(own(x), expected)
    close(own(x, mask=ch.causal()), defined(own, x, mask=ch.dense(seen) & ch.causal()))


def test_dropout_drops_weights_in_training_only() -> None:
    """With one key each weight is 1: a head gives nothing, or its value twice."""
    layer = ch.MultiHeadAttention(15, num_heads=3, output_bias=False, dropout=0.5).double()
    with torch.no_grad():
        layer.output_projection.weight.copy_(torch.eye(15))
    x, context = drawn(67, TOKENS, 15), drawn(67, 1, 15)
    value = (context @ layer.value_projection.weight.mT).expand(67, TOKENS, 15)
    assert layer.training
    assert layer.make_problem(x, context).dropout == 0.5
    given = layer(x, context).unflatten(2, (3, 5))
    dropped = (given == 0).all(-1)
    assert 0 < int(dropped.sum()) < dropped.numel()
    twice = 2 * value.unflatten(2, (3, 5))
    close(given, twice.masked_fill(dropped[..., None], 0.0))
    assert not torch.equal(layer(x, context), layer(x, context))
    for layer.dropout, training in ((0.5, False), (0.0, True), (None, True)):
        assert layer.train(training).make_problem(x, context).dropout is None
        close(layer(x, context), value)


def test_the_mask_is_not_saved() -> None:
    masked = ch.MultiHeadAttention(10, num_heads=2, mask=torch.ones(7, 7, dtype=torch.bool).tril())
    bare = ch.MultiHeadAttention(10, num_heads=2)
    names = ["query_projection", "key_projection", "value_projection", "output_projection"]
    expected = [*(f"{name}.weight" for name in names), "output_projection.bias"]
    assert list(masked.state_dict()) == list(bare.state_dict()) == expected
    assert not list(masked.buffers())
    bare.load_state_dict(masked.state_dict())
    x = torch.randn(BATCH, 7, 10)
    assert torch.equal(bare(x, mask=masked.mask), masked(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast(dtype: torch.dtype) -> None:
    layer, (x,) = made("causal")
    lowered = copied(layer, torch.bfloat16)
    low = x.bfloat16()
    truth = defined(lowered.double(), low.double(), mask=ch.causal())
    plain = defined(lowered.bfloat16(), low, mask=ch.causal())
    layer = lowered.float()
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(low.to(dtype))
    assert output.dtype == torch.bfloat16
    assert_no_worse(output, truth, plain)


def test_autocast_leaves_float64_alone() -> None:
    layer, (x,) = made("causal")
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(x)
        with pytest.raises(DtypeError, match=r"^\[layer\.dtype\] x must .*float32; got .*float64"):
            layer.float()(x)
        assert_refused(lambda: layer(x.long()), "layer.dtype", "x // torch.float32 // torch.int64")
    layer.double()
    assert output.dtype == torch.float64
    assert output.shape == x.shape


def test_weights_are_those_before_dropout() -> None:
    layer = ch.MultiHeadAttention(10, num_heads=2, dropout=0.5).double()
    x = drawn(BATCH, TOKENS, 10)
    assert layer.training
    close(layer.weights(x)[:].sum(-1), torch.ones(BATCH, 2, TOKENS, dtype=torch.float64))


def test_the_plan_is_that_of_the_problem() -> None:
    layer = ch.MultiHeadAttention(10, num_heads=2, mask=ch.causal(), dropout=0.5)
    x = torch.randn(BATCH, TOKENS, 10)
    training = layer.plan(x)
    assert training.problem.endswith("mask=causal(), scale=0.447214, dropout=0.5")
    layer.eval()
    plan = layer.plan(x, mask=ch.sliding_window(left=2))
    assert plan.problem == layer.make_problem(x, mask=ch.sliding_window(left=2)).describe()
    problem = layer.make_problem(x)
    assert layer.plan(x) == ch.plan(problem.query, problem.key, problem.value, mask=ch.causal())
    assert layer.plan(x).kernel == "fused"


MASK = ch.causal() & ch.sliding_window(left=3)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_heads": 2}, ", num_heads=2, head_dim=6"),
        ({"num_heads": 4, "num_kv_heads": 2}, ", num_heads=4, num_kv_heads=2, head_dim=3"),
        ({"num_heads": 4, "value_head_dim": 5}, ", num_heads=4, head_dim=3, value_head_dim=5"),
        (
            {"num_heads": 4, "mask": MASK, "dropout": 0.1},
            f", num_heads=4, head_dim=3, mask={MASK.describe()}, dropout=0.1",
        ),
    ],
)
def test_repr(options: dict[str, Any], text: str) -> None:
    layer = ch.MultiHeadAttention(12, **options)
    assert repr(layer).splitlines()[:2] == ["MultiHeadAttention(", f"  12{text}"]


SIZES = (
    "embed_dim", "num_heads", "num_kv_heads", "context_dim", "output_dim", "head_dim", "value_head_dim",
)  # fmt: skip
test_sizes = refusals(
    lambda size: ch.MultiHeadAttention(**{"embed_dim": 8, "num_heads": 2, **size}),
    *(({name: size}, "argument.size", name, str(size)) for name in SIZES for size in (0, -3)),
    *(
        ({name: size}, "argument.type", name, type(size).__name__)
        for name in SIZES
        for size in (4.0, True, "4")
    ),
)


DROPOUT = "dropout // a probability in [0, 1), or None for no dropout"
MASKS = "mask // a Mask, such as clearhead.causal(), or a bool tensor // str"
test_what_the_constructor_refuses = refusals(
    lambda options: ch.MultiHeadAttention(12, **{"num_heads": 3, **options}),
    ({"num_heads": 5}, "layer.heads", "12 // 5"),
    ({"num_heads": 6, "num_kv_heads": 4}, "layer.kv-heads", "6 // 4"),
    ({"num_heads": 2, "num_kv_heads": 4}, "layer.kv-heads", "2 // 4"),
    ({"dropout": "0.1"}, "dropout.type", DROPOUT, "str"),
    ({"dropout": True}, "dropout.type", DROPOUT, "bool"),
    *(({"dropout": each}, "dropout.value", DROPOUT, str(each)) for each in (1.0, -0.1, math.nan)),
    ({"bias": 1}, "bias.type", "bias // 1"),
    ({"output_bias": None}, "output_bias.type", "output_bias // None"),
    ({"mask": "causal"}, "mask.type", MASKS),
    ({"mask": ch.causal}, "mask.type", "causal // causal // …"),
)


X, CONTEXT = torch.zeros(3, 7, 10), torch.zeros(3, 11, 17)
TENSOR, AS_TENSOR = "a torch.Tensor", "torch.as_tensor(…) makes a tensor of it."


def calls(inputs: tuple[Any, ...]) -> None:
    """Every way to call the layer refuses alike."""
    layer = ch.MultiHeadAttention(10, num_heads=2, context_dim=17)
    said: list[str] = []
    for method in ("forward", "make_problem", "weights", "plan"):
        with pytest.raises(ClearheadError) as caught:
            getattr(layer, method)(*inputs)
        said.append(str(caught.value))
    assert len(set(said)) == 1
    layer(*inputs)


test_what_a_call_refuses = refusals(
    calls,
    (([[0.0] * 10], CONTEXT), "x.type", "x", TENSOR, "list"),
    ((X.numpy(), CONTEXT), "x.type", "x", TENSOR, "ndarray", AS_TENSOR),
    ((X.to_sparse(), CONTEXT), "x.layout", "x // torch.sparse_coo"),
    ((X, "context"), "context.type", "context", TENSOR, "str"),
    ((X, CONTEXT.numpy()), "context.type", "context", TENSOR, "ndarray", AS_TENSOR),
    ((X[0, 0], CONTEXT), "layer.input", "10 // 10 // (10,)"),
    ((X[None], CONTEXT), "layer.input", "10 // 10 // (1, 3, 7, 10)"),
    ((X[..., :9], CONTEXT), "layer.input", "10 // 10 // (3, 7, 9)"),
    ((torch.zeros(()), CONTEXT), "layer.input", "10 // 10 // ()"),
    ((X, CONTEXT[..., 1:]), "layer.context", "17 // (3, 11, 16) // (3, 7, 10)"),
    ((X, CONTEXT[0]), "layer.context", "17 // (11, 17) // (3, 7, 10)"),
    ((X[0], CONTEXT), "layer.context", "17 // (3, 11, 17) // (7, 10)"),
    ((X, CONTEXT[:2]), "layer.context", "17 // (2, 11, 17) // (3, 7, 10)"),
    ((X, CONTEXT[:1]), "layer.context", "17 // (1, 11, 17) // (3, 7, 10)"),
    ((X,), "layer.context-missing", "17"),
    ((X.double(), CONTEXT), "layer.dtype", "x // torch.float32 // torch.float64"),
    ((X, CONTEXT.long()), "layer.dtype", "context // torch.float32 // torch.int64"),
    ((X.to("meta"), CONTEXT), "layer.device", "x // meta // cpu"),
    ((X, CONTEXT.to("meta")), "layer.device", "context // meta // cpu"),
)


@pytest.mark.parametrize("method", ["forward", "weights"])
def test_a_mask_that_does_not_fit(method: str) -> None:
    call: Any = getattr(ch.MultiHeadAttention(10, num_heads=2, mask=ch.causal()), method)
    short = torch.ones(7, 5, dtype=torch.bool)
    assert_refused(lambda: call(X, mask=short), "mask.shape", "7 // 5 // 7 // 7 // ")
    two = ch.padding([1, 2])
    assert_refused(lambda: call(X, mask=two), "mask.batch", "padding([1, 2]) // 2 // 3 // ")
    with pytest.raises(MaskError, match=r"^\[mask\.dtype\] mask must be bool, True = may attend;"):
        call(X, mask=torch.ones(7, 7))
    with pytest.raises(MaskError, match=r"^\[mask\.ambiguous\] mask of shape \(3, 7, 7\) could be"):
        call(X, mask=torch.ones(3, 7, 7, dtype=torch.bool))
