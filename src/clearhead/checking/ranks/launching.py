"""The ranks that a subject is called on: processes that make many calls, or those of the caller's process group."""

import faulthandler
import importlib
import io
import linecache
import multiprocessing
import os
import re
import signal
import time
from contextlib import ExitStack, suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import typing_extensions

from clearhead import errors
from clearhead._common.writing import temporary_folder
from clearhead._text import exit_words, raised_words
from clearhead.checking.ranks.rank_calls import (
    Failure,
    Outcome,
    RankCall,
    RankResult,
    mesh_of_all,
    run_on_rank,
)
from clearhead.checking.subject.subject import Subject
from clearhead.errors import ModelError

WATCHDOG = 60.0
"""Seconds after which a call is ended."""

STARTUP = 60.0
"""Seconds that a process has to begin."""

GRACE = 3.0
"""Seconds that the other ranks have once one has failed."""

RANKS = Path(__file__).parent
OURS = Path(errors.__file__).parent
TORCH = Path(torch.__file__).parent
PYTHON = Path(os.__file__).parent
"""Folders, for a user's may have the name of any package."""

PASSED = ("wrapper", "_call_impl", "_wrapped_call_impl")

FRAME = re.compile(r'  File "(.+)", line (\d+) in (\S+)')


class CallersRanks:
    """The process group of the caller, in which every rank makes the same calls."""

    own = False

    def run(self, subject: Subject, call: RankCall) -> list[Outcome]:
        """Return the outcome of a call on every rank, gathered on all of them; every rank must call this."""
        mesh = mesh_of_all("cuda" if "nccl" in str(dist.get_backend()) else "cpu")
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, run_on_rank(subject, call, dist.get_rank(), mesh))
        return found


