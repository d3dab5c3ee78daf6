"""A lesson as a notebook, in the format of Jupyter, version 4.5, and the functions that its cells call."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from clearhead._common.lessons import docs
from clearhead.lessons.lesson import ROLES, Block, Lesson, read_lesson

PICTURE = re.compile(r"!\[([^\]]*)\]\(\.\./([^)]+)\)")
# To another page, which is not where a notebook is.
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]+\)")
HOW = (
    "Run the cells in order, from the top, with Shift + Enter. Replace the three dots in a cell with your guess, which "
    "is optional, or with your own code."
)


def notebook(lesson: Lesson) -> str:
    """Return the notebook of a lesson as JSON, without outputs; solutions, hints and names of mistakes are folded.

    Example:
        >>> from clearhead.lessons.lesson import read_lesson
        >>> made = json.loads(notebook(read_lesson(1)))
        >>> made["cells"][0]["source"].splitlines()[0]
        '# 1. One number'
    """
    cells = list(_cells(lesson))
    for place, cell in enumerate(cells):
        cell["id"] = f"lesson-{lesson.row.number:02}-{place:03}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made = {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(made, ensure_ascii=False, indent=1) + "\n"


def as_text(lesson: Lesson) -> str:
    """Return the lesson in Markdown, without solutions, hints and names of mistakes; links and pictures become text.

    Example:
        >>> from clearhead.lessons.lesson import read_lesson
        >>> text = as_text(read_lesson(1))
        >>> text.splitlines()[0], "wrong sum.wrong" in text
        ('# 1. One number', False)
    """
    parts = []
    for part in lesson.parts:
        if isinstance(part, str):
            parts.append(LINK.sub(r"\1", PICTURE.sub(r"*(A picture: \1)*", part)).strip())
        elif part.role == "predict":
            parts.append(f"*Guess:* {part.source.strip()}")
        elif part.role in ROLES - {"solution", "answer"}:
            parts.append(f"```python\n{part.source}```")
        elif part.role not in ("solution", "answer", "why", "hint"):
            parts.append(_fenced(part))
    return "\n\n".join(parts) + "\n"


def _cells(lesson: Lesson) -> Iterator[dict[str, Any]]:
    """Yield the cells of a lesson's notebook, without ids; the lesson must begin with a heading and a byline."""
    for place, part in enumerate(lesson.parts):
        if isinstance(part, str) and place == 0:
            heading, byline, rest = part.split("\n\n", 2)
            yield _text("\n\n".join((heading, byline, HOW)))
            yield _code("from clearhead.lessons.notebook import begun, judge")
            yield _text(rest)
            continue
        if isinstance(part, str):
            yield _text(part)
            continue
        match part.role:
            case "predict":
                name, _, _ = part.question
                yield _text(part.source)
                yield _code(f"{name} = ...  # your guess")
                yield _hidden(f'judge({lesson.row.number}, "{name}", globals())')
            case "solution" | "answer":
                yield _text(_folded("A solution", f"```python\n{part.source}```"))
            case "hint" | "why":
                yield _text(_folded({"hint": "A hint", "why": "Why"}[part.role], part.source))
            case "exercise":
                yield _code(part.source)
            case "wrong":
                choices = ", ".join(f"`{code}`" for code in lesson.codes)
                yield _text(f"```python\n{part.source}```\n\nWhich one is it? {choices}")
                yield _text(_folded("The name of the mistake", f"`{part.words}`"))
            case "write":
                yield _code(part.source)
                yield _hidden(f"begun({lesson.row.names[0]}, lesson={lesson.row.number})")
            case "python" | "live" | "check" | "train":
                yield _code(part.source)
            case "text":
                pass  # what is printed comes when the cell is run
            case _:
                yield _text(_fenced(part))


def _fenced(block: Block) -> str:
    """Return a block as fenced Markdown code in its language."""
    return f"```{block.role}\n{block.source}```"


