"""Some of the interrupts and threads of `make soak`, and that it finds what is left behind."""

import pytest

from clearhead.editing import entering
from clearhead.watching.hooks import installing
from tests.soak.interrupted import SCENES, in_threads, interrupted


# A file that was just opened when the interrupt came is closed by who collects it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", SCENES)
def test_an_interrupt_at_any_moment_leaves_nothing(name: str) -> None:
    out, failed = interrupted(name, 40, seed=3)
    assert not failed, "\n".join(failed)
    assert out > 20


def test_edits_in_threads_do_not_meet() -> None:
    assert in_threads(5) == []


def test_edits_that_meet_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        entering,
        "active_edits",
        lambda: [each.edit for each in installing.users() if isinstance(each, entering.Use)],
    )
    failed = in_threads(5)
    assert failed
    assert "beside" in failed[0]
