"""`clearhead check` in a separate process, because the checked code may crash or hang.

The report comes back in a file, so that neither output nor an exit code can be mistaken for it.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from clearhead._common.writing import temporary_folder
from clearhead._text import exit_words
from clearhead.errors import ClearheadError, ModelError

if TYPE_CHECKING:
    from clearhead.checking.scanning.sources import Source
    from clearhead.checking.scanning.trial import ScanRow

MAIN = "from clearhead.cli.check_process import main; main()"
SERVE = "from clearhead.cli.check_process import serve; serve()"
# Seconds that importing PyTorch may take, before anything is tried, and between two looks.
START, LOOK = 120.0, 0.02


def checked(asked: dict[str, Any], *, timeout: float, kept: "Kept | None" = None) -> dict[str, Any]:
    """Run `answer` in another process, and return its report as JSON data, or raise its error.

    Args:
        asked: the arguments of `answer`.
        timeout: in seconds.
        kept: the process that forks the other one; None starts a new one.

    Raises:
        ModelError: codes `check.timeout`, and `check.ended` where there is no report.
        ClearheadError: the error that was raised there.
    """
    with _process("check", asked, kept) as (process, found):
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise _timeout(asked["place"], timeout) from error
        if not found.exists():
            raise _ended(asked["place"], code)
        answered = json.loads(found.read_text(encoding="utf-8"))
    if "error" in answered:
        raise ClearheadError(*answered["error"])
    return answered["report"]


def _timeout(place: str, timeout: float) -> ModelError:
    """Return the ModelError, code `check.timeout`, for a check that took too long."""
    return ModelError(
        "check.timeout",
        f"checking {place} took more than {timeout:g} seconds, and was ended; --timeout gives it "
        "more.",
    )


def _ended(place: str, code: int) -> ModelError:
    """Return the ModelError, code `check.ended`, for a check whose process ended with this code before it reported."""
    return ModelError(
        "check.ended",
        f"checking {place} ended its process, with {exit_words(code)}, before there was a report.",
    )


@contextmanager
def _process(
    task: str, asked: dict[str, Any], kept: "Kept | None" = None
) -> Iterator[tuple[Any, Path]]:
    """Yield a process that runs a task, and the file that it writes; it ends with the block unless it is `kept`.

    The files of request and answer are in a temporary folder that goes with the block; FileError if there can be none.
    """
    with temporary_folder() as folder:
        request, found = folder / "asked.json", folder / "found.json"
        whole = {"task": task, "asked": asked, "path": sys.path}
        request.write_text(json.dumps(whole), encoding="utf-8")
        if kept is not None:
            kept.ask(request, found)
            yield kept, found
            return
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", MAIN, str(request), str(found)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield process, found
        finally:
            _end(process)


class Kept:
    """A process that has imported everything a check needs, and forks for each check; it needs POSIX."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: Path, found: Path) -> None:
        """Start the check of a request; its answer is written into `found`. Starts the process if none runs."""
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", SERVE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps([str(request), str(found)])}\n".encode())
        self._process.stdin.flush()

    def wait(self, timeout: float) -> int:
        """Return the exit code of the check that `ask` started; 1 if the process ended.

        Raises:
            subprocess.TimeoutExpired: after `timeout` seconds; the process is ended.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout)[0]:
            self.close()
            raise subprocess.TimeoutExpired("check", timeout)
        return int(self._process.stdout.readline() or 1)

    def close(self) -> None:
        """End the process and its children, and close its pipes; no-op if none runs."""
        if self._process is not None:
            _end(self._process)
            for each in (self._process.stdin, self._process.stdout):
                if each is not None:
                    each.close()
            self._process = None


def serve() -> None:
    """Fork for each line of stdin, until it ends; a line names the files of a request and its answer.

    Print the exit code of the fork.
    """
    import torch.fx.experimental.symbolic_shapes  # noqa: F401 — what the first backward pass imports

    import clearhead.checking.checking  # noqa: F401 — what takes seconds

    answers = os.dup(1)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.argv = ["", *json.loads(line)]
            main()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(answers, f"{code}\n".encode())


def scanned(
    sources: Sequence["Source"], options: dict[str, Any], *, timeout: float
) -> Generator["tuple[Source, str, ScanRow | None]", None, None]:
    """Try definitions in another process, in a new one after each that ended it or was too slow.

    Args:
        sources: the modules, with what is to be tried in each.
        options: the options of each check.
        timeout: in seconds, for each of them.

    Yields:
        The module and the name before it is tried, with None, and with its row after it.

    Raises:
        ModelError: codes `check.ended` and `check.timeout`, for a process that tries nothing.
    """
    from clearhead.checking.scanning.trial import ScanRow, not_made

    left = [(index, [d.name for d in each.definitions]) for index, each in enumerate(sources)]
    while left:
        jobs = [{"index": i, "source": asdict(sources[i]), "names": names} for i, names in left]
        index, name = -1, ""
        with _process("scan", {"options": options, "jobs": jobs}) as (process, found):
            try:
                for index, name, row in _lines(process, found, timeout):
                    if index < 0:
                        return
                    yield sources[index], name, None if row is None else ScanRow(**row)
                error = _ended(name or "a module", process.wait())
            except TimeoutError:
                error = _timeout(name or "a module", timeout)
        if index < 0:
            raise error
        yield sources[index], name, not_made(sources[index], name, error)
        names = dict(left)[index]
        rest = names[names.index(name) + 1 :] if name else []
        left = [(index, rest)] * bool(rest) + [each for each in left if each[0] > index]


def _lines(process: subprocess.Popen[bytes], found: Path, timeout: float) -> Iterator[list[Any]]:
    """Yield the JSON values that a process appends to a file, line by line, until it ends; makes the file.

    Raises:
        TimeoutError: if it writes nothing for `timeout` seconds, or 120 before its first line.
    """
    found.touch()
    with found.open(encoding="utf-8") as stream:
        rest, seen, most = "", time.monotonic(), START
        while True:
            running = process.poll() is None  # what it wrote before it ended is read below
            text = stream.read()
            if text:
                *whole, rest = (rest + text).split("\n")
                seen, most = time.monotonic(), timeout if whole else most
                yield from map(json.loads, whole)
            elif not running:
                return
            elif time.monotonic() - seen > most:
                raise TimeoutError
            else:
                time.sleep(LOOK)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and, where the system has process groups, its children; wait for it. No-op if it is gone."""
    with suppress(OSError):  # it is gone
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Return {"report": JSON data} of a check, or {"error": [code, message]}.

    The error is a ClearheadError; any other is raised.
    """
    from clearhead.cli.progress import busy

    try:
        import clearhead as ch

        with busy("checking"):
            report = ch.check(asked["place"], **_arguments(asked["options"]))
        return {"report": report.as_dict()}
    except ClearheadError as error:
        return {"error": [error.code, error.message]}


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of `check` from its options as JSON data: a tuple as "window", slopes instead of "alibi"."""
    import clearhead as ch

    found = dict(options)
    if "window" in found:
        found["window"] = tuple(found["window"])
    if found.pop("alibi", False):
        found["alibi_slopes"] = cast(Any, ch.alibi(found["num_heads"])).slopes
    return found


