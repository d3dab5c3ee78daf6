import torch

from clearhead import stages
from clearhead.ladder import naive_softmax, weights_by_sum


def test_every_row_adds_up_to_one() -> None:
    scores = torch.rand(3, 5, 7, dtype=torch.float64)
    for share in (weights_by_sum, naive_softmax):
        torch.testing.assert_close(share(scores).sum(-1), torch.ones(3, 5, dtype=torch.float64))


def test_naive_softmax_equals_the_stage_while_it_can() -> None:
    scores = 80 * torch.rand(3, 5) - 40
    torch.testing.assert_close(naive_softmax(scores), stages.weights(scores))


def test_naive_softmax_overflows_above_88() -> None:
    low, high = torch.tensor([[87.0, 88.0]]), torch.tensor([[88.0, 89.0]])
    assert naive_softmax(low).isfinite().all()
    assert naive_softmax(high).isnan().any()
    # Scores that differ by as much have the same shares.
    torch.testing.assert_close(stages.weights(high), stages.weights(low))


def test_a_sum_gives_negative_shares_or_none() -> None:
    assert (weights_by_sum(torch.tensor([-1.0, 3.0])) == torch.tensor([-0.5, 1.5])).all()
    assert not weights_by_sum(torch.tensor([-1.0, 1.0])).isfinite().any()
