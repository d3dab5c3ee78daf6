# type: ignore
# Modules as people write them, hence without types.
"""The report of code that cannot run."""

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
def test_a_name_that_is_not_there_is_a_finding_with_its_line(scaled, name):
    (finding,) = ch.check(Layer(scaled), takes="x").findings
    assert finding.code == "call.raises"
    assert f"name '{name}' is not defined" in finding.sentence
    assert finding.place is not None
