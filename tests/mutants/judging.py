"""Runs of tests against mutants: one collection, then a forked process for each mutant.

A child makes the functions of the mutant its own and runs the tests that call them, until one fails. So a mutant costs
neither an import nor a collection.
"""

import contextlib
import json
import multiprocessing
import multiprocessing.util
import os
import resource
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from tests.mutants.mutation import Mutant, apply, functions, mutated
from tests.surface import SOURCE

# A test that takes longer under a mutant than this, in seconds of CPU, and than so many times of what it takes, failed.
PATIENCE = 10.0
TIMES = 10.0
# A test that takes longer without a mutant, as where code is compiled, judges none.
LONGEST = 3.0
# What only waits, for a process that died or a message that never comes.
WALL = 240.0
# Bytes that a mutant may ask for beyond what the collection holds.
MEMORY = 8 << 30


class SlowError(BaseException):
    """A test under a mutant takes too long."""


def slow(*_: object) -> None:
    raise SlowError


@dataclass
class Ran:
    """One test as it is without a mutant: its time of CPU in seconds, and the functions that it calls."""

    seconds: float
    calls: set[tuple[str, str]] = field(default_factory=set)


def child(work: Callable[[Callable[[object], None]], None]) -> Iterator[object]:
    """Run `work` in a fork and yield what it tells, line by line."""
    reads, writes = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(reads)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        with os.fdopen(writes, "w", buffering=1) as out:
            try:
                work(lambda told: print(json.dumps(told), file=out))
            finally:
                out.flush()
                os._exit(0)
    os.close(writes)
    try:
        yield from lines(reads)
    finally:
        os.close(reads)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def lines(reads: int) -> Iterator[object]:
    """What comes through the pipe until it is closed or nothing came for `WALL` seconds."""
    kept = b""
    while select.select([reads], [], [], WALL)[0]:
        came = os.read(reads, 1 << 16)
        if not came:
            return
        *whole, kept = (kept + came).split(b"\n")
        yield from map(json.loads, whole)


def fork_ranks() -> None:
    """Have groups of processes forked from here: a server of forks has the functions as they were."""
    real: Any = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: real(
        "fork" if method == "forkserver" else method
    )


class Calls:
    """The functions of the package that are called in this process and in those that it starts."""

    def __init__(self, folder: Path) -> None:
        self.codes: set[CodeType] = set()
        self.folder = folder
        multiprocessing.util.register_after_fork(self, Calls._in_other)

    def _in_other(self) -> None:
        self.codes.clear()
        multiprocessing.util.Finalize(None, self._leave, exitpriority=100)

    def _leave(self) -> None:
        sys.setprofile(None)
        (self.folder / str(os.getpid())).write_text(json.dumps(self.ours()))

    def note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self.codes.add(frame.f_code)

    def ours(self) -> list[tuple[str, str]]:
        return sorted(
            {
                (
                    str(Path(code.co_filename).relative_to(SOURCE)),
                    code.co_qualname.replace(".<locals>", ""),
                )
                for code in self.codes
                if code.co_filename.startswith(str(SOURCE))
            }
        )

    def take(self) -> list[tuple[str, str]]:
        """Those since the last time."""
        found = {*self.ours()}
        for file in self.folder.iterdir():
            found |= {tuple(each) for each in json.loads(file.read_text())}
            file.unlink()
        self.codes.clear()
        return sorted(found)


class Judge:
    """A plugin of pytest that runs what was collected under one mutant after the other.

    `ask` says which; it is handed the judge when the tests are collected.
    """

    def __init__(self, ask: Callable[["Judge"], None]) -> None:
        self.ask = ask
        self.items: dict[str, pytest.Item] = {}
        self.failed = self.skipped = False
        self.functions: dict[str, list[FunctionType]] = {}

    def pytest_collection(self) -> None:
        """A mutant dies by the first example that fails; a smaller one is not looked for."""
        import hypothesis  # not before pytest, which rewrites what it registers

        hypothesis.settings.register_profile(
            "mutants",
            parent=hypothesis.settings.get_profile("clearhead"),
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        )
        hypothesis.settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.session = session
        self.items = {item.nodeid: item for item in session.items}
        # All children write below one folder, which goes with the parent.
        factory: pytest.TempPathFactory = getattr(session.config, "_tmp_path_factory")  # noqa: B009
        factory.getbasetemp()
        self.ask(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed
        self.skipped |= report.skipped

    def _run(self, item: pytest.Item, after: pytest.Item | None, seconds: float) -> bool:
        """Whether the test passes."""
        self.failed = self.skipped = False
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 1)
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        except (SlowError, KeyboardInterrupt, SystemExit, pytest.exit.Exception):
            self.failed = True
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        return not self.failed

    def plain(self, names: Iterable[str]) -> dict[str, Ran]:
        """Each of these tests that passes without a mutant, and what it calls of the package."""
        wanted = [self.items[name] for name in names if name in self.items]

        def work(tell: Callable[[object], None]) -> None:
            signal.signal(signal.SIGVTALRM, slow)
            fork_ranks()
            with tempfile.TemporaryDirectory() as folder:
                calls = Calls(Path(folder))
                for item, after in zip(wanted, [*wanted[1:], None], strict=True):
                    began = time.process_time()
                    threading.setprofile(calls.note)
                    sys.setprofile(calls.note)
                    passed = self._run(item, after, LONGEST)
                    sys.setprofile(None)
                    threading.setprofile(None)
                    took = time.process_time() - began
                    tell((item.nodeid, passed and not self.skipped, took, calls.take()))

        found: dict[str, Ran] = {}
        for name, passed, took, calls in child(work):  # pyright: ignore[reportGeneralTypeIssues]
            if passed:
                found[name] = Ran(took, {tuple(each) for each in calls})
        return found

    def killer(self, mutant: Mutant, names: Sequence[str], ran: dict[str, Ran]) -> str | None:
        """The first of these tests that fails under the mutant."""
        if mutant.module not in self.functions:
            self.functions[mutant.module] = functions(mutant.module)
        among = self.functions[mutant.module]
        code = mutated(mutant)
        wanted = [self.items[name] for name in names]

        def work(tell: Callable[[object], None]) -> None:
            signal.signal(signal.SIGVTALRM, slow)
            fork_ranks()
            tell(apply(code, among))
            for item, after in zip(wanted, [*wanted[1:], None], strict=True):
                tell(item.nodeid)
                if not self._run(item, after, PATIENCE + TIMES * ran[item.nodeid].seconds):
                    tell("killed")
                    # What the fixtures hold, such as processes, goes with them.
                    self.session._setupstate.teardown_exact(None)
                    return
            tell("lives")

        last = ""
        for told in child(work):
            if told == 0:
                raise LookupError(f"no function to change: {mutant}")
            if told == "killed":
                return last
            if told == "lives":
                return None
            last = str(told)
        # The process died, or waited for ever.
        return last
