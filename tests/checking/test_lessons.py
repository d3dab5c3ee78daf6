"""What learners write in the lessons of the course is graded: right is right, and what is wrong has its line."""

# ruff: noqa: E501
import contextlib
import io
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead._common.lessons import LESSONS, REASONS
from clearhead.checking import checking
from clearhead.checking.rules import CODES
from clearhead.checking.source_edits import grading
from clearhead.checking.source_edits.grading import Grade, grade
from clearhead.checking.source_edits.outcome import doubles
from tests.checking.bank.course import CASES, HEAD, Case, made, program

TENTH = 10
# Codes that the outcome has, and no rule of `check`.
OF_OUTCOME = {"check.call", "stage.input", "stage.missing", "sum.wrong"}


def chosen(config: pytest.Config) -> list[Case]:
    return CASES if config.getoption("--banks") == "all" else CASES[::TENTH]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", chosen(metafunc.config), ids=str)


@pytest.fixture
def grades(monkeypatch: pytest.MonkeyPatch) -> list[Grade]:
    """What `check` graded, with the edits that it told."""
    found: list[Grade] = []

    def noted(*given: object) -> Grade:
        found.append(grade(*given))  # pyright: ignore[reportArgumentType]
        return found[-1]

    monkeypatch.setattr(checking, "grade", noted)
    # How many edits are tried goes by their number alone, so that a slow machine tells the same ones.
    monkeypatch.setattr(grading, "SECONDS", float("inf"))
    return found


def test_the_bank(case: Case, grades: list[Grade]) -> None:
    """Right is right; wrong is wrong, by a code that is true or by an edit that mends it, at a line."""
    with contextlib.redirect_stdout(io.StringIO()):
        report = ch.check(case.make(), lesson=case.lesson)
    if not case.codes:
        assert report.outcome == "right", f"\n{report}"
        assert report.passed
        return
    assert report.outcome == "wrong", report.summary
    (finding,) = report.findings
    edit = grades[-1].edit
    assert finding.code in case.codes or edit is not None or not case.is_named, f"\n{report}"
    assert finding.place is not None, f"\n{report}"
    assert finding.place[1] == case.line or edit is not None or not case.is_placed, f"\n{report}"
    assert finding.read.startswith("lesson ")
    if edit is not None:
        again = ch.check(made(case.lesson, HEAD + edit.program.text), lesson=case.lesson)
        assert again.outcome == "right", edit.told
        assert edit.told in finding.sentence


def test_few_entries_of_the_bank_have_no_line() -> None:
    wrong = [each for each in CASES if each.codes]
    assert sum(each.is_placed for each in wrong) >= 0.95 * len(wrong)  # may only rise
    assert sum(each.is_named for each in wrong) >= 0.97 * len(wrong)


STUBS = {
    "ellipsis": (1, "def scores(query, key):\n    ...\n", "scores"),
    "pass": (1, "def scores(query, key):\n    pass\n", "scores"),
    "docstring": (2, 'def weights(scores):\n    """Weights."""\n', "weights"),
    "raised": (3, "def context(weights, value):\n    raise NotImplementedError\n", "context"),
    "gap": (1, "def scores(query, key):\n    table = torch.empty(len(query), len(key))\n    ...\n    return table\n", "scores"),
    "assigned": (7, program(7, "filled").replace("torch.triu(torch.ones(n, n), diagonal=1).bool()", "..."), "forward"),
    "split": (10, program(10, "methods").replace("x.view(x.shape[0], x.shape[1], self.num_heads, self.head_dim).transpose(1, 2)", "..."), "split"),
    "function": (10, program(10, "functions").replace("    batch, num_heads, tokens, head_dim = heads.shape\n    return heads.permute(0, 2, 1, 3).reshape(batch, tokens, num_heads * head_dim)", "    ..."), "merge"),
    "class": (7, "class CausalAttention(nn.Module):\n    pass\n", "CausalAttention"),
}  # fmt: skip


@pytest.mark.parametrize("name", STUBS)
def test_what_is_not_written_is_not_begun(name: str) -> None:
    lesson, text, function = STUBS[name]
    report = ch.check(Case(lesson, (), text, name).make(), lesson=lesson)
    assert (report.outcome, report.ok, report.findings) == ("not begun", False, ())
    assert [each.partition(" ")[0] for each in report.unwritten] == [function]


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
    "0": (lambda: ch.check(indexed, lesson=0), ch.errors.ArgumentError),
    "17": (lambda: ch.check(indexed, lesson=17), ch.errors.ArgumentError),
    "text": (lambda: ch.check(indexed, lesson=cast("int", "7")), ch.errors.ArgumentTypeError),
    "True": (lambda: ch.check(indexed, lesson=True), ch.errors.ArgumentTypeError),
    "takes": (lambda: ch.check(indexed, lesson=7, takes="x"), ch.errors.ArgumentError),
    "causal": (lambda: ch.check(indexed, lesson=7, causal=True), ch.errors.ArgumentError),
    "contract": (lambda: ch.check(indexed, lesson=7, contract=ch.Contract()), ch.errors.ArgumentError),
    "tensor": (lambda: ch.check(torch.ones(2), lesson=7), ch.errors.ArgumentTypeError),
    "function": (lambda: ch.check(indexed, lesson=11), ch.errors.ArgumentTypeError),
    "class": (lambda: ch.check(module_of(program(7, "filled")), lesson=1), ch.errors.ArgumentTypeError),
    "decode": (lambda: ch.check(indexed, lesson=13), ch.errors.ArgumentTypeError),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_lesson_grades_is_refused(name: str) -> None:
    call, error = REFUSED[name]
    with pytest.raises(error) as caught:
        call()
    assert (type(caught.value), caught.value.code) == (error, "check.lesson")


