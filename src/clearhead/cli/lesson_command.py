"""`clearhead lesson`."""

from pathlib import Path
from typing import Annotated

import typer

from clearhead._common.lessons import LESSONS, LessonRow
from clearhead.cli import check_process
from clearhead.cli.explain import print_page
from clearhead.cli.progress import busy
from clearhead.errors import ClearheadError, FileError
from clearhead.lessons.lesson import read_lesson
from clearhead.lessons.notebook import as_text
from clearhead.lessons.notebook import notebook as as_notebook

SECONDS = 60.0


def lesson(
    number: Annotated[
        int | None, typer.Argument(help="The lesson to begin; without it they are listed.")
    ] = None,
    notebook: Annotated[
        bool, typer.Option("--notebook", help="Write a notebook, not a file of Python.")
    ] = False,
    read: Annotated[
        bool, typer.Option("--read", help="Print the lesson, and write nothing.")
    ] = False,
) -> None:
    """Begin a lesson of the course, or list them.

    Attention, learnt by writing it, in sixteen lessons. "clearhead lesson 7" writes lesson_07.py into this
    folder, never over a file that is there; "clearhead lesson 7 --read" prints the lesson, and
    "clearhead check lesson_07.py --lesson 7" grades the file. The list has a ✓ for each lesson whose
    file in this folder is right, and a · for one that is not, yet.
    """
    if number is None:
        _list()
        return
    begun = read_lesson(number)
    if read:
        print_page(as_text(begun))
        return
    file = Path(begun.row.file)
    if notebook:
        _write(file.with_suffix(".ipynb"), as_notebook(begun))
        print(f"Lesson {number}, {begun.row.title}: open {file.with_suffix('.ipynb')} in Jupyter.")
        return
    _write(file, begun.starter)
    print(f"Lesson {number}, {begun.row.title}: replace each ... in {file}, then run")
    print(f"  clearhead check {file} --lesson {number}")
    print(f'"{begun.row.command}" prints the lesson, and --notebook writes it as a notebook.')


def _write(path: Path, text: str) -> None:
    """Write a new file; FileError if it exists (`lesson.exists`) or cannot be written (`file.unwritable`)."""
    try:
        with open(path, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError as error:
        raise FileError(
            "lesson.exists", f"{path} is there already, and stays as it is; move it to begin anew."
        ) from error
    except OSError as error:
        raise FileError(
            "file.unwritable", f"{path} could not be written: {error.strerror}"
        ) from error


def _list() -> None:
    """Print the lessons, with a mark for each whose file in this folder is right or not yet, and what comes next.

    Files that are there are graded, each in a process of its own.
    """
    begun = [row for row in LESSONS.values() if Path(row.file).is_file()]
    with busy("grading what is in this folder"):
        right = {row.number: _is_right(row) for row in begun}
    for row in LESSONS.values():
        mark = {True: "✓", False: "·", None: " "}[right.get(row.number)]
        print(f"{row.number:2} {mark} {row.title}")
    open_ones = [number for number in right if not right[number]]
    ahead = [number for number in LESSONS if number not in right]
    if open_ones:
        row = LESSONS[open_ones[0]]
        print(f"\nclearhead check {row.file} --lesson {row.number} says what is missing.")
    elif not ahead:
        print("\nThat was the whole course.")
    else:
        next_one = next((number for number in ahead if number > max(right, default=0)), ahead[0])
        print(f"\nclearhead lesson {next_one} begins the {'next' if right else 'first'}.")


def _is_right(row: LessonRow) -> bool:
    """Return True if the file of a lesson passes its check; False too if it fails to run or takes over 60 s."""
    asked = {"place": row.file, "options": {"lesson": row.number}}
    try:
        return check_process.checked(asked, timeout=SECONDS)["ok"]
    except ClearheadError:
        return False  # it does not run yet; `clearhead check` says why
