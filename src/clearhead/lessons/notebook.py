"""A lesson as a notebook, in the format of Jupyter, version 4.5."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from clearhead._common.docs_pages import docs
from clearhead.lessons.lesson import ROLES, Block, Lesson

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
            yield _code("from clearhead.lessons.page_cells import begun, judge")
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
