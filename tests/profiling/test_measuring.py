"""Bytes are exact, exponents are those of the amounts, and kernels have their names."""

import itertools
import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.profiling import measuring
from clearhead.profiling.measuring import exponent, in_words, kernels_in_words, weigh

CPU = torch.device("cpu")


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT).softmax(-1) @ value


def test_what_is_held_at_once_counts() -> None:
    def two_at_once() -> Tensor:
        return torch.zeros(1000) + 1

    def one_after_another() -> Tensor:
        torch.zeros(1000)
        return torch.zeros(500)

    assert weigh(two_at_once, CPU).memory == pytest.approx(8000, abs=200)
    assert weigh(one_after_another, CPU).memory == pytest.approx(4000, abs=200)


def test_inputs_do_not_count() -> None:
    x = torch.zeros(1000)
    assert weigh(lambda: x.sum(), CPU).memory < 200


def test_the_profiler_is_quiet_and_leaves_the_environment_alone(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    weigh(lambda: torch.zeros(3), CPU)
    assert "KINETO_LOG_LEVEL" not in os.environ
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("KINETO_LOG_LEVEL", "3")
    weigh(lambda: torch.zeros(3), CPU)
    assert os.environ["KINETO_LOG_LEVEL"] == "3"


def test_a_fused_kernel_is_named() -> None:
    x = torch.randn(1, 2, 64, 16)
    ran = weigh(lambda: F.scaled_dot_product_attention(x, x, x), CPU).operations
    assert kernels_in_words(ran) == "_scaled_dot_product_flash_attention_for_cpu"


def test_the_plain_way_of_the_function_is_named() -> None:
    x = torch.randn(1, 2, 64, 16)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        ran = weigh(lambda: F.scaled_dot_product_attention(x, x, x), CPU).operations
    assert kernels_in_words(ran) == (
        "_scaled_dot_product_attention_math: the plain way of PyTorch's function, none of its "
        "fused kernels"
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: plain(x, x, x), "bmm + softmax"),
        (lambda x: plain(x[0, 0], x[0, 0], x[0, 0]), "mm + softmax"),
        (lambda x: (x @ x.mT).exp() @ x, "bmm + exp"),
        (lambda x: x + 1, "neither products nor softmax"),
    ],
)
def test_what_was_there_instead_is_named(call: Callable[[Tensor], Tensor], words: str) -> None:
    x = torch.randn(1, 2, 64, 16)
    ran = weigh(lambda: call(x), CPU).operations
    assert kernels_in_words(ran) == f"{words}: none of PyTorch's fused kernels"


@pytest.mark.parametrize(
    ("amounts", "power"),
    [
        ([7, 7, 7, 7], 0.0),
        ([1, 2, 4, 8], 1.0),
        ([1, 4, 16, 64], 2.0),
        ([1000, 1, 2, 4], 1.0),  # the upper half counts
    ],
)
def test_an_exponent(amounts: list[float], power: float) -> None:
    assert exponent([128, 256, 512, 1024], amounts) == power
    assert exponent([128, 256], amounts[2:]) == power


@pytest.mark.parametrize(
    ("power", "words"),
    [
        (0.0, "constant"),
        (-0.2, "constant"),
        (0.77, "tokens^0.77"),
        (0.9, "tokens"),
        (1.2, "tokens"),
        (1.21, "tokens^1.21"),
        (1.8, "tokens²"),
        (2.78, "tokens^2.78"),
        (2.9, "tokens³"),
        (4.0, "tokens^4.00"),
        (-1.0, "tokens^-1.00"),
    ],
)
def test_an_exponent_in_words(power: float, words: str) -> None:
    assert in_words(power) == words


def test_calls_are_timed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    # By a clock that makes every call longer than a sample has to be, each once a turn is enough.
    ticks = itertools.count(step=measuring.SAMPLE)
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: next(ticks))
    order: list[str] = []
    times = measuring.time_in_turn(
        [lambda: order.append("a"), lambda: order.append("b")], CPU, rounds=3
    )
    assert order == ["a", "b"] * 4
    assert times == pytest.approx([measuring.SAMPLE] * 2)
