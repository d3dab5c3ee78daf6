import pytest
import torch

import clearhead as ch
from clearhead.errors import ArgumentError, ArgumentTypeError, DtypeError, ShapeError
from clearhead.ladder import CrossAttention, SelfAttentionWithLayers
from tests.ladder.refusal import refused


def test_equals_self_attention_without_a_context_and_with_itself() -> None:
    torch.manual_seed(123)
    before = SelfAttentionWithLayers(5, head_dim=3, value_head_dim=2, bias=True).double()
    torch.manual_seed(123)
    rung = CrossAttention(5, head_dim=3, value_head_dim=2, bias=True).double()
    x = torch.randn(7, 5, dtype=torch.float64)
    torch.testing.assert_close(rung(x), before(x))
    torch.testing.assert_close(rung(x, x), before(x))


@pytest.mark.parametrize("context_len", [1, 11])
def test_lengths_and_widths_may_differ(context_len: int) -> None:
    rung = CrossAttention(5, head_dim=3, value_head_dim=2, context_dim=13).double()
    x = torch.randn(7, 5, dtype=torch.float64)
    context = torch.randn(context_len, 13, dtype=torch.float64)
    steps = rung.stages(x, context)
    assert steps.weights.shape == (7, context_len)
    assert steps.context.shape == (7, 2)
    torch.testing.assert_close(rung(x, context), ch.attend(*rung.project(x, context)))


def test_an_empty_context_gives_zeros() -> None:
    assert (CrossAttention(5, head_dim=3)(torch.randn(7, 5), torch.zeros(0, 5)) == 0).all()


def test_gradients_reach_both_sequences() -> None:
    rung = CrossAttention(5, head_dim=3, context_dim=13)
    x, context = torch.randn(7, 5, requires_grad=True), torch.randn(11, 13, requires_grad=True)
    rung(x, context).square().sum().backward()
    for tensor in (x, context, *rung.parameters()):
        assert tensor.grad is not None
        assert tensor.grad.abs().sum() > 0


def test_refusals() -> None:
    rung = CrossAttention(5, head_dim=3, context_dim=13)
    x, context = torch.zeros(7, 5), torch.zeros(11, 13)
    with refused(ShapeError, "rung.context-missing", "a context of width context_dim=13; call it"):
        rung(x)
    message = "context must have shape (tokens, context_dim=13); got (11, 5)"
    with refused(ShapeError, "rung.input", message):
        rung(x, context[:, :5])
    with refused(ShapeError, "rung.input", "x must have shape (tokens, embed_dim=5); got (11, 13)"):
        rung(context, x)
    with refused(ArgumentTypeError, "context.type", "context must be a torch.Tensor; got list"):
        rung(x, [[1.0]])
    with refused(DtypeError, "rung.dtype", "context must have the dtype of the weights"):
        rung(x, context.double())
    with refused(ArgumentError, "argument.size", "context_dim must be 1 or more; got 0"):
        CrossAttention(5, head_dim=3, context_dim=0)
