"""Calls that stand in the cells of a notebook of the course."""

from clearhead.checking import check


def compare(guess: object, answer: float, tolerance: float = 0.0) -> None:
    """Print how a guess stands to the answer; nothing is stored, and nobody has to guess.

    Args:
        guess: a number; `...` for none.
        answer: what is so.
        tolerance: how far a guess may be off.

    Example:
        >>> compare(70, 72)
        it is 72; you said 70
        >>> compare(0.55, 0.549, 0.005)
        ✓ yes: 0.549
        >>> compare(..., 72)
        no guess yet: write a number in the place of the three dots, or read on
    """
    shown = f"{round(float(answer), 4):.12g}"
    if guess is ...:
        print("no guess yet: write a number in the place of the three dots, or read on")
    elif isinstance(guess, bool) or not isinstance(guess, int | float):
        print("a number, please")
    elif abs(guess - answer) <= tolerance + 1e-9:
        print(f"✓ yes: {shown}")
    else:
        print(f"it is {shown}; you said {guess}")


def begun(thing: object, lesson: int) -> None:
    """Print what of a lesson is not written yet, before cells that use it fail; nothing, if all is.

    Args:
        thing: the function or class of the lesson.
        lesson: its number.

    Example:
        >>> def scores(query, key):
        ...     ...
        >>> begun(scores, 1)
        scores is not written yet. What follows uses it: fill in the cell above, and run it again.
    """
    report = check(thing, lesson=lesson)
    if report.unwritten:
        print(
            f"{report.name} is not written yet. What follows uses it: fill in the cell above, and run it again."
        )
