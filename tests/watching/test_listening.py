"""Reports of the hooks go to the watches whose model is running."""

import torch
import torch.nn.functional as F

import clearhead as ch
from tests.watching.models import Itself

X = torch.randn(1, 2, 5, 4)


def test_a_model_that_is_not_watched_is_not_heard() -> None:
    watched, other = Itself(), Itself()
    with ch.watch(watched) as seen:
        watched(X)
        other(X)
        F.scaled_dot_product_attention(X, X, X)
    assert len(seen.calls("")) == 1


def test_gradients_are_as_before_in_the_block() -> None:
    model = Itself()
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled), ch.watch(model):
            model(X)
            assert torch.is_grad_enabled() is enabled
