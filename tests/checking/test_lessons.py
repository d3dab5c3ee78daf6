"""What learners write in the lessons of the course is graded: right is right, and each mistake has its name."""

# ruff: noqa: E501
import linecache
import re
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead._common.lessons import ROWS, LessonRow
from clearhead._common.pages import docs
from clearhead.checking import lessons
from clearhead.checking.report import Finding, Report
from clearhead.checking.rules import IN_LESSONS, RULES
from clearhead.checking.words import catalogue
from tests.checking.bank.course import (
    Case,
    batches,
    blind,
    fifth,
    fourth,
    heads,
    parts,
    second,
    single,
    third,
)

CASES = [
    *parts.CASES, *single.CASES, *batches.CASES, *heads.CASES, *blind.CASES, *second.CASES, *third.CASES,
    *fourth.CASES, *fifth.CASES,
]  # fmt: skip


# The lesson that a word is learnt in.
WORDS = {
    "softmax": 2, "parameters?": 4, "scaled?": 5, "mask": 7, "causal": 7, "future": 7, "hidden": 7, "batch": 8,
    "samples?": 8, "padding": 8, "dropout": 9, "heads?": 10, "num_heads": 10, "head_dim": 10, "rotary": 12, "cache": 13,
    "strided": 99,
}  # fmt: skip


def words_of_later(lesson: int, text: str) -> list[str]:
    """The words that no lesson up to this one has."""
    return [
        word for word, first in WORDS.items() if first > lesson and re.search(rf"\b{word}\b", text)
    ]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_right_is_right_and_what_is_wrong_is_named(case: Case) -> None:
    if any(code.startswith("check.") for code in case.codes):
        with pytest.raises(ch.ModelError) as caught:
            ch.check(case.make(), lesson=case.lesson)
        cause, _, happened = caught.value.message.partition("\n")
        assert caught.value.code in case.codes, cause
        assert cause.endswith("."), cause
        assert "sizes=" not in happened, happened
        assert not words_of_later(case.lesson, cause), cause
        return
    report = ch.check(case.make(), lesson=case.lesson)
    if not case.codes:
        assert report.outcome == "right", f"\n{report}"
        return
    assert report.findings, report.summary
    finding = report.findings[0]
    assert finding.code in case.codes, f"\n{report}"
    assert not words_of_later(case.lesson, f"{finding.sentence} {finding.measured}"), f"\n{report}"
    assert finding.place is not None, f"\n{report}"
    assert finding.read.startswith("lesson ")
    assert finding.measured or case.lesson > 3
    assert not report.passed
    assert (report.told, report.minor, report.skipped) == ((), (), ())


def test_a_report_of_a_lesson() -> None:
    loop = next(each for each in single.CASES if each.label == "keys[:i]")
    assert str(ch.check(loop.make(), lesson=7)).splitlines() == [
        "✗ law.pairs   a token does not see itself: keys[:i] stops before i, keys[: i + 1] holds it",
        "    measured   no weight on themselves: tokens 0, 1, 2, 3, 4, 5, 6",
        "    line 20    rows.append(torch.softmax(scores, dim=0) @ values[:i])",
        '    read       lesson 7, Not the future, under "Why": clearhead lesson 7 --read',
    ]


