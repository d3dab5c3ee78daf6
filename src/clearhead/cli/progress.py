"""Messages next to the output of a command: progress, and locations of files."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.text import Text

from clearhead._text import readable

Progress = Callable[[str, float], None]
"""Called with a task, and the share of it that is done."""


def say(console: Console, words: str) -> None:
    """Print a line, made printable, that only the terminal wraps, so that a path in it can be copied."""
    console.print(Text(readable(words)), soft_wrap=True)


def has_terminal(console: Console) -> bool:
    """Return True if lines can be overwritten; a log with forced colours is not a terminal."""
    return console.is_terminal and console.file.isatty()


@contextmanager
def busy(words: str) -> Iterator[None]:
    """Show a message on stderr while a block runs; a no-op where that is no terminal."""
    notes = Console(stderr=True)
    if not has_terminal(notes):
        yield
        return
    with notes.status(words, spinner="line"):  # of ASCII
        yield


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Yield a function of a task and its share done that shows a progress bar on stderr; a no-op without a terminal."""
    notes = Console(stderr=True)
    if not has_terminal(notes):
        yield lambda doing, done: None
        return
    from rich.progress import Progress

    with Progress(console=notes, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def report(doing: str, done: float) -> None:
            """Show the share of a task that is done, from 0 to 1."""
            if doing not in tasks:
                tasks[doing] = bars.add_task(doing, total=1.0)
            bars.update(tasks[doing], completed=done)

        yield report
