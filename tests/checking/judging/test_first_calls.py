# type: ignore
# Modules as people write them, hence without types.
"""A first call that fails."""

import pytest
from torch import nn

import clearhead as ch


class Layer(nn.Module):
    def __init__(self, scaled):
        super().__init__()
        self.scaled = scaled
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        return self.scaled(self.query(x) @ self.key(x).mT).softmax(-1) @ self.value(x)


def test_a_size_of_the_notebook_that_is_not_there():
    (finding,) = ch.check(Layer(lambda scores: scores / d_model), takes="x").findings
    assert finding.code == "state.global-dim"
    assert "'d_model'" in finding.sentence


def test_another_name_that_is_not_there_is_no_size():
    with pytest.raises(ch.ModelError, match="name 'Softmax' is not defined"):
        ch.check(Layer(lambda scores: Softmax(scores)), takes="x")
