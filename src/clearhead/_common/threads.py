"""Threads of our own, each with one of PyTorch's: a parallel region ends when its last thread gets a core, so that
next to other busy processes many short ones take many times what they compute."""

import contextvars
import ctypes
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch

from clearhead._common.torch_internals import (
    is_inside_functorch,
    is_profiled,
    is_tracing,
    modes_are_active,
)

Unit = TypeVar("Unit")
Report = Callable[[int], None]
"""Called by a thread with how much it has done; it raises where the work is to end."""


class _EndedError(Exception):
    """Somebody else has failed, or been interrupted."""


@cache
def thread_limits() -> tuple[Callable[[int], object], ...] | None:
    """Return the calls that set how many threads OpenMP and MKL take for the thread that makes them, and for no
    other; None where PyTorch is built on others. `torch.set_num_threads` sets MKL's for the whole process.

    Private: `omp_set_num_threads` and `MKL_Set_Num_Threads_Local` behind PyTorch's library for Linux, in 2.13.

    Example:
        >>> limits = thread_limits()
        >>> limits is None or len(limits) == 2
        True
    """
    if sys.platform != "linux" or not torch.backends.mkl.is_available():
        return None
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return library.omp_set_num_threads, library.MKL_Set_Num_Threads_Local
    except (OSError, AttributeError):
        return None


def threads_apart() -> int:
    """Count the threads of our own that may take the place of PyTorch's here; 1 where one could not be
    told from this one by what it computes.

    A mode, such as a default device or a counter of FLOPs, belongs to a thread, and so do autocast, transformations
    and a profiler.
    """
    count = torch.get_num_threads()
    if count == 1 or thread_limits() is None or modes_are_active() or is_profiled():
        return 1
    lowered = torch.is_autocast_enabled("cpu")
    return 1 if lowered or is_inside_functorch() or is_tracing() else count


def side_by_side(
    units: Iterable[Unit],
    start: Callable[[Report], Callable[[Unit], None]],
    count: int,
    tell: Report,
) -> None:
    """Run all units of work in `count` threads, each with one thread of PyTorch; the first error, or an interrupt,
    ends all and is raised here.

    Gradients, inference mode and context variables are those of this thread.

    Args:
        units: in whatever order; no two of them may write the same numbers.
        start: called in each thread, returns what does a unit.
        count: of the threads, 1 or more.
        tell: called in this thread with what the others report.

    Example:
        >>> done = []
        >>> side_by_side(range(4), lambda report: done.append, 2, print)
        >>> sorted(done)
        [0, 1, 2, 3]
    """
    left, failures = deque(units), []
    told: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    stop = threading.Event()
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def report(done: int) -> None:
        if stop.is_set():
            raise _EndedError
        told.put(done)

    def work() -> None:
        try:
            torch.get_num_threads()  # a thread takes over the number of all when it first asks
            for limit in thread_limits() or ():
                limit(1)
            with torch.inference_mode(inference), torch.set_grad_enabled(grad):
                do = start(report)
                while left and not stop.is_set():
                    try:
                        unit = left.popleft()
                    except IndexError:  # another thread has taken the last
                        break
                    do(unit)
        except _EndedError:
            pass
        except BaseException as error:
            failures.append(error)
            stop.set()
        finally:
            told.put(None)

    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True)
        for _ in range(count)
    ]
    try:
        for thread in threads:
            thread.start()
        running = count
        while running and not failures:
            done = told.get()
            if done is None:
                running -= 1
            else:
                tell(done)
    finally:
        stop.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    if failures:
        raise failures[0]
