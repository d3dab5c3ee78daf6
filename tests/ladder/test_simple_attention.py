import torch

import clearhead as ch
from clearhead.ladder import SimpleAttention, context_by_loops, naive_softmax, scores_by_loops


def test_equals_the_three_steps_by_loops() -> None:
    x = torch.randn(7, 3, dtype=torch.float64)
    steps = SimpleAttention().stages(x)
    scores = scores_by_loops(x, x)
    weights = naive_softmax(scores)
    torch.testing.assert_close(steps.scores, scores)
    torch.testing.assert_close(steps.weights, weights)
    torch.testing.assert_close(steps.context, context_by_loops(weights, x))
    torch.testing.assert_close(SimpleAttention()(x), steps.context)


def test_equals_attend_without_a_scale() -> None:
    x = torch.randn(7, 3, dtype=torch.float64)
    torch.testing.assert_close(SimpleAttention()(x), ch.attend(x, x, x, scale=1.0))
