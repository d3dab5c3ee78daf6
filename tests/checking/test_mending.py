"""Changes of one place, and the outcome that they are held to."""

import ast
import linecache
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead._common.lessons import LESSONS
from clearhead.checking.lessons import promises_of
from clearhead.checking.mending.edits import edits_of
from clearhead.checking.mending.mends import mends_of
from clearhead.checking.mending.outcomes import is_right, without_gradient
from clearhead.checking.mending.places import functions_of

SCORES = """
def scores(query, key):
    table = torch.zeros(len(query), len(key))
    for i in range(len(query)):
        for j in range(len(key)):
            for n in range(query.shape[-1]):
                table[i, j] += query[i, n] * key[j, n]
    return table
"""


def written(text: str, name: str) -> Any:
    """What a file of this text defines."""
    file = f"mending_{abs(hash(text))}.py"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    module = ModuleType(file.removesuffix(".py"))
    module.__dict__.update(torch=torch, nn=nn)
    exec(compile(text, file, "exec"), module.__dict__)
    return getattr(module, name)


def test_a_change_is_undone_before_the_next_and_each_is_another() -> None:
    tree = ast.parse(SCORES)
    before, seen = ast.dump(tree), set()
    for edit in edits_of(tree, ()):
        assert ast.dump(edit.tree) != before
        compile(edit.tree, "changed", "exec")
        seen.add(edit.key)
    assert ast.dump(tree) == before
    assert {"reach", "name", "operator", "step", "minus", "number"} <= seen


@pytest.mark.parametrize(
    ("old", "new", "key", "line"),
    [
        ("query[i, n] *", "query[j, n] *", "name", 7),
        ("+= query", "= query", "operator", 7),
        ("range(len(key))", "range(i)", "reach", 5),
        ("return table", "return -table", "minus-more", 8),
        ("* key[j, n]", "/ key[j, n]", "operator", 7),
    ],
)
def test_the_change_that_mends_says_line_and_kind(old: str, new: str, key: str, line: int) -> None:
    assert SCORES.count(old) == 1
    scores = written(SCORES.replace(old, new), "scores")
    promises = promises_of(LESSONS[1], scores)
    assert is_right(scores, LESSONS[1], promises) is False
    found = mends_of(scores, LESSONS[1], promises, None)
    assert (key, line) in [(each.key, each.place[1]) for each in found]


def test_what_is_right_needs_no_order_of_its_products() -> None:
    class Reordered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.W_query, self.W_key, self.W_value = (nn.Linear(5, 3, bias=False) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            asked = x @ self.W_query.weight.mT @ self.W_key.weight
            weights = (asked @ x.mT / 3**0.5).exp()
            return self.W_value(weights @ x / weights.sum(-1, keepdim=True))

    row, module = LESSONS[6], Reordered().double()
    assert is_right(module, row, promises_of(row, module))
    assert without_gradient(module, row, row.contract) == []
    # The names of query and value in each other's place are another outcome.
    assert is_right(module, row, promises_of(row, module), "vkq") is False


def test_what_no_change_mends_is_wrong_all_the_same() -> None:
    text = SCORES.replace("* key[j, n]", "* key[j, n] * key[j, n].abs().sqrt().sin()")
    report = ch.check(written(text, "scores"), lesson=1)
    assert report.outcome == "wrong"
    assert report.findings[0].place is not None


CACHED = """
class Cached(nn.Module):
    def full(self, x):
        return x @ self.weight

    def step(self, x):
        self.x = torch.cat([self.x, x], 1)
        return self.full(self.x)

    def twice(self, x):
        return self.step(x)
"""


def test_no_change_makes_a_method_ask_what_asks_it() -> None:
    """Such a change calls without an end; as the text that is kept doubles with each call, 22 GB were taken."""
    asked = set()
    for edit in edits_of(ast.parse(CACHED), ()):
        if edit.key == "passed":
            for method in functions_of(edit.tree):
                called = {each.attr for each in ast.walk(method) if isinstance(each, ast.Attribute)}
                asked |= {(method.name, each) for each in called & {"full", "step", "twice"}}
    assert asked == {("step", "full"), ("twice", "step"), ("twice", "full")}
