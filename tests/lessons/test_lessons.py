"""Every block of every lesson: what it prints, what its questions answer, and how its files are graded.

Blocks that train do so for three steps here, and in full when the site is built.
"""

import ast
import base64
import contextlib
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch

import clearhead as ch
from clearhead._common.lessons import LESSONS
from clearhead.checking.rules import CODES
from clearhead.errors import MissingExtraError
from clearhead.lessons.lesson import Lesson, page_of, read_lesson
from clearhead.lessons.notebook import begun, compare, notebook
from docs.site.session import STEPS, Session
from tests.environment import SEED
from tests.test_docs import agrees, difference

ORDER = ["Why", "Predict", "Write", "See", "Check", "Gallery", "Recap", "Where else it appears"]
# The names of mistakes.
RULED = list(CODES)
# No word before its lesson.
LATER = {"mask": 7, "batch": 8, "head": 10}


@pytest.fixture(params=LESSONS, ids=lambda number: f"lesson {number}")
def lesson(request: pytest.FixtureRequest) -> Lesson:
    return read_lesson(request.param)


def test_its_blocks_print_and_its_files_are_graded_as_the_page_says(
    lesson: Lesson, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    session = Session(lesson, tmp_path).run()
    for block, printed in session.held:
        told = f"{page_of(lesson.row.number).name}:{block.line}"
        assert agrees(block.source, printed), f"{told}\n{difference(block.source, printed)}"
    for name, answer in session.answers.items():
        assert answer == answer, name
    for shown in session.live.values():
        assert hasattr(shown, "to_html") or hasattr(shown, "options")
    (report,) = session.grade(lesson.solution)
    assert report.ok, report
    (report,) = session.grade(lesson.starter)
    assert not report.ok
    assert not report.findings
    assert "not begun" in str(report)
    assert len(lesson.of_role("wrong")) == 3
    for wrong in lesson.of_role("wrong"):
        (report,) = session.grade(lesson.broken(wrong))
        assert [each.code for each in report.findings] == [wrong.words], f"line {wrong.line}"


def test_its_page_has_the_parts_of_a_lesson(lesson: Lesson) -> None:
    text = page_of(lesson.row.number).read_text(encoding="utf-8")
    assert text.startswith(f"# {lesson.row.number}. {lesson.row.title}\n")
    headings = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    known = [each for each in headings if each in ORDER]
    assert sorted(known) == sorted(ORDER)
    assert known[:3] + known[-3:] == ORDER[:3] + ORDER[-3:]
    assert text.index("](../pictures/lessons/") < text.index("```python\n")
    assert text.index("## See") < text.index("*Try it:* ") < text.index("## Gallery")
    recap = text.partition("## Recap\n\n")[2].partition("\n\n")[0]
    assert recap.count("\n") == 2
    assert all(line.startswith("- ") for line in recap.splitlines())
    assert {each.words for each in lesson.of_role("wrong")} <= set(lesson.codes)
    for stub in lesson.of_role("write"):
        ast.parse(stub.source)
    readable = text.partition("## Where else it appears")[0].partition("Next: [")[0].lower()
    later = [word for word, number in LATER.items() if lesson.row.number < number]
    assert not [word for word in later if re.search(rf"\b{word}", readable)]


def test_the_headings_that_reports_point_to_are_on_its_page(lesson: Lesson) -> None:
    text = "".join(each for each in lesson.parts if isinstance(each, str))
    there = set(re.findall(r"^## (.+)$", text, re.MULTILINE))
    assert {"Write", *lesson.row.headings.values()} <= there
    for began in lesson.row.headings:
        assert any(code.startswith(began) for code in (*RULED, *lesson.row.codes)), began


def test_its_notebook_is_valid_and_runs_with_its_solutions(
    lesson: Lesson,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    made: Any = json.loads(notebook(lesson))
    nbformat.validate(nbformat.from_dict(made))
    cells = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells)
    assert not any("compare(" in cell["source"] for cell in cells)  # an answer is not shown
    solutions = [block.source.rstrip() for block in lesson.of_role("solution")]
    assert not [cell for cell in cells if cell["source"] in solutions]
    stubs = [block.source.rstrip() for block in lesson.of_role("write")]
    put = dict(zip(stubs, solutions, strict=True))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    torch.manual_seed(SEED)
    # All of lesson 16 runs where its model is installed, in tests/samples.
    with contextlib.suppress(MissingExtraError):
        for cell in cells:
            source: str = put.get(cell["source"]) or cell["source"]
            exec(STEPS.sub("steps = 3", source), namespace)
    assert capsys.readouterr().out.count("no guess yet") == len(lesson.of_role("predict"))


def test_its_notebook_leads_nowhere_else(lesson: Lesson) -> None:
    """It lies where no other page is: pictures are in it, and links are those of the web."""
    page = page_of(lesson.row.number).read_text(encoding="utf-8")
    cells = [
        cell for cell in json.loads(notebook(lesson))["cells"] if cell["cell_type"] == "markdown"
    ]
    pictures = 0
    for cell in cells:
        for picture, target in re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", cell["source"]):
            assert target.startswith("attachment:" if picture else "https://"), target
            pictures += len(picture)
        for held in cell.get("attachments", {}).values():
            assert base64.b64decode(held["image/svg+xml"]).startswith(b"<svg")
    assert pictures == page.count("](../pictures/")


def test_what_is_not_written_yet_is_said(
    lesson: Lesson, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(lesson, tmp_path)
    name, number = lesson.row.names[0], lesson.row.number
    begun(vars(session.load(lesson.starter, "starter"))[name], lesson=number)
    assert capsys.readouterr().out.startswith(f"{name} is not written yet. ")
    begun(vars(session.load(lesson.solution, "solution"))[name], lesson=number)
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (2, "✓ yes: 2"),
        (2.0049, "✓ yes: 2"),
        (2.0051, "close: it is 2; you said 2.0051"),
        (3, "it is 2; you said 3"),
        ("2", "please enter a number"),
        (True, "please enter a number"),
        (..., "no guess yet: replace the three dots with a number, or read on"),
    ],
)
def test_a_guess(guess: object, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    compare(guess, 2, 0.005)
    assert capsys.readouterr().out == f"{said}\n"


@pytest.mark.parametrize("number", [0, 17, True, "7"])
def test_no_such_lesson(number: object) -> None:
    with pytest.raises(
        (ch.errors.ArgumentError, ch.errors.ArgumentTypeError), match=r"\[lesson\.number\]"
    ):
        read_lesson(number)  # pyright: ignore[reportArgumentType]
