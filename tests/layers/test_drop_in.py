"""The drop-in is PyTorch's module: for every argument the same output, weights and gradients."""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.errors import ArgumentError, ArgumentTypeError, ShapeError
from clearhead.layers import MultiheadAttention
from tests.refusals import assert_refused
from tests.turns import in_turn

BATCH, QUERIES, KEYS, HEADS, WIDTH = 2, 5, 7, 3, 12


def pair(**options: Any) -> tuple[nn.MultiheadAttention, MultiheadAttention]:
    """PyTorch's module and ours with its weights, in float64."""
    torch.manual_seed(0)
    given: dict[str, Any] = {"dtype": torch.float64} | options
    theirs = nn.MultiheadAttention(WIDTH, HEADS, **given)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    ours = MultiheadAttention(WIDTH, HEADS, **given)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def inputs(module: nn.MultiheadAttention, *, batched: bool = True) -> list[Tensor]:
    """Query, key and value in the layout of a module."""
    sizes = zip((QUERIES, KEYS, KEYS), (WIDTH, module.kdim, module.vdim), strict=True)
    drawn = [torch.randn(BATCH, length, width).double() for length, width in sizes]
    if not batched:
        return [each[0] for each in drawn]
    return drawn if module.batch_first else [each.transpose(0, 1) for each in drawn]


def check(
    theirs: nn.MultiheadAttention, ours: MultiheadAttention, given: list[Tensor], **options: Any
) -> None:
    """The same output, weights and gradients."""
    results = []
    for module in (theirs, ours):
        module.zero_grad()
        leaves = [each.detach().clone().requires_grad_() for each in given]
        output, weights = module(*leaves, **options)
        generator = torch.Generator().manual_seed(1)
        total = output.new_zeros(())
        for each in (output, weights):
            if each is not None:
                numbers = torch.randn(each.shape, dtype=each.dtype, generator=generator)
                total = total + (each * numbers).sum()
        total.backward()
        gradients = [each.grad for each in (*leaves, *module.parameters())]
        results.append((output, weights, *gradients))
    for expected, actual in zip(*results, strict=True):
        assert (expected is None) == (actual is None)
        if expected is not None:
            assert actual.shape == expected.shape
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


MODULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": {"batch_first": True},
    "without biases": {"bias": False, "batch_first": True},
    "widths": {"kdim": 11, "vdim": 13},
    "bias_kv": {"add_bias_kv": True, "batch_first": True},
    "zero_attn": {"add_zero_attn": True},
    "everything": {"kdim": 11, "vdim": 13, "add_bias_kv": True, "add_zero_attn": True},
}


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_every_argument(name: str, batched: bool) -> None:
    theirs, ours = pair(**MODULES[name])
    given = inputs(theirs, batched=batched)
    hidden = torch.rand(QUERIES, KEYS) < 0.4
    hidden[:, 2] = False
    padded = torch.zeros(BATCH, KEYS, dtype=torch.bool)
    padded[0, 5:], padded[1, :1] = True, True
    by_head = torch.rand(BATCH * HEADS if batched else HEADS, QUERIES, KEYS) < 0.3
    by_head[..., 2] = False
    added = torch.randn(QUERIES, KEYS).double()
    masks = [None, hidden, by_head, added, added.masked_fill(hidden, -torch.inf)]
    paddings = [None, padded if batched else padded[0]]
    ways = [(True, True), (True, False), (False, True)]
    pairs = itertools.product(masks, paddings)
    first = [*MODULES].index(name)
    for (attn_mask, padding), (need_weights, average) in in_turn(pairs, ways[first % 3 :] + ways):
        if padding is not None and attn_mask is not None and attn_mask.is_floating_point():
            padding = torch.zeros_like(padding, dtype=torch.float64).masked_fill(
                padding, -torch.inf
            )
        check(
            theirs,
            ours,
            given,
            attn_mask=attn_mask,
            key_padding_mask=padding,
            need_weights=need_weights,
            average_attn_weights=average,
        )


