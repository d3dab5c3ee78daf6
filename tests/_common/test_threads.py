"""Threads of our own, each with one of PyTorch's, of which no other thread notices anything."""

import contextvars
import ctypes
import queue
import threading
from collections.abc import Callable

import pytest
import torch

from clearhead._common.threads import Report, side_by_side, thread_limits, threads_apart

CONTEXT: contextvars.ContextVar[str] = contextvars.ContextVar("CONTEXT")

needs_limits = pytest.mark.skipif(thread_limits() is None, reason="PyTorch is not built on MKL")


def doing(work: Callable[[int], None]) -> Callable[[Report], Callable[[int], None]]:
    """Tell of each unit when it is done."""

    def start(report: Report) -> Callable[[int], None]:
        def do(unit: int) -> None:
            work(unit)
            report(1)

        return do

    return start


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_unit_is_done_once_and_told_here(count: int) -> None:
    done, told, here = [], [], threading.get_ident()
    side_by_side(
        range(23),
        doing(done.append),
        count,
        lambda some: told.append((some, threading.get_ident())),
    )
    assert sorted(done) == list(range(23))
    assert told == 23 * [(1, here)]


def test_state_of_this_thread_goes_along() -> None:
    seen = []

    def look(unit: int) -> None:
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), CONTEXT.get()))

    CONTEXT.set("this")
    side_by_side(range(2), doing(look), 2, lambda some: None)
    with torch.no_grad():
        side_by_side(range(2), doing(look), 2, lambda some: None)
    with torch.inference_mode():
        side_by_side(range(2), doing(look), 2, lambda some: None)
    asked = [(True, False), (False, False), (False, True)]
    assert seen == [(*each, "this") for each in asked for _ in range(2)]


def test_what_one_raises_ends_all() -> None:
    done, failing = [], queue.SimpleQueue()

    def work(unit: int) -> None:
        if unit == 3:
            failing.put(threading.current_thread())
            raise IndexError("of a unit")
        if unit > 3:
            failing.get().join()
        done.append(unit)

    before = threading.active_count()
    with pytest.raises(IndexError, match="of a unit"):
        side_by_side(range(10_000), doing(work), 2, lambda some: None)
    assert len(done) <= 4  # the three before it, and the one that another thread was at
    assert threading.active_count() == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_the_teller_raises_ends_all(error: type[BaseException]) -> None:
    def tell(some: int) -> None:
        raise error

    before = threading.active_count()
    with pytest.raises(error):
        side_by_side(range(10_000), doing(lambda unit: None), 2, tell)
    assert threading.active_count() == before


@needs_limits
def test_no_other_thread_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ctypes.CDLL(f"{torch.__path__[0]}/lib/libtorch_cpu.so")
    inside, outside = [], []

    def numbers() -> tuple[int, int]:
        return torch.get_num_threads(), library.MKL_Get_Max_Threads()

    def look(unit: int) -> None:
        inside.append(numbers())
        other = threading.Thread(target=lambda: outside.append(numbers()))
        other.start()
        other.join()

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        side_by_side(range(4), doing(look), 2, lambda some: outside.append(numbers()))
        outside.append(numbers())
    finally:
        torch.set_num_threads(before)
    assert set(inside) == {(1, 1)}
    assert set(outside) == {(3, 3)}


@needs_limits
def test_threads_of_our_own_where_nothing_belongs_to_this_one() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert threads_apart() == 3
        with torch.device("cpu"):
            assert threads_apart() == 1
        with torch.autocast("cpu", torch.bfloat16):
            assert threads_apart() == 1
        found = []
        torch.vmap(lambda row: found.append(threads_apart()) or row)(torch.ones(2, 2))
        assert found == [1]
        torch.set_num_threads(1)
        assert threads_apart() == 1
    finally:
        torch.set_num_threads(before)
