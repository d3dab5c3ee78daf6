import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.errors import ArgumentError, ArgumentTypeError
from clearhead.ladder import DropoutAttention, MaskedAttention
from tests.ladder.refusal import refused


def test_equals_the_rung_before_without_dropout_and_after_eval() -> None:
    before = MaskedAttention(5, head_dim=3, mask=ch.causal())
    x = torch.randn(7, 5)
    for dropout in (None, 0.5):
        rung = DropoutAttention(5, head_dim=3, mask=ch.causal(), dropout=dropout)
        rung.load_state_dict(before.state_dict())
        torch.testing.assert_close((rung.eval() if dropout else rung)(x), before(x))


def test_drops_as_pytorch_does() -> None:
    rung = DropoutAttention(5, head_dim=3, dropout=0.3)
    x = torch.randn(7, 5)
    torch.manual_seed(5)
    steps = rung.stages(x)
    torch.manual_seed(5)
    assert torch.equal(steps.dropped_weights, nn.Dropout(0.3)(steps.weights))
    torch.testing.assert_close(steps.context, steps.dropped_weights @ rung.project(x)[2])


def test_rows_add_up_to_one_on_average() -> None:
    rung = DropoutAttention(1, head_dim=1, dropout=0.25)
    with torch.no_grad():
        sums = torch.stack(
            [rung.stages(torch.zeros(101, 1)).dropped_weights.sum(-1) for _ in range(31)]
        )
    # 3131 rows, each with a standard deviation of √(dropout / (1 − dropout) / 101) = 0.0574.
    assert abs(sums.mean().item() - 1) < 5 * 0.0574 / 3131**0.5


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 6])
def test_refused_probability(dropout: float) -> None:
    message = f"dropout must be a probability in [0, 1), or None for no dropout; got {dropout}"
    with refused(ArgumentError, "dropout.value", message):
        DropoutAttention(5, head_dim=3, dropout=dropout)


@pytest.mark.parametrize("dropout", [True, "0.1"])
def test_refused_type(dropout: object) -> None:
    with refused(ArgumentTypeError, "dropout.type", f"got {type(dropout).__name__}"):
        DropoutAttention(5, head_dim=3, dropout=dropout)  # pyright: ignore[reportArgumentType]