def scan(jobs: list[dict[str, Any]], options: dict[str, Any]) -> Iterator[list[Any]]:
    """Yield [index, name, row] for each tried definition, as JSON data, row None before it is tried; at last index −1.

    Runs the code of the jobs; modules of a folder are removed from sys.modules after it.
    """
    import clearhead as ch
    from clearhead.checking.scanning.sources import Definition, Source
    from clearhead.checking.scanning.trial import tried_in

    declared = _arguments(options)
    takes, seed = declared.pop("takes"), declared.pop("seed")
    contract = ch.Contract(**declared)
    # What PyTorch imports at the first call is no time of what is tried first.
    ch.check("torch.nn.functional:scaled_dot_product_attention", takes="qkv")
    for job in jobs:
        made = tuple(Definition(**each) for each in job["source"]["definitions"])
        source = Source(**{**job["source"], "definitions": made})
        modules, path = set(sys.modules), list(sys.path)
        for name, row in tried_in(source, job["names"], contract, takes, seed):
            yield [job["index"], name, None if row is None else asdict(row)]
        if source.module.endswith(".py"):
            _forget(modules, path, Path(source.file).resolve().parent)
    yield [-1, "", None]


def _forget(modules: set[str], path: list[str], folder: Path) -> None:
    """Restore sys.path, and remove new modules from this folder from sys.modules; another may have the same names."""
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        file = getattr(sys.modules[name], "__file__", None)
        if "." not in name and file is not None and Path(file).parent == folder:
            del sys.modules[name]


def main() -> None:
    """Answer the request in the file argv[1] into the file argv[2], and end the process with code 0.

    Sets sys.path and sys.argv, and sends stdout to stderr; of a scan, both to nowhere.
    """
    request, found = map(Path, sys.argv[1:])
    given = json.loads(request.read_text(encoding="utf-8"))
    sys.path[:] = given["path"]
    asked = given["asked"]
    if given["task"] == "scan":
        sys.argv = ["clearhead"]
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)  # what a whole package prints would hide the table
        os.dup2(nowhere, 2)
        with found.open("a", encoding="utf-8") as stream:
            for each in scan(**asked):
                stream.write(json.dumps(each) + "\n")
                stream.flush()
        os._exit(0)
    sys.argv = [asked["place"]]
    os.dup2(2, 1)  # what is printed is no part of the report
    written = json.dumps(answer(asked))
    part = found.with_suffix(".part")
    part.write_text(written, encoding="utf-8")
    os.replace(part, found)
    sys.stderr.flush()
    os._exit(0)  # nothing of what was checked runs any more
