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


@pytest.mark.parametrize(
    ("scaled", "name"),
    [(lambda scores: scores / d_model, "d_model"), (lambda scores: Softmax(scores), "Softmax")],
)
def test_a_name_that_is_not_there_is_the_exception_of_the_code(scaled, name):
    with pytest.raises(ch.ModelError, match=f"name '{name}' is not defined"):
        ch.check(Layer(scaled), takes="x")
