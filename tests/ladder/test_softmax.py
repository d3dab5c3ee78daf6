import torch

from clearhead import stages
from clearhead.ladder import naive_softmax, weights_by_sum


def test_naive_softmax_overflows_above_88() -> None:
    low, high = torch.tensor([[87.0, 88.0]]), torch.tensor([[88.0, 89.0]])
    assert naive_softmax(low).isfinite().all()
    assert naive_softmax(high).isnan().any()
    # Scores that differ by as much have the same shares.
    torch.testing.assert_close(stages.weights(high), stages.weights(low))


def test_a_sum_gives_negative_shares_or_none() -> None:
    assert (weights_by_sum(torch.tensor([-1.0, 3.0])) == torch.tensor([-0.5, 1.5])).all()
    assert not weights_by_sum(torch.tensor([-1.0, 1.0])).isfinite().any()
