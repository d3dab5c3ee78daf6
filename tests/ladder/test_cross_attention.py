import pytest
import torch

import clearhead as ch
from clearhead.ladder import CrossAttention, SelfAttentionWithLayers


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
