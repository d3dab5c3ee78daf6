"""The modules that run, thread by thread."""

import contextlib
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead._common.undoing import Undo
from clearhead.watching.hooks import running
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


class Catching(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        with contextlib.suppress(KeyboardInterrupt):
            self.part(x)
        return x


def test_a_part_that_was_interrupted_is_over() -> None:
    last = Noting()
    interrupted = nn.Sequential(Noting(KeyboardInterrupt()))
    model = nn.Sequential(Catching(interrupted), last)
    model(torch.zeros(1))
    assert found[1] == [model, last]
    assert running.stack() == []


class Beginning(nn.Module):
    """Begins to follow modules while it runs."""

    def __init__(self, undo: Undo) -> None:
        super().__init__()
        self.undo = undo
        self.part = Noting()
        # With a hook of its own PyTorch asks for those of all modules at the end.
        self.register_forward_hook(lambda *_: None)

    def forward(self, x: Tensor) -> Tensor:
        running.install(self.undo)
        return self.part(x)


def test_a_module_that_ran_before_is_not_looked_for() -> None:
    running._remove()
    undo: Undo = []
    model = Beginning(undo)
    model(torch.zeros(1))
    assert found == [[model.part]]
    assert running.stack() == []


class Attending(nn.Module):
    def forward(self, hidden_states: Any = None, *, context: Tensor) -> None:
        crosses.append(running.is_cross("attention"))


crosses: list[bool] = []
TEXT = torch.randn(2, 5, 8)
NESTED = torch.nested.nested_tensor([TEXT[0], TEXT[1, :3]], layout=torch.jagged)
TWO_TEXTS: list[tuple[Any, Any, bool]] = [
    (TEXT, TEXT, False),
    (TEXT, TEXT[:, :3], False),  # a part of it
    (TEXT, TEXT.clone(), False),
    (TEXT, TEXT + 1, True),
    (TEXT, TEXT[:, :3].clone(), True),
    (None, TEXT, True),
    (NESTED, NESTED, False),
    (NESTED, TEXT, True),
    (TEXT.to("meta"), TEXT.to("meta"), False),
    (TEXT.to("meta"), TEXT[:, :3].to("meta"), True),
]


def test_two_texts_are_told_from_one() -> None:
    module, undo = Attending(), []
    running.show_arguments([module], undo)
    for own, other, crossed in TWO_TEXTS:
        crosses.clear()
        module(own, context=other)
        assert crosses == [crossed], (own, other)
    undo.pop()()
