"""The exercises of the lessons: solutions are right, stubs are not, and wrong versions are told an edit."""

from pathlib import Path
from typing import Any

import pytest

import clearhead as ch
from clearhead._common.lessons import LESSONS, Exercise, exercises_of
from tests.checking.bank.texts import digest, module_of

EXERCISES = [each for number in LESSONS for each in exercises_of(number).values()]
HEAD = "import torch\nfrom torch import nn\n\n\n"
# Exercises whose stub is a program to mend.
TO_MEND = {"weighted", "trained"}


def made(exercise: Exercise, text: str) -> Any:
    return getattr(module_of(f"exercise_{digest(text)}", text), exercise.name)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda each: each.name)
def test_a_solution_is_right_and_a_stub_is_not(exercise: Exercise) -> None:
    number = exercise.row.number
    report = ch.check(made(exercise, exercise.row.solution), lesson=number)
    assert report.outcome == "right", report
    report = ch.check(made(exercise, HEAD + exercise.stub), lesson=number)
    assert report.outcome == ("wrong" if exercise.name in TO_MEND else "not begun"), report


WRONG = {
    "packed": ("future | ", "", "differs"),
    "window": (">= size", "> size", "differs"),
    "FusedAttention": (" / query.shape[-1] ** 0.5", "", "differs"),
    "ParallelBlock": ("self.mlp(normed)", "self.mlp(x)", "stage.input"),
    "Projection": ("x @ self.weight.T", "x @ self.weight", "check.call"),
    "follows_repetition": ("earlier[-1] + 1", "earlier[-1]", "differs"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_version_has_its_line_and_an_edit_that_mends_it(name: str) -> None:
    exercise = next(each for each in EXERCISES if each.name == name)
    old, new, code = WRONG[name]
    assert old in exercise.row.solution
    text = exercise.row.solution.replace(old, new)
    (finding,) = ch.check(made(exercise, text), lesson=exercise.row.number).findings
    line = 1 + exercise.row.solution[: exercise.row.solution.index(old)].count("\n")
    assert finding.code == code
    assert finding.place is not None
    assert finding.place[1] == line
    assert "makes it right" in finding.sentence
    assert 'under "Exercises"' in finding.read


def test_an_exercise_is_graded_by_its_name_in_the_file_of_its_lesson(tmp_path: Path) -> None:
    file = tmp_path / "lesson_07.py"
    file.write_text(f"{HEAD}{exercises_of(7)['packed'].row.solution}", encoding="utf-8")
    assert ch.check(f"{file}:packed", lesson=7).ok


def test_each_lesson_has_three_with_one_to_three_stars() -> None:
    assert len({each.name for each in EXERCISES}) == len(EXERCISES) == 48
    for number, row in LESSONS.items():
        assert [each.stars for each in exercises_of(number).values()] == [1, 2, 3]
        assert not set(exercises_of(number)) & set(row.names)
    assert all(len(each.hints) >= 2 and each.why and each.row.calls for each in EXERCISES)