def test_a_file_is_graded_by_the_name_that_the_lesson_has(tmp_path: Path) -> None:
    file = tmp_path / "lesson_02.py"
    file.write_text("import torch\n\ndef helper(x):\n    return x\n" + program(2, "softmax"))
    assert ch.check(str(file), lesson=2).ok
    file.write_text(
        "import torch\n"
        + program(2, "softmax")
        + program(2, "softmax").replace("weights", "softmax")
    )
    with pytest.raises(ch.errors.ModelError) as caught:
        ch.check(str(file), lesson=2)
    assert caught.value.code == "check.name"
    assert ch.check(f"{file}:softmax", lesson=2).ok
    file = tmp_path / "lesson_12.py"
    file.write_text("import torch\nfrom torch import nn\n" + program(12, "rotary"))
    assert ch.check(str(file), lesson=12).name == "RotaryAttention"  # which calls rotate


def test_every_row_has_a_page_of_its_own_and_reasons() -> None:
    known = {*CODES, *OF_OUTCOME}
    assert list(LESSONS) == list(range(1, 17))
    assert len({each.slug for each in LESSONS.values()}) == 16
    for row in LESSONS.values():
        assert set(row.codes) <= known, row.number
        assert set(row.codes) <= set(REASONS), row.number
    assert set(REASONS) == {code for row in LESSONS.values() for code in row.codes}


MATRICES = """class SelfAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Parameter(torch.randn(d_in, d_out))
        self.W_key = nn.Parameter(torch.randn(d_in, d_out))
        self.W_value = nn.Parameter(torch.randn(d_in, d_out))

    def forward(self, x):
        query, key, value = x @ self.W_query, x @ self.W_key, x @ self.W_value
        return torch.softmax(query @ key.T, dim=-1) @ value
"""


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("", "", None),
        (
            "nn.Parameter(torch.randn(d_in, d_out))",
            "nn.Parameter(torch.randn(d_in, d_out), requires_grad=False)",
            "parameter.missing",
        ),
        ("query @ key.T", "query.detach() @ key.T", "grad.wrong"),
        ("x @ self.W_key", "x @ self.W_query", "parameter.dead"),
    ],
)
def test_every_law_is_asked_with_and_without_a_scale(
    old: str, new: str, code: str | None, scaled: bool
) -> None:
    text = MATRICES.replace(old, new, 1) if old else MATRICES
    if scaled:
        text = text.replace("key.T, dim", "key.T / key.shape[-1] ** 0.5, dim")
    report = ch.check(Case(4, (), text, "").make(), lesson=4)
    assert [each.code for each in report.findings] == ([] if code is None else [code])


@pytest.mark.parametrize(("persistent", "code"), [(True, "state.mask"), (False, None)])
def test_a_mask_is_not_saved(persistent: bool, code: str | None) -> None:
    own = [each for each in CASES if each.lesson == 9 and not each.codes]
    right = next(each for each in own if "persistent=False" in each.text)
    text = right.text.replace("persistent=False", f"persistent={persistent}")
    report = ch.check(Case(9, (), text, "").make(), lesson=9)
    assert [each.code for each in report.findings] == ([] if code is None else [code])


def test_the_output_layer_is_asked_for_and_a_told_edit_mends_it(grades: list[Grade]) -> None:
    own = [each for each in CASES if each.lesson == 10 and not each.codes]
    right = next(each for each in own if "out_proj = nn.Linear(d_out, d_out)" in each.text)
    text = right.text.replace(
        "out_proj = nn.Linear(d_out, d_out)", "out_proj = nn.Linear(d_in, d_out)"
    )
    (finding,) = ch.check(Case(10, (), text, "").make(), lesson=10).findings
    assert finding.code == "check.call"
    assert grades[-1].edit is not None
    assert "nn.Linear(d_out, d_out)" in grades[-1].edit.program.text
    text = right.text.replace("self.out_proj(", "(")
    text = "".join(line for line in text.splitlines(keepends=True) if "self.out_proj =" not in line)
    assert ch.check(Case(10, (), text, "").make(), lesson=10).outcome == "wrong"


def test_memory_that_a_program_does_not_fill_is_nan() -> None:
    """Otherwise the values of an earlier call, which may be right, are still there."""
    mode = torch.get_deterministic_debug_mode()
    with doubles():
        assert torch.empty(3, 5).isnan().all()
    assert torch.get_deterministic_debug_mode() == mode


def test_what_is_printed_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    text = "def scores(query, key):\n    print('called')\n    return query @ key\n"
    ch.check(Case(1, (), text, "").make(), lesson=1)
    assert capsys.readouterr().out == "called\n"


def test_an_instance_is_graded_without_an_edit(grades: list[Grade]) -> None:
    broken = Case(4, (), MATRICES.replace("@ value", "@ key"), "").make()(5, 3)
    assert ch.check(broken, lesson=4).outcome == "wrong"
    assert grades[-1].edit is None
    assert ch.check(Case(4, (), MATRICES, "").make()(5, 3), lesson=4).ok