@pytest.mark.parametrize("batch_first", [True, False])
def test_the_causal_hint(batch_first: bool) -> None:
    theirs, ours = pair(batch_first=batch_first)
    x = inputs(theirs)[0]
    hidden = torch.ones(QUERIES, QUERIES, dtype=torch.bool).triu(1)
    for options in ({}, {"need_weights": False}):
        check(theirs, ours, [x, x, x], attn_mask=hidden, is_causal=True, **options)
    # The module's own key, at the end, is not in the future.
    theirs, ours = pair(batch_first=batch_first, add_bias_kv=True)
    plain, _ = theirs(x, x, x, attn_mask=hidden, need_weights=False)
    hinted, _ = ours(x, x, x, attn_mask=hidden, need_weights=False, is_causal=True)
    torch.testing.assert_close(hinted, plain, rtol=0, atol=1e-12)


def test_a_learned_mask_gets_its_gradient() -> None:
    theirs, ours = pair()
    learned = torch.randn(QUERIES, KEYS, dtype=torch.float64)
    gradients = []
    for module in (theirs, ours):
        mask = learned.clone().requires_grad_()
        module(*inputs_of_seed(theirs), attn_mask=mask, need_weights=False)[
            0
        ].square().sum().backward()
        gradients.append(mask.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=1e-12)


def inputs_of_seed(module: nn.MultiheadAttention) -> list[Tensor]:
    torch.manual_seed(2)
    return inputs(module)


def test_rows_that_see_nothing() -> None:
    """PyTorch gives NaN; zeros come out of ours, before the output projection."""
    theirs, ours = pair(batch_first=True)
    given = inputs(theirs)
    hidden = torch.zeros(QUERIES, KEYS, dtype=torch.bool)
    hidden[1] = True
    expected, _ = theirs(*given, attn_mask=hidden)
    output, weights = ours(*given, attn_mask=hidden)
    assert expected[:, 1].isnan().all()
    assert (weights[:, 1] == 0).all()
    torch.testing.assert_close(output[:, 1], ours.out_proj.bias.expand(BATCH, -1))
    torch.testing.assert_close(output[:, 2:], expected[:, 2:], rtol=0, atol=1e-12)


def test_dropout_drops_the_weights_that_are_returned() -> None:
    _, ours = pair(dropout=0.5, batch_first=True, bias=False)
    given = inputs(ours)
    output, weights = ours.train()(*given, average_attn_weights=False)
    value = nn.functional.linear(given[2], ours.in_proj_weight.chunk(3)[2])
    context = weights @ value.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    expected = ours.out_proj(context.transpose(1, 2).flatten(2))
    torch.testing.assert_close(output, expected)
    assert 0.2 < float((weights == 0).double().mean()) < 0.8
    assert not torch.equal(ours(*given, need_weights=False)[0], ours(*given, need_weights=False)[0])
    ours.eval()
    assert torch.equal(ours(*given)[0], ours(*given)[0])


@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize("fast", [True, False])
def test_inside_the_layers_of_pytorch(fast: bool) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 17, dropout=0.0, batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2).eval()
    ours = copy.deepcopy(theirs)
    for each in ours.layers:
        assert isinstance(each, nn.TransformerEncoderLayer)
        drop_in = MultiheadAttention(WIDTH, 4, batch_first=True)
        drop_in.load_state_dict(each.self_attn.state_dict())
        each.self_attn = drop_in.eval()
    x, padded = torch.randn(BATCH, KEYS, WIDTH), torch.zeros(BATCH, KEYS, dtype=torch.bool)
    padded[1, 4:] = True
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fast)
    try:
        with torch.no_grad(), ch.watch(ours) as seen:
            expected = theirs(x, src_key_padding_mask=padded)[~padded]
            actual = ours(x, src_key_padding_mask=padded)[~padded]
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    assert len(seen) == 2


