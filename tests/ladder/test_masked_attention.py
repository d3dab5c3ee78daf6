import torch

import clearhead as ch
from clearhead.ladder import CrossAttention, MaskedAttention


def test_without_a_mask_it_is_cross_attention() -> None:
    rung = MaskedAttention(5, head_dim=3, context_dim=13).double()
    before = CrossAttention(5, head_dim=3, context_dim=13).double()
    before.load_state_dict(rung.state_dict())
    x = torch.randn(7, 5, dtype=torch.float64)
    context = torch.randn(11, 13, dtype=torch.float64)
    torch.testing.assert_close(rung(x, context), before(x, context))


def test_equals_attend_with_the_mask() -> None:
    mask = ch.causal() & ch.sliding_window(left=3)
    rung = MaskedAttention(5, head_dim=3, mask=mask).double()
    x, context = torch.randn(7, 5).double(), torch.randn(11, 5).double()
    torch.testing.assert_close(rung(x), ch.attend(*rung.project(x), mask=mask))
    # With a longer context the last query sits on the last key.
    torch.testing.assert_close(rung(x, context), ch.attend(*rung.project(x, context), mask=mask))


def test_the_future_changes_nothing() -> None:
    rung = MaskedAttention(5, head_dim=3, mask=ch.causal()).double()
    x = torch.randn(7, 5, dtype=torch.float64)
    for length in range(1, 8):
        torch.testing.assert_close(rung(x[:length]), rung(x)[:length])


def test_there_is_no_longest_input_and_no_saved_mask() -> None:
    rung = MaskedAttention(5, head_dim=3, mask=ch.causal())
    assert list(rung.state_dict()) == [
        "query_projection.weight",
        "key_projection.weight",
        "value_projection.weight",
    ]
    assert rung(torch.randn(1009, 5)).shape == (1009, 3)


def test_a_query_that_sees_nothing_gets_zeros_and_gives_no_gradient() -> None:
    rung = MaskedAttention(5, head_dim=3, mask=~ch.causal())
    x = torch.randn(7, 5, requires_grad=True)
    context = rung(x)
    assert (context[-1] == 0).all()
    (gradient,) = torch.autograd.grad(context[-1].sum(), x)
    assert (gradient == 0).all()
