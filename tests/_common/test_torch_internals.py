"""Every private part of PyTorch that is used: it is there, and is what it is taken for.

A failure here says what a version of PyTorch has changed, before anything else does.
"""

import inspect
import sys
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from clearhead._common.torch_internals import (
    DispatchMode,
    argument_names,
    broadcast_shape,
    flash_cpu,
    flash_cpu_backward,
    has_tangent,
    in_backward,
    is_forward_mode,
    is_transformed,
    private,
    safe_softmax,
    softmax_backward_,
    unravelled,
)
from clearhead.editing.entering import keep_for_backward, kept_for_backward
from tests.refusals import assert_refused

CHANGED = f"changed in PyTorch {torch.__version__}"


def test_what_is_gone_is_named() -> None:
    assert_refused(
        lambda: private("_C._functorch.gone"),
        "torch.private",
        f"_C._functorch.gone // {torch.__version__}",
    )


def test_the_compiler_leaves_the_code_of_a_mode_alone() -> None:
    seen, graphs = [], []

    class Seen(DispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            seen.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    mode, compiled = Seen(), torch.compile(lambda x: 2 * x + 1, backend=backend)
    for _ in range(2):
        with mode:
            compiled(torch.ones(2))
    assert seen == ["aten::ones", "aten::mul", "aten::add"] * 2
    assert graphs == [], f"torch.compile has read {[each.code for each in graphs]}"
    assert "__torch_dispatch__" not in vars(mode)  # a mode that knows itself would live on


def test_shapes_and_places_are_those_of_pytorch() -> None:
    for shapes in ([(3, 1, 4), (5, 1)], [(0, 2), (1,)], [(2,), ()], [(1, 1), (7, 1, 2)]):
        assert broadcast_shape(*shapes) == torch.broadcast_shapes(*shapes)
    for shapes in ([(3,), (2,)], [(0,), (2,)], [(2, 3), (3, 2)]):
        with pytest.raises(RuntimeError, match="do not go together"):
            broadcast_shape(*shapes)
    index, shape = torch.arange(30).view(5, 6).flip(0), (2, 3, 5)
    assert all(map(torch.equal, unravelled(index, shape), torch.unravel_index(index, shape)))


def test_transformations_are_seen() -> None:
    seen: list[bool] = []

    def see(tensor: Tensor) -> Tensor:
        seen.append(is_transformed(tensor))
        return tensor.sum()

    torch.vmap(see)(torch.ones(2, 3))
    torch.func.grad(see)(torch.ones(3))
    see(torch.ones(3))
    assert seen == [True, True, False], f"is_functorch_wrapped_tensor {CHANGED}"


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        ("_native_multi_head_attention", "query key num_head qkv_weight qkv_bias mask mask_type"),
        (
            "_transformer_encoder_layer_fwd",
            "src embed_dim num_heads qkv_weight qkv_bias norm_first eps norm_weight_1 norm_bias_1 "
            "mask mask_type",
        ),
    ],
)
def test_the_arguments_of_the_fast_paths(operation: str, words: str) -> None:
    names, known = words.split(), argument_names(operation)
    assert [each for each in known if each in names] == names, f"torch.{operation} {CHANGED}"
    assert callable(private(operation)), f"torch.{operation} {CHANGED}"


def test_the_arguments_of_the_layer_s_function() -> None:
    known = inspect.signature(torch.nn.functional.multi_head_attention_forward).parameters
    names = {
        "query", "key", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k", "add_zero_attn",
        "key_padding_mask", "need_weights", "attn_mask", "use_separate_proj_weight",
        "q_proj_weight", "k_proj_weight", "static_k",
    }  # fmt: skip
    assert names <= known.keys(), f"multi_head_attention_forward {CHANGED}"
    assert known["need_weights"].default is True, f"multi_head_attention_forward {CHANGED}"


def test_a_wrapper_may_turn_torch_functions_off() -> None:
    class Off(Tensor):
        __torch_function__ = private("_C._disabled_torch_function_impl")

    found = torch.ones(2).as_subclass(Off) + 1
    assert type(found) is Tensor, f"_disabled_torch_function_impl {CHANGED}"


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


def test_a_backward_pass_is_known_from_inside() -> None:
    seen: list[bool] = []
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda grad: seen.append(in_backward()))
    seen.append(in_backward())
    (x * 2).sum().backward()
    assert [*seen, in_backward()] == [False, True, False]


def test_what_is_kept_for_backward_is_held_and_let_go() -> None:
    kept = [object()]
    before = sys.getrefcount(kept)
    for _ in range(3):
        keep_for_backward("clearhead.test", kept)
        assert kept_for_backward("clearhead.test") is kept
        assert sys.getrefcount(kept) == before + 1
    keep_for_backward("clearhead.test", None)
    assert sys.getrefcount(kept) == before


def test_a_query_without_a_key_gets_zeros_and_a_gradient_of_zero() -> None:
    query, hidden = torch.randn(1, 1, 4, 4, requires_grad=True), torch.full((4, 4), -torch.inf)
    fused = F.scaled_dot_product_attention(query, query, query, hidden)
    for found in (fused, safe_softmax(query + hidden, -1)):
        (grad,) = torch.autograd.grad(found.square().sum() + found.sum(), query)
        assert not torch.cat([found, grad]).any(), CHANGED