class StartedRanks:
    """Processes of a group on gloo.

    They are started when they are first needed, and again after each call that did not end on all of them.
    """

    own = True

    def __init__(self, subject: Subject, world: int) -> None:
        """Prepare `world` processes that call the subject; none is started yet."""
        self.subject, self.world = subject, world
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._stack = ExitStack()
        self._folder = Path()

    def run(self, subject: Subject, call: RankCall) -> list[Outcome]:
        """Return the outcome of a call on every rank, in order; start the processes first if there are none.

        They call the constructor's subject, in the dtype of `subject`. A failed rank is a Failure, and all end.
        ModelError, `check.ranks`, if two starts fail, or at once if the subject cannot be sent to the processes.
        """
        if not self._processes:
            # What the first backward pass of a process imports, once for all of them.
            importlib.import_module("torch.fx.experimental.symbolic_shapes")
            # A fork may meet a lock that a thread of this process held just then: it is tried once more.
            why = self._start() and self._start()
            if why:
                words = f"{self.world} ranks on gloo could not be started here: {why}."
                raise ModelError("check.ranks", words)
        order = _packed((subject.dtype, call))
        for pipe in self._pipes:
            with suppress(OSError):  # it is gone, which is found below
                pipe.send_bytes(order)
        found = self._collected()
        if any(isinstance(each, Failure) for each in found):
            self.close()
        return found

    def _start(self) -> str:
        """Start the processes; return why one is not in the group, after ending all, and "" if all are in it.

        Raises ModelError, code `check.ranks`, if the subject cannot be pickled where processes are not forked.
        """
        # What is checked may be a closure, which only a fork can copy.
        forks = "fork" in multiprocessing.get_all_start_methods() and not autograd_has_threads()
        context: Any = multiprocessing.get_context("fork" if forks else "spawn")
        self._folder = self._stack.enter_context(temporary_folder())
        pairs = [context.Pipe() for _ in range(self.world)]
        self._pipes = [mine for mine, _ in pairs]
        try:
            for rank, (_, theirs) in enumerate(pairs):
                ends = [*self._pipes, *(each for _, each in pairs if each is not theirs)] * forks
                given = (rank, self.world, self._folder, self.subject, theirs, ends)
                process = context.Process(target=_serve, args=given, daemon=True)
                process.start()
                self._processes.append(process)
        except Exception as error:  # objects refuse to be pickled in their own ways
            self.close()
            raise ModelError(
                "check.ranks",
                f"{self.subject.name} cannot be sent to other processes, which are not forked here: "
                f"{error}. Put it into a module that can be imported, or check it under torchrun.",
            ) from error
        for _, theirs in pairs:
            theirs.close()
        for rank, pipe in enumerate(self._pipes):
            try:
                why = (
                    _unpacked(pipe.recv_bytes()) if pipe.poll(STARTUP) else "does not start in time"
                )
            except (EOFError, OSError):
                why = str(self._ended(rank))
            if why:
                self.close()
                return f"rank {rank} {why}"
        return ""

    def _collected(self) -> list[Outcome]:
        """Return the outcome of each rank, in order; a Failure for a rank that ended or did not answer in time.

        After the first failure the other ranks have `GRACE` seconds.
        """
        found: dict[int, Outcome] = {}
        deadline = time.monotonic() + WATCHDOG
        waited = dict(enumerate(self._pipes))
        while waited and (left := deadline - time.monotonic()) > 0:
            ready = wait(list(waited.values()), timeout=left)
            for rank, pipe in [each for each in waited.items() if each[1] in ready]:
                del waited[rank]
                try:
                    found[rank] = _unpacked(pipe.recv_bytes())
                except (EOFError, OSError):
                    found[rank] = self._ended(rank)
                if isinstance(found[rank], Failure):
                    deadline = min(deadline, time.monotonic() + GRACE)
        return [found[rank] if rank in found else self._waiting(rank) for rank in range(self.world)]

    def _ended(self, rank: int) -> Failure:
        """Return a Failure with the exit status of a rank's process, and the last error that PyTorch printed."""
        self._processes[rank].join(GRACE)
        lines = [each for each in self._written("output", rank).splitlines() if "what()" in each]
        last = f": {lines[-1].rpartition('] ')[2].strip()}" if lines else ""
        return Failure(
            "ended", f"ends with {exit_words(self._processes[rank].exitcode or 0)}{last}"
        )

    def _waiting(self, rank: int) -> Failure:
        """Return a Failure with the call that a rank hangs in or is still running; its process is asked by a signal."""
        if hasattr(signal, "SIGUSR1"):
            with suppress(ProcessLookupError):
                os.kill(self._processes[rank].pid, signal.SIGUSR1)
            time.sleep(0.2)
        return left_in(self._written("frames", rank))

    def _written(self, name: str, rank: int) -> str:
        """Return what a rank wrote to the file of this name, or "" if there is no such file."""
        path = self._folder / f"{name}-{rank}"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def close(self) -> None:
        """Kill the processes, and remove their folder; a no-op if none runs."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.join()
        self._pipes, self._processes = [], []
        self._stack.close()


def autograd_has_threads() -> bool:
    """Return True if autograd has started its threads, with which a fork cannot run a backward pass.

    Without /proc: True if there is an accelerator.
    """
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        return torch.accelerator.is_available()
    names = [each.read_text() for each in tasks.glob("*/comm")]
    return any(name.startswith("pt_autograd") for name in names)


def _packed(what: Any) -> bytes:
    """Return an object serialized by value for a pipe; the pickler of processes would share the memory of tensors."""
    buffer = io.BytesIO()
    torch.save(what, buffer)
    return buffer.getvalue()


def _unpacked(data: bytes) -> Any:
    """Return the object that `_packed` serialized; UnpicklingError if it holds a class that ranks do not send."""
    with torch.serialization.safe_globals([RankCall, RankResult, Failure]):
        return torch.load(io.BytesIO(data), weights_only=True)


def left_in(frames: str) -> Failure:
    """Return a Failure with what a rank without a result was doing: "hangs" in a collective call, else "runs".

    Args:
        frames: a traceback of faulthandler, innermost frame first; "" counts as hanging.
    """
    inner, text, at, waits = "", "", None, not frames.strip()
    for file, number, name in FRAME.findall(frames):
        place = Path(file)
        if place.parent == RANKS:
            break
        if file.startswith("<frozen importlib"):
            # Nobody called what a module does while it is imported.
            inner, text, at, waits = "import", "", None, False
        elif place.is_relative_to(TORCH) or _is_pythons(place):
            # The outermost frame of PyTorch is the operation that was called.
            inner = name if name not in PASSED and at is None else inner
            waits |= place.is_relative_to(TORCH / "distributed")
        elif at is None and not place.is_relative_to(OURS):
            text, at = linecache.getline(file, int(number)).strip(), (file, int(number))
            waits |= "wait" in text
    where = ", called by ".join(filter(None, (inner, repr(text) * (at is not None))))
    words = f"{'waits' if waits else 'was still running'}{f' in {where}' * bool(where)}"
    return Failure("hangs" if waits else "runs", words, at)


def _is_pythons(file: Path) -> bool:
    """Return True for a file of Python's standard library or of typing_extensions, False for other packages."""
    if not file.is_relative_to(PYTHON):
        return str(file) == typing_extensions.__file__
    return not {"site-packages", "dist-packages"} & {*file.relative_to(PYTHON).parts}


def _serve(
    rank: int,
    world: int,
    folder: Path,
    subject: Subject,
    pipe: Connection,
    others: list[Connection],
) -> None:
    """Run as one rank: join the group, then make every call that comes through the pipe; then end the process.

    First "" is sent, or why the group cannot be joined, in which case it returns. stdout and stderr go to a file in
    `folder`, and a traceback at SIGUSR1 to another.
    """
    for each in others:  # a fork has the ends of all
        each.close()
    output = os.open(folder / f"output-{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if hasattr(signal, "SIGUSR1"):
        frames = os.open(folder / f"frames-{rank}", os.O_WRONLY | os.O_CREAT)
        faulthandler.register(signal.SIGUSR1, file=frames, all_threads=False)
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder / 'store'}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=3 * WATCHDOG),
        )
        mesh = mesh_of_all("cpu")
    except Exception as error:  # a host without a name, a network without an address
        pipe.send_bytes(_packed(f"raises {raised_words(error)}"))
        return
    pipe.send_bytes(_packed(""))
    subjects = {subject.dtype: subject}
    while True:
        try:
            dtype, call = _unpacked(pipe.recv_bytes())
        except EOFError:
            os._exit(0)
        if dtype not in subjects:
            subjects[dtype] = subject.within(dtype)
        pipe.send_bytes(_packed(run_on_rank(subjects[dtype], call, rank, mesh)))
