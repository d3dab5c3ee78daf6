from typing import Any

import pytest
import torch

import clearhead as ch
from clearhead.errors import ArgumentError, ArgumentTypeError, MaskError
from clearhead.ladder import BatchedAttention, ConcatenatedHeads, SplitHeads
from tests.ladder.refusal import refused

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": ch.causal()},
    "biased": {"bias": True, "output_bias": False},
    "widths": {"head_dim": 7, "value_head_dim": 2, "output_dim": 11},
    "one head": {"num_heads": 1},
    "hidden": {"mask": ~ch.full()},
    "window": {"mask": ch.causal() & ch.sliding_window(left=2)},
}


def settings(name: str) -> dict[str, Any]:
    return {"embed_dim": 15, "num_heads": 3, **SETTINGS[name]}


def test_equals_the_rung_before_with_the_columns_of_each_head() -> None:
    rung = SplitHeads(15, num_heads=3, head_dim=7, value_head_dim=2, mask=ch.causal()).double()
    query, key, value = (
        each.weight.mT
        for each in (rung.query_projection, rung.key_projection, rung.value_projection)
    )
    heads = ConcatenatedHeads(
        BatchedAttention(15, head_dim=7, value_head_dim=2, mask=ch.causal()).with_weights(
            query[:, 7 * head : 7 * head + 7],
            key[:, 7 * head : 7 * head + 7],
            value[:, 2 * head : 2 * head + 2],
        )
        for head in range(3)
    )
    x = torch.randn(2, 7, 15, dtype=torch.float64)
    torch.testing.assert_close(rung.stages(x), heads.stages(x))
    torch.testing.assert_close(rung(x), rung.output_projection(heads(x)))


@pytest.mark.parametrize("name", SETTINGS)
def test_equals_the_layer_with_the_same_weights(name: str) -> None:
    rung = SplitHeads(**settings(name)).double()
    layer = ch.MultiHeadAttention(**settings(name)).double()
    layer.load_state_dict(rung.state_dict())
    x = torch.randn(2, 13, 15, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(rung(x), layer(x))
    torch.testing.assert_close(rung(x[0]), layer(x[0]))
    torch.testing.assert_close(
        torch.autograd.grad(rung(x).sin().sum(), (x, *rung.parameters())),
        torch.autograd.grad(layer(x).sin().sum(), (x, *layer.parameters()), materialize_grads=True),
    )


def test_equals_the_layer_for_a_context_and_a_mask_of_the_call() -> None:
    rung = SplitHeads(15, num_heads=3, context_dim=11).double()
    layer = ch.MultiHeadAttention(15, num_heads=3, context_dim=11).double()
    layer.load_state_dict(rung.state_dict())
    x = torch.randn(2, 7, 15, dtype=torch.float64)
    context = torch.randn(2, 13, 11, dtype=torch.float64)
    per_head = torch.rand(1, 3, 7, 13) > 0.5
    for mask in (None, ch.padding([4, 13]), per_head):
        torch.testing.assert_close(rung(x, context, mask=mask), layer(x, context, mask=mask))
    torch.testing.assert_close(
        rung(x[0], context[0], mask=per_head), layer(x[0], context[0], mask=per_head)
    )


def test_fresh_weights_are_those_of_the_layer() -> None:
    torch.manual_seed(123)
    rung = SplitHeads(15, num_heads=3, bias=True)
    torch.manual_seed(123)
    layer = ch.MultiHeadAttention(15, num_heads=3, bias=True)
    for (name, ours), (other, theirs) in zip(
        rung.state_dict().items(), layer.state_dict().items(), strict=True
    ):
        assert name == other
        assert torch.equal(ours, theirs)


def test_given_weights() -> None:
    query, key, value, output = torch.randn(4, 6, 6, dtype=torch.float64).unbind()
    output_bias = torch.randn(6, dtype=torch.float64)
    rung = SplitHeads(6, num_heads=2)
    rung.with_weights(query, key, value, output=output, output_bias=output_bias)
    x = torch.randn(7, 6, dtype=torch.float64)
    heads = [ch.attend(x @ query[:, c], x @ key[:, c], x @ value[:, c]) for c in halves(6)]
    torch.testing.assert_close(rung(x), torch.cat(heads, dim=-1) @ output + output_bias)


def halves(width: int) -> tuple[slice, slice]:
    return slice(0, width // 2), slice(width // 2, width)


def test_drops_weights_in_training_only() -> None:
    rung = SplitHeads(15, num_heads=3, dropout=0.5)
    x = torch.randn(7, 15)
    assert (rung.stages(x).dropped_weights == 0).any()
    steps = rung.eval().stages(x)
    assert torch.equal(steps.dropped_weights, steps.weights)


def test_repr_says_what_the_weights_do_not() -> None:
    text = repr(SplitHeads(15, num_heads=3, mask=ch.causal(), dropout=0.5))
    assert "num_heads=3, mask=causal(), dropout=0.5" in text
    assert "mask" not in repr(SplitHeads(15, num_heads=3))


def test_refusals() -> None:
    message = (
        "embed_dim must be a multiple of num_heads, or head_dim be given; got embed_dim=15, num"
    )
    with refused(ArgumentError, "rung.heads", message):
        SplitHeads(15, num_heads=2)
    with refused(ArgumentTypeError, "output_bias.type", "output_bias must be True or False; got 1"):
        SplitHeads(15, num_heads=3, output_bias=1)  # pyright: ignore[reportArgumentType]
    rung = SplitHeads(15, num_heads=3)
    square = torch.zeros(15, 15)
    with refused(RuntimeError, None, 'Missing key(s) in state_dict: "output_projection.weight"'):
        rung.with_weights(square, square, square)
    with refused(MaskError, "mask.heads", "describes 2 heads; the query has num_heads=3"):
        rung(torch.zeros(7, 15), mask=torch.ones(1, 2, 7, 7).bool())
