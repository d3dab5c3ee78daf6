"""What is rounded to 16 bits is found at its line: in the softmax, or in the tables of a rotation."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch


class Rotated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.made, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        places, rates = torch.arange(x.shape[1]), 10000.0 ** -(torch.arange(2) / 2)
        angles = places[:, None] * rates
        cos, sin = self.table(angles.cos()), self.table(angles.sin())
        query, key, value = (
            each.unflatten(-1, (2, 4)).transpose(1, 2) for each in self.made(x).chunk(3, -1)
        )
        query, key = (turned(each, cos, sin) for each in (query, key))
        weights = self.weights(query @ key.mT / 2).to(value.dtype)
        return self.out((weights @ value).transpose(1, 2).flatten(2))

    def table(self, angles: Tensor) -> Tensor:
        return angles

    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, two = x.chunk(2, -1)
    return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)


class Tables(Rotated):
    def table(self, angles: Tensor) -> Tensor:
        return angles.bfloat16()


class Softmax(Rotated):
    def weights(self, scores: Tensor) -> Tensor:
        return scores.bfloat16().softmax(-1)


@pytest.mark.parametrize(("made", "method"), [(Tables, Tables.table), (Softmax, Softmax.weights)])
def test_the_line_that_rounds_is_named(
    made: type[Rotated], method: Callable[[Rotated, Tensor], Tensor]
) -> None:
    found = ch.check(made(), takes="x", causal=False).findings
    assert "law.scores" in [each.code for each in found]
    (law,) = (each for each in found if each.code == "law.scores")
    assert law.place == (__file__, method.__code__.co_firstlineno + 1)


def test_nothing_is_rounded() -> None:
    assert ch.check(Rotated(), takes="x", causal=False).outcome == "right"
