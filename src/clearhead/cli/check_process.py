"""`clearhead check` in a process of its own: the checked code may end it, hang or fill the memory.

Answers come back by a pipe that was its standard output, so that nothing that the code prints is taken for one.
"""

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearhead._text import exit_words, raised_words, readable
from clearhead.errors import ClearheadError, ModelError

if TYPE_CHECKING:
    from clearhead.checking.report import Report
    from clearhead.checking.scanning.sources import Source
    from clearhead.checking.scanning.trial import ScanRow

MAIN = "from clearhead.cli.check_process import main; main()"
START = 120.0
"""Seconds that importing PyTorch may take, before anything is tried."""

ENDED = object()


def checked(task: str, asked: dict[str, Any], *, timeout: float, memory: float | None) -> "Report":
    """Return the report of a task, `report` or `trained`, that runs in another process.

    Args:
        task: the name of the function.
        asked: its arguments.
        timeout: in seconds.
        memory: the memory limit of the process, in GB; None for no limit.

    Raises:
        ModelError: codes `check.timeout`, and `check.ended` if there is no report.
        ClearheadError: the error that was raised there.
    """
    found = next(_answers(task, asked, memory, asked["place"], timeout, timeout))
    if isinstance(found, tuple):
        raise ClearheadError(*found)
    return found


def scanned(
    sources: Sequence["Source"], asked: dict[str, Any], *, timeout: float, memory: float | None
) -> Generator["tuple[Source, str, ScanRow | None]", None, None]:
    """Try definitions in another process, in a new one after each that ended it or was too slow.

    Args:
        sources: the modules, with the definitions to try in each.
        asked: the declaration; the arguments of `scan` except the jobs.
        timeout: in seconds, for each of them.
        memory: the memory limit of the process, in GB; None for no limit.

    Yields:
        The module and the name before it is tried, with None, and with its row after it.

    Raises:
        ModelError: code `check.ended`, if the process ends before it tries anything.
    """
    from clearhead.checking.scanning.trial import not_made

    left = [(index, [d.name for d in source.definitions]) for index, source in enumerate(sources)]
    while left:
        jobs = [(index, sources[index], names) for index, names in left]
        index, name = -1, ""
        try:
            for index, name, row in _answers(
                "scan", {**asked, "jobs": jobs}, memory, "a module", START, timeout
            ):
                if index < 0:
                    return
                yield sources[index], name, row
        except ModelError as error:
            if index < 0:
                raise
            yield sources[index], name, not_made(sources[index], name, error)
        names = dict(left)[index]
        rest = names[names.index(name) + 1 :] if name else []
        left = [(index, rest)] * bool(rest) + [job for job in left if job[0] > index]


def _answers(
    task: str,
    asked: dict[str, Any],
    memory: float | None,
    place: str,
    first: float,
    timeout: float,
) -> Iterator[Any]:
    """Yield what a task yields in another process; it may take `first` seconds to begin, then `timeout` for each.

    Raises:
        ModelError: codes `check.timeout` and `check.ended`.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", MAIN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    answers: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_read, args=(process.stdout, answers), daemon=True).start()
    limit = first
    try:
        with suppress(OSError), process.stdin as request:  # it may have ended already
            pickle.dump((task, asked, memory, sys.path), request)
        while (answer := answers.get(timeout=limit)) is not ENDED:
            yield answer
            limit = timeout
    except queue.Empty:
        words = f"checking {place} took more than {limit:g} seconds, and was ended; --timeout gives it more."
        raise ModelError("check.timeout", words) from None
    finally:
        with suppress(OSError):  # it is gone, with the processes that it started
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        code = process.wait()
    words = (
        f"checking {place} ended its process, with {exit_words(code)}, before there was a report."
    )
    raise ModelError("check.ended", words)


def _read(stream: Any, answers: "queue.Queue[Any]") -> None:
    """Put the objects of a stream into a queue, and ENDED after the last."""
    with suppress(EOFError, OSError, pickle.UnpicklingError), stream:
        while True:
            answers.put(pickle.load(stream))
    answers.put(ENDED)


def report(place: str, options: dict[str, Any]) -> "Report":
    """Return the report about a class or function."""
    import clearhead as ch

    return ch.check(place, **options)


def trained(place: str, arguments: dict[str, Any]) -> "Report":
    """Return the report about the training script that a function returns."""
    from clearhead import testing

    return replace(testing.check_training(**made(place, arguments)), name=place)


def made(place: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return what a function returns that makes a training script, as the arguments of `check_training`.

    Raises:
        ModelError: code `trains.make`, if it raises, or returns something else.
    """
    import inspect

    from clearhead.checking.subject.locating import located
    from clearhead.testing import check_training

    try:
        found = located(place)(**arguments)
    except ClearheadError:
        raise
    except Exception as error:
        raise ModelError(
            "trains.make", f"{place} could not be called: {raised_words(error)}"
        ) from error
    known = list(inspect.signature(check_training).parameters)
    script = known[:4]
    if isinstance(found, tuple) and len(found) == len(script):
        return dict(zip(script, found, strict=True))
    if isinstance(found, dict) and set(script) <= set(found) <= set(known):
        return found
    got = ", ".join(map(str, found)) if isinstance(found, dict) else type(found).__name__
    raise ModelError(
        "trains.make",
        f"{place} must return ({', '.join(script)}), or a dict of these and of other arguments of "
        f"check_training; got {readable(got)}.",
    )


def scan(
    jobs: Sequence[tuple[int, "Source", Sequence[str]]],
    declared: Mapping[str, Any],
    takes: str | None,
    seed: int,
) -> Iterator[tuple[int, str, "ScanRow | None"]]:
    """Try the definitions of modules: yield index, name and row; at last index −1."""
    import clearhead as ch
    from clearhead.checking.scanning.trial import tried_in

    contract = ch.Contract(**declared)
    # What PyTorch imports at the first call is no time of what is tried first.
    ch.check("torch.nn.functional:scaled_dot_product_attention", takes="qkv")
    for index, source, names in jobs:
        modules, path = set(sys.modules), list(sys.path)
        for name, row in tried_in(source, names, contract, takes, seed):
            yield index, name, row
        if source.module.endswith(".py"):
            _forget(modules, path, Path(source.file).resolve().parent)
    yield -1, "", None


def _forget(modules: set[str], path: list[str], folder: Path) -> None:
    """Forget the modules that are next to a file: another folder may have others of their names."""
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        file = getattr(sys.modules[name], "__file__", None)
        if "." not in name and file is not None and Path(file).parent == folder:
            del sys.modules[name]


def main() -> None:
    """Do the task that the standard input names, and write its answers to what was the standard output."""
    from clearhead.cli.progress import busy

    task, asked, memory, sys.path[:] = pickle.load(sys.stdin.buffer)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if task == "scan":
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), 2
        )  # what a whole package prints would hide the table
    os.dup2(2, 1)
    sys.argv = [asked.get("place", "clearhead")]
    if memory is not None:
        _limit(memory)
    if task == "scan":
        found = scan(**asked)
    else:
        with busy("checking"):
            found = [_reported(task, asked)]
    for answer in found:
        pickle.dump(answer, answers)
        answers.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing of what was checked runs any more


def _reported(task: str, asked: dict[str, Any]) -> "Report | tuple[str, str]":
    """Return the report of a task, or the code and the message of the error."""
    try:
        return {"report": report, "trained": trained}[task](**asked)
    except ClearheadError as error:
        return error.code, error.message


def _limit(memory: float) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = int(memory * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if most < 0 else min(limit, most), most))
