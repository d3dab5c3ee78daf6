"""A lesson as a notebook, in the format of Jupyter, version 4.5."""

import json
from collections.abc import Iterator
from typing import Any

from clearhead.lessons.lesson import Block, Lesson


def notebook(lesson: Lesson) -> str:
    """The notebook of a lesson as JSON: no outputs yet, and what gives an answer away is folded.

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


def _cells(lesson: Lesson) -> Iterator[dict[str, Any]]:
    for part in lesson.parts:
        if isinstance(part, str):
            yield _text(part)
            continue
        match part.role:
            case "predict":
                name, answer, _ = part.question
                yield _text(part.source)
                yield _code(f"{name} = ...")
                yield _text(_folded("The answer", f"```python\n{answer}\n```"))
            case "solution":
                yield _text(_folded("A solution", f"```python\n{part.source}```"))
            case "wrong":
                choices = ", ".join(f"`{code}`" for code in lesson.codes)
                yield _text(f"```python\n{part.source}```\n\nWhich one is it? {choices}")
                yield _text(_folded("The name of the mistake", f"`{part.words}`"))
            case "python" | "write" | "live" | "check" | "train":
                yield _code(part.source)
            case "text":
                pass  # what is printed comes when the cell is run
            case _:
                yield _text(_fenced(part))


def _fenced(block: Block) -> str:
    return f"```{block.role}\n{block.source}```"


def _folded(summary: str, inside: str) -> str:
    return f"<details>\n<summary>{summary}</summary>\n\n{inside}\n\n</details>"


def _text(source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": source.strip()}


def _code(source: str) -> dict[str, Any]:
    return {
        "cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source.rstrip(),
    }  # fmt: skip
