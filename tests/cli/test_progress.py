"""Progress of a command: on a terminal only."""

import io

import pytest
from rich.console import Console

from clearhead.cli import progress


class Screen(io.StringIO):
    """A file that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(params=[True, False])
def notes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Console:
    file = Screen() if request.param else io.StringIO()
    console = Console(file=file, force_terminal=request.param, width=60)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    return console


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_tasks_have_bars(notes: Console) -> None:
    with progress.progress_bars() as report:
        for done in (0.5, 1.0):
            report("reading", done)
        report("drawing", 0.25)
    assert [word in written(notes) for word in ("reading", "drawing", "100%")] == [
        notes.is_terminal
    ] * 3


def test_one_thing_that_takes_long(notes: Console) -> None:
    with progress.busy("loading"):
        pass
    assert ("loading" in written(notes)) == notes.is_terminal


def test_a_path_is_shown_and_never_obeyed() -> None:
    console = Console(file=io.StringIO(), width=20)
    progress.say(console, "it is in /a/long/path/\x1b[31m [red]a.html")
    assert written(console) == "it is in /a/long/path/\\x1b[31m [red]a.html\n"


def test_forced_colours_in_a_log_are_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same line stood there a hundred times."""
    console = Console(file=io.StringIO(), force_terminal=True, width=60)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    with progress.busy("loading"), progress.progress_bars() as report:
        report("reading", 0.5)
    assert written(console) == ""
