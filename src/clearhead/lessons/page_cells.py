"""Functions that the cells of a notebook of the course call."""

from collections.abc import Mapping
from typing import Any

from clearhead.checking import check
from clearhead.lessons.lesson import read_lesson

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

    A notebook calls it before cells that use the function.

    Args:
        thing: the function or class of the lesson.
        lesson: its number.

    Example:
        >>> def scores(query, key):
        ...     ...
        >>> begun(scores, 1)
        scores is not written yet. The next cells use it: fill in the cell above, and run it again.
    """
    report = check(thing, lesson=lesson)
    if report.unwritten:
        print(
            f"{report.name} is not written yet. The next cells use it: fill in the cell above, and run it again."
        )
