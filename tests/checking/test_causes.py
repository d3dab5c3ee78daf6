"""What an error of a learner's code is taken for: what mends it, or what leaves nothing else; and what stood there."""

# ruff: noqa: E501
import linecache
import re
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead._common.lessons import LESSONS
from clearhead.checking.subject.operands import failure_of

HEADS = {
    1: "def scores(query, key):\n",
    2: "def weights(scores):\n",
    3: "def context(weights, value):\n",
}


def written(number: int, body: str) -> Any:
    """What a file of this lesson defines: a function by its body, or whole."""
    text = HEADS.get(number, "") + body
    file = f"lesson_{number:02}_{abs(hash(text))}.py"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    module = ModuleType(file.removesuffix(".py"))
    module.__dict__.update(torch=torch, nn=nn)
    exec(compile(text, file, "exec"), module.__dict__)
    return getattr(module, next(name for name in LESSONS[number].names if hasattr(module, name)))


def refused(number: int, body: str) -> str:
    with pytest.raises(ch.ModelError) as caught:
        ch.check(written(number, body), lesson=number)
    assert caught.value.code == "check.call"
    return caught.value.message


# What a beginner types, and how the error begins: by the line and the change that mends it, or by what is certain.
TOLD = {
    "size": (3, "    out = torch.zeros(weights.shape)\n    for i in range(len(weights)):\n        for j in range(len(value)):\n            out[i] += weights[i, j] * value[j]\n    return out\n", "line 2: torch.zeros(weights.shape) has another shape than the result, which is that of torch.zeros(len(weights), value.shape[-1])"),
    "one number": (1, "    table = torch.zeros(len(query), len(key))\n    for i in range(len(query)):\n        for j in range(len(key)):\n            total = torch.zeros(len(query))\n            for n in range(len(query[i])):\n                total += query[i, n] * key[j, n]\n            table[i, j] = total\n    return table\n", "line 5: torch.zeros(len(query)) is a table, and one number is meant: 0.0"),
    "upright": (3, "    out = torch.zeros(len(weights), value.shape[1])\n    for i in range(len(weights)):\n        out[i] = (weights[i] * value).sum(dim=0)\n    return out\n", "line 4: weights[i] lies along a row, and has a number for each row: weights[i].unsqueeze(-1) stands it upright"),
    "product": (3, "    return (weights * value).sum(dim=-1)\n", "line 2: (weights * value).sum(dim=-1) goes number by number: weights @ value adds up over what both have"),
    "operator": (3, "    return weights * value\n", "line 2: weights * value stands where weights @ value is meant"),
    "turned": (1, "    return query @ key\n", "line 2: key is not turned round: key.mT"),
    "dot": (1, "    return torch.dot(query, key)\n", "line 2: torch.dot(query, key) stands where query @ key.mT is meant"),
    "whole numbers": (3, "    out = torch.tensor([[0] * value.shape[1]] * len(weights))\n    for i in range(len(weights)):\n        for j in range(len(value)):\n            out[i] += weights[i, j] * value[j]\n    return out\n", "line 2: torch.tensor([[0] * value.shape[1]] * len(weights)) holds whole numbers alone: torch.tensor([[0.0] * value.shape[1]] * len(weights)) holds others too"),
    "largest": (2, "    powers = torch.exp(scores - max(scores))\n    return powers / powers.sum(dim=-1, keepdim=True)\n", "line 2: max(scores) is not taken of each row by itself: scores.amax(dim=-1, keepdim=True) is"),
    "math": (2, "    import math\n    table = torch.zeros(scores.shape)\n    for i in range(len(scores)):\n        powers = math.exp(scores[i] - scores[i].max())\n        table[i] = powers / sum(powers)\n    return table\n", "line 5: in math.exp(scores[i] - scores[i].max()) stands math.exp, and torch.exp is meant"),
    "axis": (2, "    powers = torch.exp(scores - scores.amax(dim=2, keepdim=True))\n    return powers / powers.sum(dim=2, keepdim=True)\n", "line 2: in scores.amax(dim=2, keepdim=True) stands dim=2, and dim=-1 is meant, and so wherever the same stands"),
    "stack": (1, "    rows = []\n    for q in query:\n        rows.append([(q * k).sum() for k in key])\n    return torch.stack(rows)\n", "line 5: in torch.stack(rows) stands torch.stack, and torch.tensor is meant"),
    "counts": (1, "    table = torch.zeros(len(query), len(key))\n    for i in len(query):\n        for j in len(key):\n            table[i, j] = query[i] @ key[j]\n    return table\n", "line 3: len(query) does not give the places: range(len(query)) does, and so in each loop"),
    "from one": (1, "    table = torch.zeros(len(query), len(key))\n    for i in range(1, len(query) + 1):\n        for j in range(1, len(key) + 1):\n            table[i, j] = query[i] @ key[j]\n    return table\n", "line 3: range(1, len(query) + 1) does not give the places: range(len(query)) does, and so in each loop"),
    "another axis": (1, "    table = torch.zeros(len(query), len(key))\n    for i in range(len(query)):\n        for j in range(len(key)):\n            for n in range(len(key)):\n                table[i, j] += query[i, n] * key[j, n]\n    return table\n", "line 5: range(len(key)) goes over something else than is meant: range(query.shape[-1])"),
    "counter": (1, "    table = torch.zeros(len(query), len(key))\n    i = 0\n    j = 0\n    for q in query:\n        for k in key:\n            table[i, j] = q @ k\n            j += 1\n        i += 1\n    return table\n", "line 4: the line j = 0 stands before for q, and belongs to the beginning of each of its rounds"),
    "enumerate": (1, "    table = torch.zeros(len(query), len(key))\n    for q, i in enumerate(query):\n        for k, j in enumerate(key):\n            table[i, j] = torch.dot(q, k)\n    return table\n", "line 3: (q, i) has its parts in the wrong places: (i, q)"),
    "append": (1, "    table = []\n    for q in query:\n        row = []\n        for k in key:\n            row = row.append(torch.dot(q, k))\n        table.append(row)\n    return torch.tensor(table)\n", "line 6: append changes the list and gives nothing back (None), so that the list is lost: row.append(torch.dot(q, k)) alone"),
    "given away": (1, "    rows = []\n    for query in query:\n        row = []\n        for key in key:\n            row.append(torch.dot(query, key))\n        rows.append(row)\n    return torch.tensor(rows)\n", "line 3: for query in query gives the name query to one row, and the whole is wanted after it: another name, such as one_query"),
    "builtin": (1, "    table = torch.zeros(len(query), len(key))\n    for i in range(len(query)):\n        for j in range(len(key)):\n            sum = 0.0\n            sum = sum(a * b for a, b in zip(query[i], key[j]))\n            table[i, j] = sum\n    return table\n", "line 5: sum is the name of a number here, and sum(…) is wanted as well: another name for the number, such as sum_"),
    "undefined": (1, "    return query @ keys.T\n" , "line 2: there is no keys here: key is meant"),
    "row": (3, "    out = torch.zeros(len(weights), value.shape[1])\n    for i in range(len(weights)):\n        for j in range(len(value)):\n            out[i, j] += weights[i, j] * value[j]\n    return out\n", "line 5: out[i, j] is one number, and a row is meant: out[i]"),
    "missing": (1, "    table = query @ key.T\n", "line 2: return table is missing at the end: without it nothing is given back"),
    "brackets": (1, "    table = torch.zeros(len(query), len(key))\n    for i in range(len(query)):\n        for j in range(len(key)):\n            table[i, j] = query(i) @ key(j)\n    return table\n", "query is a table and no function: query[…] takes something out of it"),
    "places too": (2, "    return scores - torch.max(scores, dim=-1)\n", "torch.max along an axis gives the largest and their places: amax gives the largest alone"),
    "root": (5, "def attention(query, key, value):\n    d = query.shape[-1]\n    return torch.softmax(query @ key.mT / torch.sqrt(d), dim=-1) @ value\n", "line 3: torch.sqrt(d) stands where d ** 0.5 is meant"),
    "sizes": (5, "def attention(query, key, value):\n    d = query.shape\n    return torch.softmax(query @ key.mT / d**0.5, dim=-1) @ value\n", "line 2: query.shape is all the sizes: query.shape[-1] is meant"),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_an_error_begins_with_what_mends_it(name: str) -> None:
    number, body, told = TOLD[name]
    assert refused(number, body).partition("\n")[0] == f"{told}."


def test_what_nothing_mends_is_told_as_it_stood() -> None:
    """Two mistakes in one line: no change of one place is right, so none is said."""
    lines = refused(
        3, "    both = torch.ones(4)\n    return (weights * both).sum(dim=0) @ value.T\n"
    ).splitlines()
    assert lines[0].startswith("context raised RuntimeError: The size of tensor a (5) must match")
    assert lines[1].endswith(", line 3: return (weights * both).sum(dim=0) @ value.T")
    assert lines[2:4] == [
        "  weights is [3, 5], both is [4]",
        "  both is made in line 2: both = torch.ones(4)",
    ]
    assert lines[4] == "with"


def test_a_mapping_is_no_table() -> None:
    said = refused(
        1, "    return {(i, j): q @ k for i, q in enumerate(query) for j, k in enumerate(key)}\n"
    )
    assert said.startswith("scores raised TypeError: a table of numbers was expected; got dict")


def test_an_import_that_is_missing() -> None:
    thing = written(1, "    return torch.inner(query, key)\n")
    del thing.__globals__["torch"]
    with pytest.raises(ch.ModelError, match=r"^\[check.call\] import torch is missing at the top"):
        ch.check(thing, lesson=1)


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

    with pytest.raises(ch.ModelError) as caught:
        ch.check(attend, takes="qkv")
    assert re.search(r"\n  query is \[[\d, ]+\], key is \[[\d, ]+\]\n", caught.value.message)