LOOPS = """def scores(query, key):
    table = torch.zeros(len(query), len(key))
    for i in range(len(query)):
        for j in range(len(key)):
            for n in range(len(query[i])):
                table[i, j] += query[i][n] * key[j][n]
    return table
"""
SHARES = """def weights(scores):
    s = scores - scores.amax(dim=-1, keepdim=True)
    e = torch.exp(s)
    return e / e.sum(dim=-1, keepdim=True)
"""
TURNS = """def scores(query, key):
    table = torch.zeros(len(query), len(key))
    i = 0
    while i < len(query):
        j = 0
        while j < len(key):
            table[i, j] = query[i] @ key[j]
            j += 1
        i += 1
    return table
"""
MATRICES = """class SelfAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Parameter(0.3 * torch.randn(d_in, d_out))
        self.W_key = nn.Parameter(0.3 * torch.randn(d_in, d_out))
        self.W_value = nn.Parameter(0.3 * torch.randn(d_in, d_out))

    def forward(self, x):
        q = x @ self.W_query
        k = x @ self.W_key
        return torch.softmax(q @ k.T, dim=-1) @ (x @ self.W_value)
"""
TURNED = """def rotate(rows):
    t, d = rows.shape[-2:]
    h = d // 2
    angle = torch.outer(torch.arange(t), 10000 ** (-2 * torch.arange(h) / d))
    a, b = rows[..., :h], rows[..., h:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1)
"""

