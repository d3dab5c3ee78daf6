"""Gradients clipped by their norm on one process; tests/sharding/test_tensor_parallel.py has ranks."""

import math

import pytest
import torch
from torch import nn

from clearhead.layers import clip_grad_norm
from tests.refusals import refusals


@pytest.mark.parametrize("norm_type", [2, 1.0, 3.0, math.inf])
@pytest.mark.parametrize("limit", [0.0, 0.01, 1e3])
def test_plain_gradients_are_clipped_as_by_pytorch(norm_type: float, limit: float) -> None:
    models = [nn.Linear(3, 4), nn.Linear(3, 4)]
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        model.bias.requires_grad_(False)
        model(torch.ones(2, 3)).square().sum().backward()
    theirs = torch.nn.utils.clip_grad_norm_(models[0].parameters(), limit, norm_type)
    torch.testing.assert_close(clip_grad_norm(models[1].parameters(), limit, norm_type), theirs)
    torch.testing.assert_close(models[1].weight.grad, models[0].weight.grad)
    torch.testing.assert_close(
        clip_grad_norm(models[1].weight, 1e-3), torch.linalg.vector_norm(models[0].weight.grad)
    )


def test_nothing_to_clip() -> None:
    assert (
        float(clip_grad_norm([], 1.0))
        == float(clip_grad_norm(nn.Linear(2, 2).parameters(), 1.0))
        == 0.0
    )


test_refusals = refusals(
    lambda arguments: clip_grad_norm(*arguments),
    ((3, 1.0), "parameters.type", "int"),
    ((nn.Linear(2, 2), 1.0), "parameters.type", "Linear"),
    (({"weight": 1}, 1.0), "parameters.type", "str"),
    (([], -1.0), "max_norm.value", "max_norm // a number, 0 or more // -1.0"),
    (([], math.nan), "max_norm.value", "max_norm // a number, 0 or more // nan"),
    (([], None), "max_norm.type", "max_norm // a number, 0 or more // NoneType"),
    (([], 1.0, 0), "norm_type.value", "norm_type // a number above 0 // 0.0"),
    (([], 1.0, "inf"), "norm_type.type", "norm_type // a number above 0 // str"),
)
