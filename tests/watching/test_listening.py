"""Reports of the hooks go to the watches whose model is running."""

import os
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clearhead as ch
from clearhead.watching.hooks import installing


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


X = torch.randn(1, 2, 5, 4)


def test_a_model_that_is_not_watched_is_not_heard() -> None:
    watched, other = Model(), Model()
    with ch.watch(watched) as seen:
        watched(X)
        other(X)
        F.scaled_dot_product_attention(X, X, X)
    assert len(seen.calls("")) == 1


def test_gradients_are_as_before_in_the_block() -> None:
    model = Model()
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled), ch.watch(model):
            model(X)
            assert torch.is_grad_enabled() is enabled


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_does_not_wait_for_a_lock_of_its_parent() -> None:
    """Another thread held it at the moment of the fork."""
    model, threads = Model(), torch.get_num_threads()
    torch.set_num_threads(1)  # those of OpenMP do not come along
    with ch.watch(model) as seen:
        model(X)
        [watching] = [each for each in installing.users() if each.seen is seen]
        taken, done = threading.Event(), threading.Event()

        def hold() -> None:
            with watching._lock:
                taken.set()
                done.wait(20)

        thread = threading.Thread(target=hold)
        thread.start()
        taken.wait(20)
        child = os.fork()
        if child == 0:
            model(X)
            os._exit(0 if len(seen.calls("")) == 2 else 1)
        done.set()
        thread.join()
        torch.set_num_threads(threads)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
