"""`clearhead lesson`: what it writes, and what it does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clearhead.lessons.lesson import read_lesson
from tests.cli.commands import invoke, lines


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_begins_a_lesson_once(folder: Path) -> None:
    printed = lines("lesson", "7")
    assert printed[1] == "  clearhead check lesson_07.py --lesson 7"
    assert printed[2] == (
        '"clearhead lesson 7 --read" prints the lesson, and --notebook writes it as a notebook.'
    )
    file = folder / "lesson_07.py"
    assert file.read_text(encoding="utf-8") == read_lesson(7).starter
    file.write_text("mine")
    again = invoke("lesson", "7")
    assert again.exit_code == 1
    assert "[lesson.exists] lesson_07.py is there already, and stays as it is" in str(again.stderr)
    assert file.read_text() == "mine"


def test_a_notebook(folder: Path) -> None:
    lines("lesson", "3", "--notebook")
    assert [each.name for each in folder.iterdir()] == ["lesson_03.ipynb"]


def test_it_is_read_without_what_gives_an_answer_away(folder: Path) -> None:
    printed = lines("lesson", "1", "--read")
    assert printed[0] == "# 1. One number"
    assert "## Write" in printed
    assert read_lesson(1).of_role("write")[0].source.splitlines()[3] in printed
    # Neither a solution, nor the names of the gallery's mistakes, nor a link to a page that is not there.
    assert not [each for each in printed if "wrong sum.wrong" in each or "](../" in each]
    assert printed.count("    return table") == len(read_lesson(1).of_role("wrong"))
    assert not list(folder.iterdir())


@pytest.mark.parametrize("number", ["0", "17"])
def test_no_such_lesson(number: str, folder: Path) -> None:
    refused = invoke("lesson", number)
    assert refused.exit_code == 1
    assert f"[lesson.number] lesson must be one of 1 to 16; got {number}." in refused.stderr
    assert not list(folder.iterdir())


def test_the_list_marks_what_is_right(folder: Path) -> None:
    (folder / "lesson_01.py").write_text(read_lesson(1).starter, encoding="utf-8")
    (folder / "lesson_03.py").write_text(read_lesson(3).solution, encoding="utf-8")
    printed = lines("lesson")
    assert printed[:3] == [" 1 · One number", " 2   A share of one", " 3 ✓ Taking home"]
    assert printed[-1] == "clearhead check lesson_01.py --lesson 1 says what is missing."
    (folder / "lesson_01.py").write_text(read_lesson(1).solution, encoding="utf-8")
    assert lines("lesson")[-1] == "clearhead lesson 4 begins the next."


def test_without_its_number_a_lesson_is_no_surprise(folder: Path) -> None:
    (folder / "lesson_01.py").write_text(read_lesson(1).solution, encoding="utf-8")
    assert lines("check", "lesson_01.py")[-1] == (
        "Of lesson 1? clearhead check lesson_01.py --lesson 1"
    )


HIDDEN = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
hidden = lambda name, *rest: None if name.partition(".")[0] == "numpy" else find(name, *rest)
PathFinder.find_spec = staticmethod(hidden)
"""


def test_without_numpy_no_word_of_it_is_said(folder: Path) -> None:
    """PyTorch warns of it whenever it is loaded, in each process: two for one answer."""
    (folder / "lesson_01.py").write_text(read_lesson(1).solution, encoding="utf-8")
    (folder / "absent").mkdir()
    (folder / "absent" / "sitecustomize.py").write_text(HIDDEN)
    path = os.pathsep.join([str(folder / "absent"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}

    def ran(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True
        )

    assert "Failed to initialize NumPy" in ran("-c", "import torch").stderr
    done = ran("-m", "clearhead", "check", "lesson_01.py", "--lesson", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("✓ numbers")
