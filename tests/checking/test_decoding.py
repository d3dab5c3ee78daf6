"""Decoders with a cache, each wrong in its own way: what is said of it."""

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch


class Decoder:
    """A plain class that holds its layers, and keeps keys and values."""

    window: int | None = None

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))
        self.reset()

    def reset(self) -> None:
        self.past: tuple[Tensor, Tensor] | None = None

    def attended(self, x: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = self.query(x) @ key.mT / 6**0.5
        offset = torch.arange(x.shape[1])[:, None] + key.shape[1] - x.shape[1]
        behind = offset - torch.arange(key.shape[1])
        hidden = behind < 0 if self.window is None else (behind < 0) | (behind > self.window)
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value

    def full(self, x: Tensor) -> Tensor:
        return self.attended(x, self.key(x), self.value(x))

    def step(self, x: Tensor) -> Tensor:
        key, value = self.key(x), self.value(x)
        if self.past is not None:
            key, value = torch.cat([self.past[0], key], 1), torch.cat([self.past[1], value], 1)
        self.past = key, value
        return self.attended(x, key, value)


class LastOnly(Decoder):
    def step(self, x: Tensor) -> Tensor:
        return super().step(x)[:, -1:]


class Full(Decoder):
    """Takes one text, and no reset makes room."""

    def reset(self) -> None:
        self.past = getattr(self, "past", None)

    def step(self, x: Tensor) -> Tensor:
        output = super().step(x)
        if self.past is not None and self.past[0].shape[1] > 11:
            raise RuntimeError("the cache is full")
        return output


class WrongInside(Decoder):
    """Other keys than those of full(x) from the first step on, not only behind the window."""

    window = 3

    def step(self, x: Tensor) -> Tensor:
        return super().step(1.1 * x)


class Uncopied(Decoder):
    def __deepcopy__(self, memo: object) -> "Uncopied":
        raise TypeError("there is one of me")


class NoWhole(Decoder):
    def full(self, x: Tensor) -> Tensor:
        raise ValueError("only steps")


def checked(kind: type[Decoder]) -> ch.types.Report:
    window = None if kind.window is None else (kind.window, 0)
    return ch.check(kind(), takes="decode", causal=True, window=window, sizes={"d_in": 6})


def test_what_is_right_is_right_with_and_without_copies() -> None:
    right = {"causal", "decoding with the cache", "laws: length to 257"}
    assert set(checked(Decoder).passed) == {*right, "reset"}
    # What is there once cannot be asked whether a reset is as good as another one.
    assert set(checked(Uncopied).passed) == right


@pytest.mark.parametrize(
    ("kind", "code", "measured"),
    [
        (LastOnly, "cache.wrong", "≠ full: another shape"),
        (
            Full,
            "cache.wrong",
            "after reset(), token by token: RuntimeError: the cache is full",
        ),
        (WrongInside, "cache.wrong", "token by token ≠ full: by up to"),
    ],
)
def test_mistakes_of_decoders_are_named(kind: type[Decoder], code: str, measured: str) -> None:
    (finding,) = checked(kind).findings
    assert finding.code == code
    assert measured in finding.measured


def test_a_whole_that_fails_is_refused() -> None:
    with pytest.raises(ch.errors.ModelError) as caught:
        checked(NoWhole)
    words = "NoWhole.full was called with x [2, 11, 6] and raised ValueError: only steps"
    assert caught.value.code == "check.call"
    assert caught.value.message.startswith(words)
