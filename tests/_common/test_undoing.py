"""What was changed is put back, whatever cuts it short."""

from typing import Any

import pytest
import torch
from torch import nn

from clearhead._common.undoing import Undo, undo_all, undoing, unhook


def test_every_step_runs_and_the_first_error_is_raised() -> None:
    ran: list[int] = []

    def step(number: int, error: bool = False) -> Any:
        def run() -> None:
            ran.append(number)
            if error:
                raise ValueError(number)

        return run

    undo: Undo = [step(0), step(1, error=True), step(2, error=True), step(3)]
    with pytest.raises(ValueError, match="2"):
        undo_all(undo)
    assert (ran, undo) == ([3, 2, 1, 0], [])


def test_an_interrupt_among_the_steps_is_raised_when_all_have_run() -> None:
    ran: list[str] = []

    def interrupted() -> None:
        ran.append("interrupted")
        if ran.count("interrupted") == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), undoing() as undo:
        undo += [lambda: ran.append("first"), interrupted]
    assert ran == ["interrupted", "interrupted", "first"]


def test_these_hooks_alone_are_taken_off() -> None:
    module, called = nn.Linear(2, 2), []

    def before(*_: Any) -> None:
        called.append("before")

    def after(*_: Any) -> None:
        called.append("after")

    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(after, with_kwargs=True)
    module.register_forward_hook(lambda *_: called.append("another"))
    for _ in range(2):
        unhook(module, before, after)
        module(torch.zeros(2))
    assert called == ["another"] * 2
    assert not module._forward_pre_hooks_with_kwargs
    assert not module._forward_hooks_with_kwargs