def _folded(summary: str, inside: str) -> str:
    """Return HTML that shows `summary` and hides `inside` until it is opened."""
    return f"<details>\n<summary>{summary}</summary>\n\n{inside}\n\n</details>"


def _text(source: str) -> dict[str, Any]:
    """Return a Markdown cell, with its pictures attached, and with links to other pages turned into text."""
    pictures = {PurePosixPath(name).name: docs(name) for _, name in PICTURE.findall(source)}
    source = PICTURE.sub(
        lambda found: f"![{found[1]}](attachment:{PurePosixPath(found[2]).name})", source
    )
    cell: dict[str, Any] = {
        "cell_type": "markdown",
        "metadata": {},
        "source": LINK.sub(r"\1", source).strip(),
    }
    if pictures:
        cell["attachments"] = {
            name: {"image/svg+xml": base64.b64encode(path.read_bytes()).decode()}
            for name, path in pictures.items()
        }
    return cell


def _hidden(source: str) -> dict[str, Any]:
    """Return a code cell whose source is folded away where the notebook is shown."""
    return _code(source) | {
        "metadata": {"jupyter": {"source_hidden": True}, "tags": ["hide-input"]}
    }


def _code(source: str) -> dict[str, Any]:
    """Return a code cell without outputs and id."""
    return {
        "cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source.rstrip(),
    }  # fmt: skip


# How far from its answer a guess is called close, as a share of the answer.
CLOSE = 0.05


def judge(lesson: int, question: str, names: Mapping[str, Any]) -> None:
    """Print how the guess of a question compares with its answer; nothing for an unknown question.

    The answer, an expression of the page, is evaluated with the names of the notebook. KeyError if the guess is
    missing.

    Args:
        lesson: the number of the lesson.
        question: the name of the question, which is that of the guess.
        names: the names of the notebook, `globals()`.

    Example:
        >>> judge(7, "visible", {"visible": 21})
        ✓ yes: 21
    """
    for block in read_lesson(lesson).of_role("predict"):
        name, answer, tolerance = block.question
        if name == question:
            compare(names[name], eval(answer, dict(names)), tolerance)


def compare(guess: object, answer: float, tolerance: float = 0.0) -> None:
    """Print how a guess compares with the answer; nothing is stored.

    A guess within 5 % of the answer is called close; `...` or another object than a number is asked for again.

    Args:
        guess: a number; `...` for none.
        answer: the right number.
        tolerance: how far a guess may be off.

    Example:
        >>> compare(50, 72)
        it is 72; you said 50
        >>> compare(70, 72)
        close: it is 72; you said 70
        >>> compare(0.55, 0.549, 0.005)
        ✓ yes: 0.549
        >>> compare(..., 72)
        no guess yet: replace the three dots with a number, or read on
    """
    shown = f"{round(float(answer), 4):.12g}"
    if guess is ...:
        print("no guess yet: replace the three dots with a number, or read on")
    elif isinstance(guess, bool) or not isinstance(guess, int | float):
        print("please enter a number")
    elif abs(guess - answer) <= tolerance + 1e-9:
        print(f"✓ yes: {shown}")
    else:
        near = abs(guess - answer) <= CLOSE * abs(answer)
        print(f"{'close: ' if near else ''}it is {shown}; you said {guess}")


def begun(thing: object, lesson: int) -> None:
    """Print a message if the function or class of a lesson is not written yet; print nothing otherwise.

    A notebook calls it before cells that use the function. It is checked, and raises as `check` does.

    Args:
        thing: the function or class of the lesson.
        lesson: its number.

    Example:
        >>> def scores(query, key):
        ...     ...
        >>> begun(scores, 1)
        scores is not written yet. The next cells use it: fill in the cell above, and run it again.
    """
    from clearhead.checking import check  # it imports PyTorch, which no page of a lesson needs

    report = check(thing, lesson=lesson)
    if report.unwritten:
        print(
            f"{report.name} is not written yet. The next cells use it: fill in the cell above, and run it again."
        )
