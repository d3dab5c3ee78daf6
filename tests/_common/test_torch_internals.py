"""Private parts of PyTorch: that they are there, and do what is said of them."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from clearhead._common.torch_internals import (
    flash_cpu,
    flash_cpu_backward,
    has_tangent,
    is_forward_mode,
    is_plain,
    softmax_backward_,
)


def test_transformations_are_seen() -> None:
    seen = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(is_plain(x))
        return x.sum()

    torch.func.grad(look)(torch.ones(2))
    assert seen == [False]
    assert is_plain(torch.ones(2))
    assert is_plain(torch.nn.Parameter(torch.ones(2)))


# PyTorch loads rules of its own for forward mode, in a way that it has itself deprecated.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_tangents_are_seen() -> None:
    x = torch.ones(2)
    assert not is_forward_mode()
    with forward_ad.dual_level():
        assert is_forward_mode()
        assert has_tangent(forward_ad.make_dual(x, x))
        assert not has_tangent(x)
    assert not is_forward_mode()


def test_flash_attention_is_that_of_the_public_function() -> None:
    query, key, value = torch.randn(3, 2, 3, 7, 8).unbind()
    mask = torch.zeros(7, 7).masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
    leaves = tuple(each.clone().requires_grad_() for each in (query, key, value))
    query_leaf, key_leaf, value_leaf = leaves
    expected = F.scaled_dot_product_attention(
        query_leaf, key_leaf, value_leaf, is_causal=True, scale=0.3
    )
    grad = torch.randn_like(expected)
    grads = torch.autograd.grad(expected, leaves, grad)
    scores = (query @ key.mT * 0.3 + mask).logsumexp(-1)
    for attn_mask, causal in ((None, True), (mask[None, None], False)):
        context, total = flash_cpu(query, key, value, attn_mask, causal, 0.3)
        torch.testing.assert_close(context, expected.detach())
        torch.testing.assert_close(total, scores)
        found = flash_cpu_backward(
            grad, (query, key, value), (context, total), attn_mask, causal, 0.3
        )
        torch.testing.assert_close(found, grads)


def test_the_backward_of_softmax_is_in_place() -> None:
    scores = torch.randn(2, 5, 7, requires_grad=True)
    weights = scores.softmax(-1)
    grads = torch.randn(2, 5, 7)
    (expected,) = torch.autograd.grad(weights, scores, grads)
    assert softmax_backward_(grads, weights.detach()) is grads
    assert torch.equal(grads, expected)
