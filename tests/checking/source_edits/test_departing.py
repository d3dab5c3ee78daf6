"""The line of a mistake is the first whose numbers leave the right run."""

# ruff: noqa: E501

import ast

import pytest
import torch

from clearhead.checking.source_edits.departing import Departures, skipped_if
from tests.checking.bank.texts import module_of

# The body of f(x), a code, and its line; `def` is line 2.
BODIES = {
    "right": ("s = x @ x.mT\nw = torch.softmax(s, -1)\nreturn w @ x", "differs", 5),
    "in rows": ("out = []\nfor row in x:\n    w = (x @ row).softmax(0)\n    out.append(w @ x)\nreturn torch.stack(out)", "differs", 7),
    "wrong scores": ("s = x @ x.flip(0).mT.exp()\nw = torch.softmax(s, -1)\nreturn w @ x", "differs", 3),
    "wrong axis": ("s = x @ x.mT\nw = torch.softmax(s.relu(), -1)\nw = w @ x\nreturn w", "differs", 4),
    "a constant": ("t = torch.full((4,), 0.3)\ns = x @ x.mT\nw = (s * t).softmax(-1)\nreturn w @ x", "differs", 3),
    "a mask": ("m = torch.ones(4, 4).triu(2).bool()\ns = x @ x.mT\ns = s.masked_fill(m, -torch.inf)\nreturn s.softmax(-1) @ x", "differs", 3),
    "cut columns": ("s = x @ x.mT\ny = x.reshape(6, 4)\nreturn s.softmax(-1) @ y.reshape(4, 6)", "differs", 4),
    "other halves": ("y = x[:, 0::2]\ns = y @ y.mT\nreturn s.softmax(-1) @ x", "differs", 3),
    "rows twice": ("k = torch.cat([x, x[3:]])\ns = x @ k.mT\nreturn s.softmax(-1) @ k", "differs", 3),
    "a part of the keys": ("s = x[2:] @ x[:3].mT\nw = s.softmax(-1)\nreturn w @ x[:3]", "differs", 4),
    "only put together": ("s = x @ x.mT\nw = s.softmax(-1) @ x\nreturn x", "differs", 4),
    "drawn": ("s = x @ x.mT\nw = torch.dropout(s.softmax(-1), 0.5, True)\nreturn w @ x", "law.again", 4),
    "not drawn": ("return x", "law.again", None),
    "cut": ("s = x @ x.mT\nw = s.softmax(-1).detach()\nreturn w @ x", "grad.wrong", 4),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_the_line_is_the_first_that_departs(name: str) -> None:
    body, code, line = BODIES[name]
    text = "import torch\ndef f(x):\n" + "".join(f"    {each}\n" for each in body.split("\n"))
    function = module_of(f"departing_{name.replace(' ', '_')}", text).f
    with Departures(function.__code__.co_filename) as departures:
        x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        _ = torch.softmax(x @ x.mT, -1) @ x
        function(x.requires_grad_() * 1.0)
    assert departures.lines(code) == ([] if line is None else [line])


@pytest.mark.parametrize(("ran", "line"), [((2, 5), 3), ((2, 4, 5), 5), ((2,), 3)])
def test_an_if_that_skips_what_a_line_reads_is_its_cause(ran: tuple[int, ...], line: int) -> None:
    tree = ast.parse("def f(s, m):\n    s = s * 2\n    if m:\n        s = s - m\n    return s\n")
    assert skipped_if(tree, 5, {*ran}) == line
    assert skipped_if(tree, 2, {*ran}) == 2
