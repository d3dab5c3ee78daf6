"""Gradients clipped by their norm on one process; tests/sharding/test_tensor_parallel.py has ranks."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.layers import clip_grad_norm


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


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            (3, 1.0),
            ch.ArgumentTypeError,
            "[parameters.type] parameters must be those of a model, tensors such as "
            "model.parameters() gives; got int.",
        ),
        (
            (nn.Linear(2, 2), 1.0),
            ch.ArgumentTypeError,
            "[parameters.type] parameters must be those of a model, "
            "tensors such as model.parameters() gives; got Linear.",
        ),
        (
            ({"weight": 1}, 1.0),
            ch.ArgumentTypeError,
            "[parameters.type] parameters must be those of a model, "
            "tensors such as model.parameters() gives; got str.",
        ),
        (
            ([], -1.0),
            ch.ArgumentError,
            "[max_norm.value] max_norm must be a number, 0 or more; got -1.0.",
        ),
        (
            ([], math.nan),
            ch.ArgumentError,
            "[max_norm.value] max_norm must be a number, 0 or more; got nan.",
        ),
        (
            ([], None),
            ch.ArgumentTypeError,
            "[max_norm.type] max_norm must be a number, 0 or more; got NoneType.",
        ),
        (
            ([], 1.0, 0),
            ch.ArgumentError,
            "[norm_type.value] norm_type must be a number above 0; got 0.0.",
        ),
        (
            ([], 1.0, "inf"),
            ch.ArgumentTypeError,
            "[norm_type.type] norm_type must be a number above 0; got str.",
        ),
    ],
)
def test_refusals(arguments: tuple[Any, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        clip_grad_norm(*arguments)
    assert str(caught.value) == text
