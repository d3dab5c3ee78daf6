import pytest
import torch

from clearhead.errors import ArgumentTypeError
from clearhead.ladder import SelfAttention, SelfAttentionWithLayers
from tests.ladder.refusal import refused


def test_equals_bare_matrices() -> None:
    matrices = SelfAttention(5, head_dim=3, value_head_dim=2).double()
    layers = SelfAttentionWithLayers(5, head_dim=3, value_head_dim=2).with_weights(
        *matrices.parameters()
    )
    x = torch.randn(7, 5, dtype=torch.float64)
    torch.testing.assert_close(layers(x), matrices(x))
    torch.testing.assert_close(layers.stages(x), matrices.stages(x))


def test_a_bias_is_added_to_each_projection() -> None:
    rung = SelfAttentionWithLayers(5, head_dim=3, value_head_dim=2, bias=True)
    query, key = torch.randn(2, 5, 3)
    value, x = torch.randn(5, 2), torch.randn(7, 5)
    biases = torch.randn(3), torch.randn(3), torch.randn(2)
    rung.with_weights(
        query, key, value, query_bias=biases[0], key_bias=biases[1], value_bias=biases[2]
    )
    for projected, weight, bias in zip(rung.project(x), (query, key, value), biases, strict=True):
        torch.testing.assert_close(projected, x @ weight + bias)


def test_there_is_no_bias_unless_asked_for() -> None:
    rung = SelfAttentionWithLayers(5, head_dim=3)
    query, key, value = torch.randn(3, 5, 3)
    rung.with_weights(query, key, value, query_bias=None, key_bias=None)
    assert torch.equal(rung.query_projection.weight, query.mT)
    assert [name for name, _ in rung.named_parameters()] == [
        "query_projection.weight",
        "key_projection.weight",
        "value_projection.weight",
    ]


def test_refused_weights() -> None:
    plain = SelfAttentionWithLayers(5, head_dim=3)
    biased = SelfAttentionWithLayers(5, head_dim=3, bias=True)
    query, key, value = torch.zeros(3, 5, 3)
    bias = torch.zeros(3)
    with refused(RuntimeError, None, 'Unexpected key(s) in state_dict: "key_projection.bias"'):
        plain.with_weights(query, key, value, key_bias=bias)
    with refused(RuntimeError, None, 'Unexpected key(s) in state_dict: "output_projection.weight"'):
        plain.with_weights(query, key, value, output=value)
    with refused(RuntimeError, None, 'Missing key(s) in state_dict: "value_projection.bias"'):
        biased.with_weights(query, key, value, query_bias=bias, key_bias=bias)


@pytest.mark.parametrize("bias", [6, 0.1, None])
def test_a_bias_is_switched_on_by_true_only(bias: object) -> None:
    with refused(ArgumentTypeError, "bias.type", f"bias must be True or False; got {bias}"):
        SelfAttentionWithLayers(5, head_dim=3, bias=bias)  # pyright: ignore[reportArgumentType]