# What beginners wrote: the lesson, what was right, the edits, the code of the answer, and the words that it holds.
TOLD = {
    "2.718": (2, SHARES, {"torch.exp(s)": "2.718 ** s"}, "law.scores", "powers of 2.718 are taken, and exp takes powers of e"),
    "sum of the shifted": (2, SHARES, {"e.sum": "s.sum"}, "softmax.missing", "divided by the sum of the scores, not by the sum of the exps"),
    "sigmoid": (2, SHARES, {"torch.exp(s)": "torch.sigmoid(scores)"}, "law.scores", "its shares are not those of exp(score)"),
    "not given back": (2, SHARES, {"return ": ""}, "check.call", "line 10: e / e.sum(dim=-1, keepdim=True) is worked out, and not given back"),
    "true": (2, SHARES, {"amax(dim=-1, keepdim=True)": "amax(dim=-1, keepdim=true)"}, "check.call", "Python writes True, and not true."),
    "exp": (2, SHARES, {"torch.exp": "exp"}, "check.call", "exp is one of torch, and called by that name: torch.exp."),
    "misspelt": (1, LOOPS, {"range(len(key))": "range(len(keys))"}, "check.call", "there is no keys here: key is meant."),
    "transpose": (1, "def scores(query, key):\n    return query @ key.T\n", {"key.T": "key"}, "check.call", "key is not turned round: key.T."),
    "not added up": (1, TURNS, {"query[i] @ key[j]": "query[i] * key[j]"}, "check.call", "are products, and are not added up: (query[i] * key[j]).sum()."),
    "two at once": (1, LOOPS, {"+= query": "= query", "range(len(key))": "range(len(key) - 1)"}, "law.pairs", "+= query[i][n] * key[j][n] is meant; and in line 10: "),
    "while, not begun anew": (1, TURNS, {"        j = 0\n": "", "    i = 0\n": "    i = 0\n    j = 0\n"}, "law.pairs", "the line j = 0 stands before while i < len(query)"),
    "while, too far": (1, TURNS, {"i < len(query)": "i <= len(query)"}, "check.call", "i <= len(query) stands where i < len(query) is meant."),
    "earlier": (4, MATRICES, {"torch.softmax(q @ k.T, dim=-1)": "weights(q @ k.T)"}, "check.call", "from lesson_02 import weights."),
    "__init_": (4, MATRICES, {"__init__(self": "__init_(self"}, "check.call", "the method is called __init_, and PyTorch calls __init__."),
    "Parameters": (4, MATRICES, {"W_query = nn.Parameter": "W_query = nn.Parameters"}, "check.made", "there is no Parameters: Parameter is meant."),
    "sides": (4, MATRICES, {"x @ self.W_query": "self.W_query @ x"}, "shape.square-only", "self.W_query @ x has its parts in the wrong places: x @ self.W_query"),
    "from 1": (12, TURNED, {"arange(t)": "arange(1, t + 1)"}, "rope.offset", "places are counted from 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_what_a_beginner_wrote_is_told_as_it_is(name: str) -> None:
    lesson, text, edits, code, said = TOLD[name]
    for old, new in edits.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    thing = Case(lesson, (), text, name).make()
    if code.startswith("check."):
        with pytest.raises(ch.ModelError) as caught:
            ch.check(thing, lesson=lesson)
        assert (caught.value.code, said in caught.value.message) == (code, True), caught.value
        return
    (finding,) = ch.check(thing, lesson=lesson).findings
    assert (finding.code, said in finding.sentence) == (code, True), finding.sentence


@pytest.mark.parametrize("told", fifth.TOLD, ids=lambda told: str(told.case))
def test_the_line_to_change_and_its_cause_are_told(told: fifth.Told) -> None:
    (finding,) = ch.check(told.case.make(), lesson=told.case.lesson).findings
    assert finding.sentence == told.sentence
    assert finding.place is not None
    assert linecache.getline(*finding.place).strip() == told.line


# What shows code of a later lesson, by what stands in it.
LATER = {4: r"\bclass\b", 10: r"\b[Hh]eads?\b"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.slug)
def test_a_lesson_sends_to_no_code_of_a_later_lesson(row: LessonRow) -> None:
    page = docs("check.md").read_text(encoding="utf-8")
    for code in {*row.codes, *lessons.ALWAYS}:
        report = Report("", (Finding(code, "", ""),))
        (finding,) = lessons.in_words(report, row).findings
        section = re.search(
            rf"^## {re.escape(code)}\n(.*?)(?:^## |\Z)", page, re.MULTILINE | re.DOTALL
        )
        assert section is not None, code
        shown = "".join(re.findall(r"```python\n(.*?)```", section[1], re.DOTALL))
        later = [
            lesson
            for lesson, words in LATER.items()
            if re.search(words, shown) and lesson > row.number
        ]
        assert not (later and finding.see), (code, later)
        assert finding.see or later, code


STUBS = {
    "ellipsis": (1, "def scores(query, key):\n    ...\n", "scores"),
    "pass": (1, "def scores(query, key):\n    pass\n", "scores"),
    "docstring": (2, 'def weights(scores):\n    """Weights."""\n', "weights"),
    "none": (2, "def weights(scores):\n    powers = None\n    return powers\n", "weights"),
    "raised": (3, "def context(weights, value):\n    raise NotImplementedError\n", "context"),
    "gap": (1, "def scores(query, key):\n    table = torch.empty(len(query), len(key))\n    ...\n    return table\n", "scores"),
    "assigned": (7, single.FILLED.replace("torch.triu(torch.ones(n, n), diagonal=1).bool()", "..."), "forward"),
    "split": (10, heads.METHODS.replace(heads.SPLIT, "..."), "split"),
    "function": (10, heads.FUNCTIONS.replace("    batch, num_heads, tokens, head_dim = heads.shape\n    return heads.permute(0, 2, 1, 3).reshape(batch, tokens, num_heads * head_dim)", "    ..."), "merge"),
    "class": (7, "class CausalAttention(nn.Module):\n    pass\n", "CausalAttention"),
}  # fmt: skip


@pytest.mark.parametrize("name", STUBS)
def test_what_is_not_written_is_not_begun(name: str) -> None:
    lesson, text, function = STUBS[name]
    report = ch.check(Case(lesson, (), text, name).make(), lesson=lesson)
    assert (report.outcome, report.ok, report.findings) == ("not begun", False, ())
    assert [each.partition(" ")[0] for each in report.unwritten] == [function]
    assert str(report).startswith(f"· not begun   {function}")


def reset_only() -> None:
    pass


def indexed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What holds `...` as an index, and calls what has nothing to do, is written."""
    reset_only()
    return torch.softmax(query @ key[...].mT / query.shape[-1] ** 0.5, dim=-1) @ value[..., :]


def test_an_index_is_no_gap() -> None:
    assert ch.check(indexed, takes="qkv").ok


def module_of(parts: str) -> type:
    return Case(7, (), parts, "").make()


REFUSED = {
    "0": (lambda: ch.check(indexed, lesson=0), ch.ArgumentError, "lesson must be from 1 to 13; got 0."),
    "14": (lambda: ch.check(indexed, lesson=14), ch.ArgumentError, "lesson must be from 1 to 13; got 14."),
    "text": (lambda: ch.check(indexed, lesson=cast("int", "7")), ch.ArgumentTypeError, "lesson must be a whole number from 1 to 13; got '7'."),
    "True": (lambda: ch.check(indexed, lesson=True), ch.ArgumentTypeError, "lesson must be a whole number from 1 to 13; got True."),
    "takes": (lambda: ch.check(indexed, lesson=7, takes="x"), ch.ArgumentError, "lesson=7 declares what there is to declare; got takes beside it."),
    "causal": (lambda: ch.check(indexed, lesson=7, causal=True), ch.ArgumentError, "lesson=7 declares what there is to declare; got causal beside it."),
    "contract": (lambda: ch.check(indexed, lesson=7, contract=ch.Contract()), ch.ArgumentError, "lesson=7 declares what there is to declare; got contract beside it."),
    "tensor": (lambda: ch.check(torch.ones(2), lesson=7), ch.ArgumentTypeError, "lesson 7 grades a class or a module called with x; got a tensor."),
    "function": (lambda: ch.check(indexed, lesson=11), ch.ArgumentTypeError, "lesson 11 grades a class or a module called with x and context; got the function indexed."),
    "class": (lambda: ch.check(module_of(single.FILLED), lesson=1), ch.ArgumentTypeError, "lesson 1 grades a function called with query and key; got the class CausalAttention."),
    "decode": (lambda: ch.check(indexed, lesson=13), ch.ArgumentTypeError, "lesson 13 grades a class or a module with step(x), full(x) and reset(); got the function indexed."),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_lesson_grades_is_refused(name: str) -> None:
    call, error, words = REFUSED[name]
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert (caught.value.code, caught.value.message) == ("check.lesson", words)


def test_a_file_is_graded_by_the_name_that_the_lesson_has(tmp_path: Path) -> None:
    file = tmp_path / "lesson_02.py"
    file.write_text("import torch\n\ndef helper(x):\n    return x\n" + parts.SOFTMAX)
    assert ch.check(str(file), lesson=2).ok
    file.write_text("import torch\n" + parts.SOFTMAX + parts.SOFTMAX.replace("weights", "softmax"))
    with pytest.raises(
        ch.ModelError, match=r"say which: .*lesson_02.py:weights; it has weights, softmax"
    ) as caught:
        ch.check(str(file), lesson=2)
    assert caught.value.code == "check.name"
    assert ch.check(f"{file}:softmax", lesson=2).ok
    file = tmp_path / "lesson_12.py"
    file.write_text("import torch\nfrom torch import nn\n" + heads.ROTARY)
    assert ch.check(str(file), lesson=12).name == "RotaryAttention"  # which calls rotate


def test_every_row_has_a_page_of_its_own_and_codes_that_there_are() -> None:
    known = {each.code for each in (*RULES, *IN_LESSONS)}
    assert [each.number for each in ROWS] == list(range(1, 14))
    assert len({each.slug for each in ROWS}) == 13
    for row in ROWS:
        assert set(row.codes) <= known, row.number


def test_every_name_of_the_bank_is_spoken_of_in_a_lesson_up_to_its_own() -> None:
    spoken = {
        row.number: {code for each in ROWS[: row.number] for code in each.codes} for row in ROWS
    }
    beside = {*lessons.ALWAYS, "check.call", "check.made", "check.output"}
    for case in CASES:
        if case.codes:
            assert {*spoken[case.lesson], *beside} & set(case.codes), case


def test_plain_words_belong_to_a_way_of_their_mistake() -> None:
    for code, mistake in catalogue()["mistake"].items():
        assert set(mistake.get("plain", {})) <= set(mistake["says"]), code
