import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead import stages
from clearhead.errors import MaskError
from clearhead.ladder import (
    CrossAttention,
    MaskedAttention,
    RenormalisedAttention,
    hide,
    renormalise,
)
from tests.ladder.refusal import refused

MASKS = {
    "causal": ch.causal(),
    "window": ch.sliding_window(left=2, right=1),
    "nothing before the third": ch.causal(offset=-2),
    "nothing at all": ~ch.full(),
    "a tensor": torch.eye(7, dtype=torch.bool),
    "a batch of one": ch.padding([3]),
}


def pair(mask: ch.Mask | Tensor | None) -> tuple[RenormalisedAttention, MaskedAttention]:
    """The two rungs with the same weights."""
    first = RenormalisedAttention(5, head_dim=3, value_head_dim=2, mask=mask).double()
    second = MaskedAttention(5, head_dim=3, value_head_dim=2, mask=mask).double()
    second.load_state_dict(first.state_dict())
    return first, second


def test_hidden_weights_leave_rows_that_lack_something() -> None:
    weights = stages.weights(torch.randn(7, 7))
    hidden = hide(weights, ch.causal().to_dense(7, 7))
    assert torch.equal(hidden, weights.tril())
    assert (hidden.sum(-1)[:-1] < 1).all()
    torch.testing.assert_close(renormalise(hidden).sum(-1), torch.ones(7))


def test_a_row_without_weights_stays_empty() -> None:
    assert torch.equal(renormalise(torch.zeros(2, 3)), torch.zeros(2, 3))


def test_rows_of_a_batch_are_divided_alone() -> None:
    """One without weights, and a key that no query of its sample sees."""
    weights = torch.tensor([[[0.2, 0.0, 0.6], [0.0, 0.0, 0.0]], [[0.1, 0.3, 0.1], [0.5, 0.2, 0.3]]])
    expected = [[[0.25, 0.0, 0.75], [0.0, 0.0, 0.0]], [[0.2, 0.6, 0.2], [0.5, 0.2, 0.3]]]
    torch.testing.assert_close(renormalise(weights), torch.tensor(expected))


@pytest.mark.parametrize("name", MASKS)
def test_equals_minus_infinity_before_the_softmax(name: str) -> None:
    first, second = pair(MASKS[name])
    x = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(first.stages(x).weights, second.stages(x).weights)
    torch.testing.assert_close(first(x), second(x))
    torch.testing.assert_close(
        torch.autograd.grad(first(x).sin().sum(), (x, *first.parameters())),
        torch.autograd.grad(second(x).sin().sum(), (x, *second.parameters())),
    )


def test_without_a_mask_it_is_the_rung_before() -> None:
    rung = RenormalisedAttention(5, head_dim=3).double()
    before = CrossAttention(5, head_dim=3).double()
    before.load_state_dict(rung.state_dict())
    x = torch.randn(7, 5, dtype=torch.float64)
    torch.testing.assert_close(rung(x), before(x))


def test_a_hidden_nan_spreads_here_and_not_in_the_next_rung() -> None:
    first, second = pair(ch.causal())
    x = torch.randn(7, 5, dtype=torch.float64)
    x[-1] = torch.nan
    assert first(x).isnan().all()
    assert not second(x)[:-1].isnan().any()


def test_a_large_hidden_score_leaves_nothing_to_divide() -> None:
    """exp(-800) is 0 in float64 too: what is visible has no weight left."""
    one = torch.ones(1, 1, dtype=torch.float64)
    x = torch.tensor([[1.0], [2.0], [800.0]], dtype=torch.float64)
    for rung, first_weight in zip(pair_of_width_one(one), (0.0, 1.0), strict=True):
        assert rung.stages(x).weights[0].tolist() == [first_weight, 0.0, 0.0]


def pair_of_width_one(one: Tensor) -> tuple[RenormalisedAttention, MaskedAttention]:
    return (
        RenormalisedAttention(1, head_dim=1, mask=ch.causal()).with_weights(one, one, one),
        MaskedAttention(1, head_dim=1, mask=ch.causal()).with_weights(one, one, one),
    )


def test_refusals() -> None:
    with refused(MaskError, "mask.dtype", "mask must be bool, True = may attend"):
        RenormalisedAttention(5, head_dim=3, mask=torch.ones(7, 7))
    with refused(
        MaskError, "mask.shape", "the mask has 3 × 3 (queries × keys); expected query_len=7"
    ):
        RenormalisedAttention(5, head_dim=3, mask=torch.ones(3, 3).bool())(torch.zeros(7, 5))
    with refused(MaskError, "mask.batch", "describes a batch of 2; the query has a batch of 1"):
        RenormalisedAttention(5, head_dim=3, mask=ch.padding([3, 4]))(torch.zeros(7, 5))
