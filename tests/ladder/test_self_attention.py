from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.errors import ArgumentError, ArgumentTypeError
from clearhead.ladder import SelfAttention, SimpleAttention
from tests.ladder.refusal import refused


def test_equals_simple_attention_where_the_matrices_do_nothing() -> None:
    x = torch.randn(7, 1, dtype=torch.float64)  # of width 1 the scale is 1 as well
    one = torch.ones(1, 1, dtype=torch.float64)
    rung = SelfAttention(1, head_dim=1).with_weights(one, one, one)
    torch.testing.assert_close(rung(x), SimpleAttention()(x))


def test_equals_attend_on_its_projections() -> None:
    rung = SelfAttention(5, head_dim=3, value_head_dim=2).double()
    x = torch.randn(7, 5, dtype=torch.float64)
    context = rung(x)
    assert context.shape == (7, 2)
    torch.testing.assert_close(context, ch.attend(*rung.project(x)))


@pytest.mark.parametrize(("init", "draw"), [("normal", torch.randn), ("uniform", torch.rand)])
def test_matrices_are_drawn_query_first(init: str, draw: Callable[..., Tensor]) -> None:
    torch.manual_seed(123)
    rung = SelfAttention(5, head_dim=3, value_head_dim=2, init=init)  # pyright: ignore[reportArgumentType]
    torch.manual_seed(123)
    assert torch.equal(rung.query_weight, draw(5, 3))
    assert torch.equal(rung.key_weight, draw(5, 3))
    assert torch.equal(rung.value_weight, draw(5, 2))


def test_given_weights_are_copied() -> None:
    query, key = torch.randn(2, 5, 3, dtype=torch.float64)
    value = nn.Parameter(torch.randn(5, 2, dtype=torch.float64))
    rung = SelfAttention(5, head_dim=3, value_head_dim=2).with_weights(query, key, value)
    assert torch.equal(rung.value_weight, value)
    with torch.no_grad():
        value.zero_()
    assert rung.value_weight.abs().sum() > 0
    assert rung(torch.randn(7, 5, dtype=torch.float64)).dtype == torch.float64


def test_refused_sizes() -> None:
    with refused(ArgumentError, "argument.size", "head_dim must be 1 or more; got 0"):
        SelfAttention(5, head_dim=0)
    with refused(ArgumentError, "argument.size", "value_head_dim must be 1 or more; got 0"):
        SelfAttention(5, head_dim=3, value_head_dim=0)
    with refused(ArgumentTypeError, "argument.type", "embed_dim must be a whole number; got float"):
        SelfAttention(5.0, head_dim=3)  # pyright: ignore[reportArgumentType]


def test_refused_weights() -> None:
    rung = SelfAttention(5, head_dim=3, value_head_dim=2)
    query, key, value = torch.zeros(5, 3), torch.ones(5, 3), torch.zeros(5, 2)
    with refused(RuntimeError, None, "size mismatch for query_weight"):
        rung.with_weights(query[:1], key, value)  # which could be broadcast
    with refused(RuntimeError, None, "Only Tensors of floating point"):
        rung.with_weights(query.long(), key.long(), value.long())


def test_autocast_is_no_mixture_of_dtypes() -> None:
    rung = SelfAttention(5, head_dim=3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert rung(torch.randn(7, 5).bfloat16()).dtype == torch.bfloat16
