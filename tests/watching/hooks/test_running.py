"""The modules that run, thread by thread."""

import gc
import threading
import weakref

import pytest
import torch
from torch import Tensor, nn

from clearhead.watching.hooks import running
from clearhead.watching.hooks.patching import Undo
from tests.memory import new_garbage


class Noting(nn.Module):
    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        found.append(running.stack())
        if self.error is not None:
            raise self.error
        return x


found: list[list[nn.Module]] = []


@pytest.fixture(autouse=True)
def installed() -> object:
    undo: Undo = []
    found.clear()
    running.install(undo)
    yield
    undo.pop()()


def test_the_innermost_is_last() -> None:
    inner = Noting()
    outer = nn.Sequential(inner)
    outer(torch.zeros(1))
    assert found == [[outer, inner]]
    assert running.stack() == []


def test_an_error_leaves_none() -> None:
    model = nn.Sequential(Noting(ValueError("own")))
    with pytest.raises(ValueError, match="own"):
        model(torch.zeros(1))
    assert running.stack() == []


def test_an_interrupt_keeps_none_alive() -> None:
    """PyTorch runs the hooks that always run for an Exception only."""
    with new_garbage():
        model = Noting(KeyboardInterrupt())
        reference = weakref.ref(model)
        with pytest.raises(KeyboardInterrupt):
            model(torch.zeros(1))
        found.clear()
        del model
        gc.collect()  # the error knows its frames
    assert reference() is None
    assert running.stack() == []


def test_threads_have_one_each() -> None:
    inner, other = Noting(), Noting()
    thread = threading.Thread(target=other, args=(torch.zeros(1),))
    nn.Sequential(inner, _Starting(thread))(torch.zeros(1))
    assert found[1] == [other]


class _Starting(nn.Module):
    def __init__(self, thread: threading.Thread) -> None:
        super().__init__()
        self.thread = thread

    def forward(self, x: Tensor) -> Tensor:
        self.thread.start()
        self.thread.join()
        return x
