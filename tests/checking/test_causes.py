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
    "size": (3, "    out = torch.zeros(weights.shape)\n    for i in range(len(weights)):\n        for j in range(len(value)):\n            out[i] += weights[i, j] * value[j]\n    return out\n", "line 2: torch.zeros(weights.shape) does not give the shape of the result: torch.zeros(len(weights), value.shape[-1]) does"),
    "one number": (1, "    table = torch.zeros(len(query), len(key))\n    for i in range(len(query)):\n        for j in range(len(key)):\n            total = torch.zeros(len(query))\n            for n in range(len(query[i])):\n                total += query[i, n] * key[j, n]\n            table[i, j] = total\n    return table\n", "line 5: torch.zeros(len(query)) is a table, and one number is meant: 0.0"),
    "upright": (3, "    out = torch.zeros(len(weights), value.shape[1])\n    for i in range(len(weights)):\n        out[i] = (weights[i] * value).sum(dim=0)\n    return out\n", "line 4: weights[i] lies along a row, and has a number for each row: weights[i].unsqueeze(-1) stands it upright"),
    "product": (3, "    return (weights * value).sum(dim=-1)\n", "line 2: (weights * value).sum(dim=-1) goes number by number: weights @ value adds up over what both have"),
    "operator": (3, "    return weights * value\n", "line 2: weights * value stands where weights @ value is meant"),
    "turned": (1, "    return query @ key\n", "line 2: key is not turned round: key.T"),
    "dot": (1, "    return torch.dot(query, key)\n", "line 2: torch.dot(query, key) stands where query @ key.T is meant"),
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


