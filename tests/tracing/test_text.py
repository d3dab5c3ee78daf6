"""Tables and arithmetic as text."""

import torch

from clearhead.tracing.text import arithmetic, table


def test_a_table() -> None:
    part = torch.tensor([[0.5, -torch.inf], [-12.25, torch.nan]])
    assert table(part, ["0 a", "1 猫"], "head 2") == [
        "head 2",
        "0 a     0.5000        −∞",
        "1 猫  −12.2500       nan",
    ]


def test_a_table_too_large() -> None:
    part = torch.arange(40.0).view(2, 20)
    (line,) = table(part, ["0", "1"], "")
    assert line == "2 × 20 numbers, too many to print: from 0.0000 to 39.0000, mean 19.5000"
    (line,) = table(torch.full((1, 20), -torch.inf), ["0"], "")
    assert line == "1 × 20 numbers, too many to print: none finite"


def test_an_empty_table() -> None:
    assert table(torch.zeros(0, 3), [], "") == []


def test_many_factors_are_cut() -> None:
    parts = {
        "query": torch.ones(1, 20),
        "key": torch.ones(1, 20),
        "value": torch.ones(1, 20),
        "scores": torch.tensor([[20.0]]),
        "masked_scores": torch.tensor([[20.0]]),
        "weights": torch.tensor([[1.0]]),
        "dropped_weights": torch.tensor([[1.0]]),
        "context": torch.ones(1, 20),
    }
    lines = list(arithmetic(parts, 0, "0", ["0"], {}, True, None))
    assert lines[0] == "query 0: [1, 1, 1, 1, 1, 1, 1, 1, …]"
    assert lines[3] == "  0  " + " + ".join(["1·1"] * 7) + " + … 13 more = 20.0000"
    assert lines[-1] == "  … and 12 more numbers"
