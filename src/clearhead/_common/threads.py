"""Worker threads with one PyTorch thread each.

A parallel region ends when its last thread gets a core. Next to other busy processes, many short regions therefore
take many times their computation; independent units of work in threads of their own do not.
"""

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
    """Return the calls that set the number of OpenMP and MKL threads for the calling thread only; cached.

    None on other systems than Linux, and if PyTorch is built on other libraries. `torch.set_num_threads` is no
    alternative: it sets MKL's for the whole process.

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
    """Return the number of worker threads that may replace PyTorch's own threads; 1 means no workers.

    1 where `thread_limits` is None, and where a worker could compute something else than the calling thread: under
    modes such as a default device, CPU autocast, transformations, tracing and profilers.
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
    """Run all units of work in `count` threads, each with one PyTorch thread.

    The first error, or an interrupt, stops all threads and is raised here. Gradient mode, inference mode and context
    variables are those of the calling thread.

    Args:
        units: in any order; no two of them may write the same memory.
        start: called as `start(report)` once in each thread; returns the function that runs a unit. `report(n)` passes
            n to `tell`, and ends the thread after an error in another one.
        count: the number of threads, 1 or more.
        tell: called in the calling thread with what the workers report.

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
        """Pass a number on to `tell`; raise _EndedError if another thread has failed."""
        if stop.is_set():
            raise _EndedError
        told.put(done)

    def work() -> None:
        """Run units until none is left or a thread fails; store an error in `failures`, and report None at the end."""
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
