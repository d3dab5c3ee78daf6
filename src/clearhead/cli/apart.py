"""`clearhead check` in a process of its own: what is checked may end it, hang or fill the memory.

The report comes back in a file, so that nothing that is printed can be taken for it, and no exit code.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from clearhead.errors import ClearheadError, ModelError

MAIN = "from clearhead.cli.apart import main; main()"


def checked(asked: dict[str, Any], *, timeout: float, memory: float | None) -> dict[str, Any]:
    """Run `answer` in another process, and return what it found, or raise its error.

    Args:
        asked: the arguments of `answer`.
        timeout: in seconds.
        memory: how much the process may hold, in GB; None for no limit.

    Raises:
        ModelError: codes `check.timeout`, and `check.ended` where there is no report.
        ClearheadError: the error that was raised there.
    """
    answered = _run(asked, timeout, memory)
    if "error" in answered:
        raise ClearheadError(*answered["error"])
    return answered


def _run(asked: dict[str, Any], timeout: float, memory: float | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="clearhead-") as folder:
        request, found = Path(folder, "asked.json"), Path(folder, "found.json")
        limits = {"memory": memory, "path": sys.path}
        request.write_text(json.dumps({"asked": asked, **limits}), encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", MAIN, str(request), str(found)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise ModelError(
                "check.timeout",
                f"checking {asked['place']} took more than {timeout:g} seconds, and was ended; "
                "--timeout gives it more.",
            ) from error
        finally:
            _end(process)
        if not found.exists():
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise ModelError(
                "check.ended",
                f"checking {asked['place']} ended its process, with {how}, before there was a "
                "report.",
            )
        return json.loads(found.read_text(encoding="utf-8"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, with those that it started."""
    with suppress(OSError):  # it is gone
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def answer(
    place: str,
    options: dict[str, Any],
    slopes: list[float] | None,
    lengths: list[int] | None,
) -> dict[str, Any]:
    """The report, and the costs where lengths are given, as what JSON knows; or the error."""
    from clearhead.cli.progress import busy, progress_bars

    try:
        import torch

        import clearhead as ch

        if slopes is not None:
            options = {**options, "alibi_slopes": torch.tensor(slopes)}
        with busy("checking"):
            report = ch.check(place, **options)
        found: dict[str, Any] = {"report": report.as_dict()}
        if lengths is not None:
            with progress_bars() as progress:
                costs = ch.profile(place, **options, lengths=lengths, progress=progress)
            html = costs._repr_html_()
            found["profile"] = {"text": str(costs), "dict": costs.as_dict(), "html": html}
        return found
    except ClearheadError as error:
        return {"error": [error.code, error.message]}


def main() -> None:
    """Answer the request in the first file into the second."""
    request, found = map(Path, sys.argv[1:])
    given = json.loads(request.read_text(encoding="utf-8"))
    sys.path[:] = given["path"]
    sys.argv = [given["asked"]["place"]]
    os.dup2(2, 1)  # what is printed is no part of the report
    if given["memory"] is not None:
        _limit(given["memory"])
    written = json.dumps(answer(**given["asked"]))
    part = found.with_suffix(".part")
    part.write_text(written, encoding="utf-8")
    os.replace(part, found)
    sys.stderr.flush()
    os._exit(0)  # nothing of what was checked runs any more


def _limit(memory: float) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = int(memory * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if most < 0 else min(wanted, most), most))