def test_autocast() -> None:
    theirs, ours = pair(dtype=torch.float32, batch_first=True)
    given = [each.float() for each in inputs(theirs)]
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = ours(*given)
        expected, _ = theirs(*given)
    assert output.dtype == expected.dtype
    torch.testing.assert_close(output, expected, rtol=0.05, atol=0.1)


def test_it_shares_all_with_a_module_of_pytorch() -> None:
    theirs, _ = pair(batch_first=True)
    ours = MultiheadAttention.sharing(theirs)
    assert ours.in_proj_weight is theirs.in_proj_weight
    assert type(ours) is MultiheadAttention
    assert type(theirs) is nn.MultiheadAttention
    assert torch.equal(
        ch.convert(ours).layer.query_projection.weight,
        theirs.in_proj_weight[:WIDTH],
    )

    class Mine(nn.MultiheadAttention): ...

    assert_refused(lambda: MultiheadAttention.sharing(Mine(WIDTH, HEADS)), "drop-in.class", "Mine")


X = torch.zeros(BATCH, QUERIES, WIDTH)


@pytest.mark.parametrize(
    ("given", "options", "error", "code", "text"),
    [
        ((X[..., 1:], X, X), {}, ShapeError, "shape", "with widths 12, 12, 12"),
        ((X, X, X[:, 1:]), {}, ShapeError, "shape", r"value \(2, 4, 12\)"),
        ((X, X[:1], X[:1]), {}, ShapeError, "shape", "one batch"),
        ((X[0], X, X), {}, ShapeError, "shape", r"query \(5, 12\)"),
        ((X, X, X), {"is_causal": True}, ArgumentError, "is-causal", "give that mask as well"),
        (
            (X, X, X),
            {"attn_mask": torch.ones(5, 4, dtype=torch.bool)},
            ShapeError,
            "attn_mask",
            r"\(query_len, kv_len\) = \(5, 5\) or .* = \(6, 5, 5\); got \(5, 4\)",
        ),
        (
            (X, X, X),
            {"key_padding_mask": torch.ones(5, 2, dtype=torch.bool)},
            ShapeError,
            "key_padding_mask",
            r"\(batch, kv_len\) = \(2, 5\); got \(5, 2\)",
        ),
        (
            (X, X, X),
            {"attn_mask": torch.ones(5, 5, dtype=torch.int64)},
            ArgumentTypeError,
            "mask-type",
            "attn_mask must be bool, True = hidden, or floating",
        ),
    ],
)
def test_what_is_refused(
    given: tuple[Tensor, ...], options: dict[str, Any], error: Any, code: str, text: str
) -> None:
    with pytest.raises(error, match=text) as refused:
        MultiheadAttention(WIDTH, HEADS, batch_first=True)(*given, **options)
    assert refused.value.code == f"drop-in.{code}"


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_shapes_that_pytorch_asserts_are_refused(
    batch_first: bool, need_weights: bool, training: bool
) -> None:
    ours = MultiheadAttention(4, 4, batch_first=batch_first).train(training)
    three, two = torch.randn(4, 4, 4), torch.randn(4, 4)
    hidden = torch.tensor([False, False, True, True])
    wrong: list[tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]] = [
        (three, two, three, {}),
        (three, three, two, {}),
        (two, three, two, {}),
        (two, two, three, {}),
        (three, three, three, {"key_padding_mask": hidden}),
        (two, two, two, {"key_padding_mask": hidden.repeat(1, 2)}),
        (three, three, three, {"attn_mask": hidden}),
        (two, two, two, {"attn_mask": hidden}),
        (two, two, two, {"attn_mask": hidden.expand(5, 4, 4)}),
    ]
    for query, key, value, masks in wrong:
        with pytest.raises(ShapeError):
            ours(query, key, value, need_weights=need_weights, **masks)


def test_a_bias_of_another_dtype() -> None:
    theirs = nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64).eval()
    theirs.in_proj_bias = nn.Parameter(torch.randn(12, dtype=torch.float16))
    ours = MultiheadAttention.sharing(theirs)
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(ours(x, x, x)[0], theirs(x, x, x)[0])
