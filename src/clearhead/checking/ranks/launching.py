"""The ranks that a subject is called on: processes that are started once and make many calls, or those of
the process group that is there."""

import faulthandler
import importlib
import io
import multiprocessing
import os
import re
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import typing_extensions

from clearhead import errors
from clearhead._common.text import exit_words, raised_words
from clearhead._common.writing import temporary_folder
from clearhead.checking.contract import Contract
from clearhead.checking.evidence.base import Settled
from clearhead.checking.ranks.rank_calls import (
    Failure,
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


@dataclass(frozen=True)
class Stuck:
    """A rank that gave no result: what it waited in or was doing, or how its process ended."""

    words: str
    ended: bool = False
    waits: bool = False

    def __str__(self) -> str:
        return self.words


Outcome = RankResult | Stuck


def failed(outcome: Outcome) -> Failure | Stuck | None:
    """The failure of a rank, if there is one."""
    return outcome if isinstance(outcome, Stuck) else outcome.failure


def failures_of(outcomes: Sequence[Outcome]) -> dict[int, Failure | Stuck]:
    """The failures of a call, by rank."""
    found = {rank: failed(each) for rank, each in enumerate(outcomes)}
    return {rank: each for rank, each in found.items() if each is not None}


class Ranks(Protocol):
    """Ranks that make calls."""

    own: bool
    """True for ranks whose processes may end: they are none of the caller's."""

    def run(self, subject: Subject, call: RankCall) -> list[Outcome]:
        """The outcome of a call on every rank."""
        ...


@dataclass(frozen=True, eq=False)
class AskedOfRanks(ABC):
    """Evidence of what ranks do together: what is given, what is declared, and the ranks."""

    given: Subject
    contract: Contract
    seed: int
    ranks: Ranks

    @property
    @abstractmethod
    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcomes of the first call."""

    @cached_property
    @abstractmethod
    def settled(self) -> Settled:
        """The first call, as other evidence has it."""

    @abstractmethod
    def call_error(self, error: Exception) -> ModelError:
        """The error for a subject that no rank can call."""

    @property
    @abstractmethod
    def sizes(self) -> Mapping[str, int]:
        """The sizes that it was run with."""

    @cached_property
    def stuck(self) -> Mapping[int, Failure | Stuck]:
        """The ranks on which the first call failed, where it did not raise on all alike."""
        return self._apart(self.outcomes)

    @staticmethod
    def _apart(outcomes: Sequence[Outcome]) -> Mapping[int, Failure | Stuck]:
        found = failures_of(outcomes)
        is_stuck = any(isinstance(each, Stuck) for each in found.values())
        return {} if len(found) == len(outcomes) and not is_stuck else found


class CallersRanks:
    """The process group of the caller, seen from rank 0; the others `follow`."""

    own = False

    def run(self, subject: Subject, call: RankCall) -> list[Outcome]:
        dist.broadcast_object_list([(subject.dtype, call)], src=0)
        return _in_group(subject, call)

    def finish(self, result: Any) -> None:
        """Send what rank 0 came to."""
        dist.broadcast_object_list([(None, result)], src=0)


def follow(subject: Subject) -> Any:
    """Make the calls that rank 0 asks for, and return what it comes to."""
    while True:
        box: list[Any] = [None]
        dist.broadcast_object_list(box, src=0)
        dtype, what = box[0]
        if dtype is None:
            return what
        _in_group(subject if dtype == subject.dtype else subject.within(dtype), what)


def _in_group(subject: Subject, call: RankCall) -> list[Outcome]:
    mesh = mesh_of_all("cuda" if "nccl" in str(dist.get_backend()) else "cpu")
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, run_on_rank(subject, call, dist.get_rank(), mesh))
    return found


class StartedRanks:
    """Processes of a group on gloo, started when they are first needed and once more after each call
    that did not end on all of them."""

    own = True

    def __init__(self, subject: Subject, world: int) -> None:
        self.subject, self.world = subject, world
        self.dtype = subject.dtype
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._stack = ExitStack()
        self._folder = Path()

    def run(self, subject: Subject, call: RankCall) -> list[Outcome]:
        if not self._processes:
            self._start()
        order = _packed((subject.dtype, call))
        for pipe in self._pipes:
            with suppress(OSError):  # it is gone, which is found below
                pipe.send_bytes(order)
        found = self._collected()
        if any(failed(each) is not None for each in found):
            self.close()
        return found

    def _start(self) -> None:
        # What the first backward pass of a process imports, once for all of them.
        importlib.import_module("torch.fx.experimental.symbolic_shapes")
        # A fork may meet a lock that a thread of this process held just then: it is tried once more.
        why = self._tried() and self._tried()
        if why:
            raise ModelError(
                "check.ranks",
                f"{self.world} ranks on gloo could not be started here: {why}.",
            )

    def _tried(self) -> str:
        """Start the processes: why not, if they are not in their group; nothing if they are."""
        # What is checked may be a closure, which only a fork hands on.
        forks = "fork" in multiprocessing.get_all_start_methods() and not autograd_has_threads()
        context: Any = multiprocessing.get_context("fork" if forks else "spawn")
        self._folder = self._stack.enter_context(temporary_folder())
        pairs = [context.Pipe() for _ in range(self.world)]
        self._pipes = [mine for mine, _ in pairs]
        try:
            for rank, (_, theirs) in enumerate(pairs):
                given = (rank, self.world, str(self._folder), self.subject, theirs)
                ends = [*self._pipes, *(each for _, each in pairs if each is not theirs)]
                others = ends if forks else []
                process = context.Process(target=_serve, args=(*given, others), daemon=True)
                process.start()
                self._processes.append(process)
        except Exception as error:  # objects refuse to be sent in their own ways
            self.close()
            raise ModelError(
                "check.ranks",
                f"{self.subject.name} cannot be sent to other processes, which are not forked here: "
                f"{error}. Put it into a module that can be imported, or check it under torchrun.",
            ) from error
        for _, theirs in pairs:
            theirs.close()
        for rank, pipe in enumerate(self._pipes):
            failed_with = self._begun(rank, pipe)
            if failed_with:
                self.close()
                return f"rank {rank} {failed_with}"
        return ""

    def _begun(self, rank: int, pipe: Connection) -> str:
        """Why a rank is not in the group; nothing if it is."""
        try:
            return _unpacked(pipe.recv_bytes()) if pipe.poll(STARTUP) else "does not begin in time"
        except (EOFError, OSError):
            return str(self._ended(rank))

    def _collected(self) -> list[Outcome]:
        found: dict[int, Outcome] = {}
        deadline = time.monotonic() + WATCHDOG
        waited = dict(enumerate(self._pipes))
        while waited and (left := deadline - time.monotonic()) > 0:
            ready = wait(list(waited.values()), timeout=left)
            for rank, pipe in list(waited.items()):
                if pipe not in ready:
                    continue
                del waited[rank]
                try:
                    found[rank] = _unpacked(pipe.recv_bytes())
                except (EOFError, OSError):
                    found[rank] = self._ended(rank)
                if failed(found[rank]) is not None:
                    deadline = min(deadline, time.monotonic() + GRACE)
        return [found[rank] if rank in found else self._waiting(rank) for rank in range(self.world)]

    def _ended(self, rank: int) -> Stuck:
        """The end of a rank's process, in words."""
        process = self._processes[rank]
        process.join(GRACE)
        how = exit_words(process.exitcode or 0)
        said = self._said(rank, "output").strip().splitlines()
        last = next((each.rpartition("] ")[2] for each in reversed(said) if "what()" in each), "")
        return Stuck(f"ends with {how}{f': {last.strip()}' if last else ''}", ended=True)

    def _waiting(self, rank: int) -> Stuck:
        """The call that a rank hangs in, or goes on with."""
        if hasattr(signal, "SIGUSR1"):
            with suppress(ProcessLookupError):
                os.kill(self._processes[rank].pid, signal.SIGUSR1)
            time.sleep(0.2)
        return left_in(self._said(rank, "frames"))

    def _said(self, rank: int, what: str) -> str:
        path = self._folder / f"{what}-{rank}"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.join()
        self._pipes, self._processes = [], []
        self._stack.close()


def autograd_has_threads() -> bool:
    """True if autograd has begun its threads, one for each accelerator: a fork cannot have a backward
    pass then."""
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        return torch.accelerator.is_available()
    names = [each.read_text() for each in tasks.glob("*/comm")]
    return any(name.startswith("pt_autograd") for name in names)


def _packed(what: Any) -> bytes:
    """Pickle by value for a pipe: the pickler of processes would share the memory of tensors."""
    buffer = io.BytesIO()
    torch.save(what, buffer)
    return buffer.getvalue()


def _unpacked(data: bytes) -> Any:
    with torch.serialization.safe_globals([RankCall, RankResult, Failure]):
        return torch.load(io.BytesIO(data), weights_only=True)


def left_in(frames: str) -> Stuck:
    """Say what a rank without a result was doing, by a traceback of faulthandler: it waited in a collective
    call, or was still running; with the operation, and the line of the checked code."""
    inner, line, waits = "", "", False
    for file, number, name in FRAME.findall(frames):
        place = Path(file)
        if place.parent == RANKS:
            break
        if file.startswith("<frozen importlib"):
            # Nobody called what a module does while it is imported.
            inner, line, waits = "import", "", False
        elif place.is_relative_to(TORCH) or _is_pythons(place):
            # The outermost frame of PyTorch is the operation that was called.
            inner = name if name not in PASSED and not line else inner
            waits |= place.is_relative_to(TORCH / "distributed")
        elif not line and not place.is_relative_to(OURS):
            text = _line(place, int(number))
            waits |= "wait" in text
            by = f"{inner}, called by {text!r}" if inner else repr(text)
            line = f" in {by} ({place.name}, line {number})"
    if not frames.strip():
        return Stuck("does not come back", waits=True)
    where = line or (f" in {inner}" if inner else "")
    words = f"waits{where}" if waits else f"was still running{',' * bool(where)}{where}"
    return Stuck(words, waits=waits)


def _is_pythons(file: Path) -> bool:
    """True for a file of Python itself, beside which packages may be installed."""
    if not file.is_relative_to(PYTHON):
        return str(file) == typing_extensions.__file__
    return not {"site-packages", "dist-packages"} & {*file.relative_to(PYTHON).parts}


def _line(file: Path, number: int) -> str:
    lines = (
        file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
    )
    return lines[number - 1].strip() if number <= len(lines) else ""


def _serve(
    rank: int,
    world: int,
    folder: str,
    subject: Subject,
    pipe: Connection,
    others: Sequence[Connection],
) -> None:
    """A rank: make every call that comes."""
    for each in others:  # a fork has the ends of all
        each.close()
    output = os.open(Path(folder, f"output-{rank}"), os.O_WRONLY | os.O_CREAT)
    for each in (1, 2):
        os.dup2(output, each)
    if hasattr(signal, "SIGUSR1"):
        frames = os.open(Path(folder, f"frames-{rank}"), os.O_WRONLY | os.O_CREAT)
        faulthandler.register(signal.SIGUSR1, file=frames, all_threads=False)
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{Path(folder, 'store')}",
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
