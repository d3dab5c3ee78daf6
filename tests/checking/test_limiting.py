"""A time limit ends a check wherever it runs Python, and leaves nothing behind."""

import time
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.checking.subject.limiting import within


class Slow(nn.Module):
    """It goes on in its own loop, and catches what it can."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        while True:
            try:
                x = self.layer(x)
            except Exception:
                continue


@pytest.mark.parametrize("given", [{"takes": "x"}, {"inputs": torch.ones(2, 3, 4)}])
def test_a_check_ends(given: Any) -> None:
    module, state = Slow(), torch.get_rng_state()
    with pytest.raises(ch.errors.ModelError) as caught:
        ch.check(module, timeout=0.3, **given)
    assert caught.value.code == "check.timeout"
    assert module.training
    assert torch.equal(torch.get_rng_state(), state)


def test_nothing_comes_later() -> None:
    for _ in range(200):
        with suppress(ch.errors.ModelError), within(1e-3):
            pass
    time.sleep(0.01)
    assert ch.check(ch.attend, takes="qkv", timeout=600).ok


def test_no_limit() -> None:
    with within(None):
        pass


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), "3"])
def test_what_is_no_time_is_refused(seconds: Any) -> None:
    with pytest.raises(ch.errors.ArgumentError) as caught:
        ch.check(ch.attend, takes="qkv", timeout=seconds)
    assert caught.value.code == "timeout.value"
