"""What stood in an expression that raised."""

import linecache
import re
from typing import Any

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.checking.subject.operands import failure_of


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("x[i] * y", ["x[i] is [3]", "y is [2, 2]"]),
        ("x + y.sum(0)", ["x is [4, 3]", "y.sum(0) is [2]"]),
        ("x[i, 7]", ["x is [4, 3]", "i is 1"]),
        ("torch.stack(rows + [None])", ["rows + [None] is a list of 2"]),
        ("y.view(3)", ["y is [2, 2]"]),
        ("x @ mask", ["x is [4, 3]", "mask is [3] of True and False"]),
        ("x - absent", ["x is [4, 3]", "absent is None"]),
        ("layer(y)", ["layer is Linear(in_features=3, out_features=1, bias=True)", "y is [2, 2]"]),
    ],
)
def test_the_parts_of_what_raised(line: str, parts: list[str]) -> None:
    names: dict[str, Any] = {
        "torch": torch, "x": torch.ones(4, 3), "y": torch.ones(2, 2), "i": 1, "rows": [torch.ones(2)],
        "mask": torch.ones(3).bool(), "absent": None, "layer": nn.Linear(3, 1),
    }  # fmt: skip
    file = f"parts_{abs(hash(line))}.py"
    linecache.cache[file] = len(line), None, [f"{line}\n"], file
    with pytest.raises((RuntimeError, IndexError, TypeError)) as caught:
        exec(compile(line, file, "exec"), names)
    failed = failure_of(caught.value)
    assert failed is not None
    assert failed.told.strip() == ", ".join(parts)


def test_a_part_that_does_something_is_not_worked_out_again() -> None:
    done: list[int] = []

    def noted(x: torch.Tensor) -> torch.Tensor:
        done.append(1)
        return x

    def fails() -> torch.Tensor:
        x, y = torch.ones(2), torch.ones(3)
        return noted(x).add_(1) + y

    with pytest.raises(RuntimeError) as caught:
        fails()
    failed = failure_of(caught.value)
    assert failed is not None
    assert [each.text for each in failed.operands] == ["y"]
    assert done == [1]


def test_what_is_told_outside_of_lessons_has_its_parts_too() -> None:
    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return torch.softmax(query @ key, dim=-1) @ value

    with pytest.raises(ch.errors.ModelError) as caught:
        ch.check(attend, takes="qkv")
    assert re.search(r"\n  query is \[[\d, ]+\], key is \[[\d, ]+\]\n", caught.value.message)