# What runs and is wrong: the line, and what the report says.
WRONG = {
    'one row': (1, '    row = [0.0] * len(key)\n    table = [row] * len(query)\n    for i in range(len(query)):\n        for j in range(len(key)):\n            total = 0.0\n            for a, b in zip(query[i], key[j]):\n                total += a * b\n            table[i][j] = total\n    return torch.tensor(table)\n', 3, 'in [row] * len(query) every row is one and the same, and what is put into one is in all: [list(row) for _ in range(len(query))] makes each anew'),
    'one total': (3, '    total = torch.zeros(value.shape[1])\n    out = [total for _ in range(len(weights))]\n    for i in range(len(weights)):\n        for j in range(len(value)):\n            out[i] += weights[i, j] * value[j]\n    return torch.stack(out)\n', 3, 'in [total for _ in range(len(weights))] every row is one and the same, and what is put into one is in all: [total.clone() for _ in range(len(weights))] makes each anew'),
    'zip': (1, '    table = torch.zeros(len(query), len(key))\n    for i, j in zip(range(len(query)), range(len(key))):\n        table[i, j] = torch.dot(query[i], key[j])\n    return table\n', 3, 'zip(range(len(query)), range(len(key))) goes along both at once, and each meets each: a loop in the loop, for i in range(len(query)) and for j in range(len(key))'),
    'cell': (1, '    table = torch.zeros(len(query), len(key))\n    for i in range(len(query)):\n        for j in range(len(key)):\n            table[i] = torch.dot(query[i], key[j])\n    return table\n', 5, 'table[i] is a whole row, and one number is meant: table[i, j]'),
    'part': (3, '    out = torch.zeros(len(weights), value.shape[1])\n    for i, row in enumerate(weights):\n        for w, v in zip(row, value):\n            out += w * v\n    return out\n', 5, 'out is all that is given back, and a part of it is meant: out[i]'),
    'late': (2, '    e = torch.exp(scores)\n    e = e - e.amax(dim=-1, keepdim=True)\n    return e / e.sum(dim=-1, keepdim=True)\n', 3, 'the line e = e - e.amax(dim=-1, keepdim=True) comes too late: what it does belongs before the step of e = torch.exp(scores)'),
    'thrown away': (2, '    powers = torch.exp(scores - scores.amax(dim=-1, keepdim=True))\n    total = powers.sum(dim=-1, keepdim=True)\n    powers / total\n    return powers\n', 4, 'what powers / total gives is thrown away: powers = powers / total keeps it'),
    'its own line': (2, '    shifted = scores.amax(dim=-1, keepdim=True) - scores\n    e = torch.exp(shifted)\n    return e / e.sum(dim=-1, keepdim=True)\n', 2, 'exp is taken of the scores with their signs turned: the smallest gets the most'),
    'not reset': (3, '    out = torch.zeros(len(weights), value.shape[1])\n    total = torch.zeros(value.shape[1])\n    for i in range(len(weights)):\n        for j in range(len(value)):\n            total = total + weights[i, j] * value[j]\n        out[i] = total\n    return out\n', 3, 'a total is not set back: down a column, each context still holds those above it'),
    'the upper row': (2, '    largest = max(scores[0])\n    powers = torch.exp(scores - largest)\n    return powers / powers.sum(dim=-1, keepdim=True)\n', 2, 'a row that lies far below what is taken from it becomes 0 divided by 0, which is no number (NaN): each row has its own largest'),
    'a list': (2, '    rows = []\n    for row in scores:\n        powers = torch.exp(row - row.max())\n        rows.append(powers / powers.sum())\n    return rows\n', 6, 'rows is a list: torch.stack(rows) makes a table of it'),
    'matrices turned': (4, 'class SelfAttention(nn.Module):\n    def __init__(self, d_in, d_out):\n        super().__init__()\n        self.W_query = nn.Parameter(0.3 * torch.randn(d_out, d_in))\n        self.W_key = nn.Parameter(0.3 * torch.randn(d_out, d_in))\n        self.W_value = nn.Parameter(0.3 * torch.randn(d_out, d_in))\n\n    def forward(self, x):\n        query = x @ self.W_query\n        key = x @ self.W_key\n        value = x @ self.W_value\n        weights = torch.softmax(query @ key.T, dim=-1)\n        return weights @ value\n', 4, 'made with d_in=5, d_out=3, it takes rows of d_out numbers and gives rows of d_in: the two have changed places'),
    'layers turned': (6, 'class SelfAttention(nn.Module):\n    def __init__(self, d_in, d_out):\n        super().__init__()\n        self.W_query = nn.Linear(d_out, d_in, bias=False)\n        self.W_key = nn.Linear(d_out, d_in, bias=False)\n        self.W_value = nn.Linear(d_out, d_in, bias=False)\n\n    def forward(self, x):\n        query, key, value = self.W_query(x), self.W_key(x), self.W_value(x)\n        scores = query @ key.T / query.shape[-1] ** 0.5\n        return torch.softmax(scores, dim=-1) @ value\n', 4, 'made with d_in=5, d_out=3, it takes rows of d_out numbers and gives rows of d_in: the two have changed places'),
    'another size': (7, 'class CausalAttention(nn.Module):\n    def __init__(self, d_in, d_out):\n        super().__init__()\n        self.W_query = nn.Linear(d_in, d_out, bias=False)\n        self.W_key = nn.Linear(d_in, d_out, bias=False)\n        self.W_value = nn.Linear(d_in, d_out, bias=False)\n\n    def forward(self, x):\n        query, key, value = self.W_query(x), self.W_key(x), self.W_value(x)\n        scores = query @ key.T / query.shape[-1] ** 0.5\n        hidden = torch.triu(torch.ones(x.shape), diagonal=1).bool()\n        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)\n        return weights @ value\n', 11, 'torch.ones(x.shape) does not give the shape of the result: torch.ones(len(x), len(x)) does'),
    'queries hidden': (8, 'class SelfAttention(nn.Module):\n    def __init__(self, d_in, d_out):\n        super().__init__()\n        self.W_query = nn.Linear(d_in, d_out, bias=False)\n        self.W_key = nn.Linear(d_in, d_out, bias=False)\n        self.W_value = nn.Linear(d_in, d_out, bias=False)\n\n    def forward(self, x, mask):\n        query, key, value = self.W_query(x), self.W_key(x), self.W_value(x)\n        scores = query @ key.mT / query.shape[-1] ** 0.5\n        scores = scores.masked_fill(~mask[:, :, None], -torch.inf)\n        return torch.softmax(scores, dim=-1) @ value\n', 11, 'the mask hides queries, not keys: padding is attended to, and padded rows see nothing'),
    'not cut': (9, 'class CausalAttention(nn.Module):\n    def __init__(self, d_in, d_out, context_length, dropout):\n        super().__init__()\n        self.W_query = nn.Linear(d_in, d_out, bias=False)\n        self.W_key = nn.Linear(d_in, d_out, bias=False)\n        self.W_value = nn.Linear(d_in, d_out, bias=False)\n        self.dropout = nn.Dropout(dropout)\n        hidden = torch.triu(torch.ones(context_length, context_length), diagonal=1).bool()\n        self.register_buffer("hidden", hidden, persistent=False)\n\n    def forward(self, x):\n        query, key, value = self.W_query(x), self.W_key(x), self.W_value(x)\n        scores = query @ key.mT / query.shape[-1] ** 0.5\n        n = x.shape[1]\n        scores = scores.masked_fill(self.hidden, -torch.inf)\n        weights = torch.softmax(scores, dim=-1)\n        return self.dropout(weights) @ value\n', 15, 'it works with 16 tokens alone: the mask is not cut to the tokens at hand'),
    'lost': (9, 'class CausalAttention(nn.Module):\n    def __init__(self, d_in, d_out, context_length, dropout):\n        super().__init__()\n        self.W_query = nn.Linear(d_in, d_out, bias=False)\n        self.W_key = nn.Linear(d_in, d_out, bias=False)\n        self.W_value = nn.Linear(d_in, d_out, bias=False)\n        self.dropout = nn.Dropout(dropout)\n        hidden = torch.triu(torch.ones(context_length, context_length), diagonal=1).bool()\n        self.register_buffer("hidden", hidden, persistent=False)\n\n    def forward(self, x):\n        query, key, value = self.W_query(x), self.W_key(x), self.W_value(x)\n        scores = query @ key.mT / query.shape[-1] ** 0.5\n        n = x.shape[1]\n        scores.masked_fill(self.hidden[:n, :n], -torch.inf)\n        weights = torch.softmax(scores, dim=-1)\n        return self.dropout(weights) @ value\n', 15, 'what scores.masked_fill(self.hidden[:n, :n], -torch.inf) gives is thrown away: scores = scores.masked_fill(self.hidden[:n, :n], -torch.inf) keeps it'),
    'value of x': (11, 'class CrossAttention(nn.Module):\n    def __init__(self, d_in, d_out):\n        super().__init__()\n        self.W_query = nn.Linear(d_in, d_out, bias=False)\n        self.W_key = nn.Linear(d_in, d_out, bias=False)\n        self.W_value = nn.Linear(d_in, d_out, bias=False)\n\n    def forward(self, x, context):\n        query, key, value = self.W_query(x), self.W_key(context), self.W_value(x)\n        scores = query @ key.mT / query.shape[-1] ** 0.5\n        return torch.softmax(scores, dim=-1) @ value\n', 9, 'in self.W_value(x) stands x, and context is meant'),
    'new first': (13, 'class CachedAttention(nn.Module):\n    def __init__(self, d_in, d_out):\n        super().__init__()\n        self.reset()\n        self.W_query = nn.Linear(d_in, d_out, bias=False)\n        self.W_key = nn.Linear(d_in, d_out, bias=False)\n        self.W_value = nn.Linear(d_in, d_out, bias=False)\n\n    def reset(self):\n        self.keys, self.values = None, None\n\n    def attend(self, query, key, value):\n        scores = query @ key.mT / query.shape[-1] ** 0.5\n        new, seen = scores.shape[-2:]\n        hidden = torch.triu(torch.ones(new, seen), diagonal=1 + seen - new).bool()\n        scores = scores.masked_fill(hidden, -torch.inf)\n        return torch.softmax(scores, dim=-1) @ value\n\n    def full(self, x):\n        return self.attend(self.W_query(x), self.W_key(x), self.W_value(x))\n\n    def step(self, x):\n        key, value = self.W_key(x), self.W_value(x)\n        if self.keys is not None:\n            key = torch.cat([key, self.keys], dim=1)\n            value = torch.cat([value, self.values], dim=1)\n        self.keys, self.values = key, value\n        return self.attend(self.W_query(x), key, value)\n', 25, 'with the cache the new keys and values stand before those that are kept: the order of the text is the old ones first'),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_report_says_what_mends_it_and_the_line(name: str) -> None:
    number, body, line, told = WRONG[name]
    finding = ch.check(written(number, body), lesson=number).findings[0]
    assert finding.place is not None
    assert (finding.sentence, finding.place[1]) == (told, line)


def test_what_is_mirrored_is_right_in_one_half() -> None:
    """A table of zeros but for its diagonal is its own mirror too, and is no half that was worked out."""
    mirrored = "    table = (query @ key.T).triu()\n    return table + table.triu(1).T\n"
    diagonal = "    return torch.eye(len(query), len(key), dtype=query.dtype) * (query @ key.T)\n"
    said = [
        ch.check(written(1, each), lesson=1).findings[0].sentence for each in (mirrored, diagonal)
    ]
    taken = [each.startswith("what query i makes of key j is taken for") for each in said]
    assert taken == [True, False]


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
