"""Real process groups on gloo: functions that run on every rank, and what they return.

Processes are forked from one that has imported everything, so that a group costs a fraction of a
second. A watchdog ends a group that hangs, and says what each rank was doing.
"""

import multiprocessing
import pickle
import queue
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

WATCHDOG = 300.0
"""Seconds after which a group is ended."""


def run(world: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call `work(group, *arguments)` on every rank of a new group; what each returns.

    Raises:
        AssertionError: with the traceback of the first rank that failed, or the ranks that hang.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.sharding.preloaded"])
    with tempfile.TemporaryDirectory() as folder:
        answers = context.Queue()
        given = (world, f"file://{Path(folder, 'store')}", answers, work, arguments)
        processes = [
            context.Process(target=_work, args=(rank, *given), daemon=True) for rank in range(world)
        ]
        for process in processes:
            process.start()
        results: dict[int, Any] = {}
        try:
            for _ in processes:
                rank, failed, result = answers.get(timeout=WATCHDOG)
                assert failed is None, f"rank {rank} of {world}:\n{failed}"
                results[rank] = pickle.loads(result)
        except queue.Empty:
            missing = sorted(set(range(world)) - set(results))
            raise AssertionError(f"ranks {missing} of {world} hang") from None
        finally:
            for process in processes:
                process.join(timeout=5.0)
                if process.is_alive():
                    process.kill()
        return [results[rank] for rank in range(world)]


def _work(
    rank: int,
    world: int,
    store: str,
    answers: Any,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
        result = work(dist.group.WORLD, *arguments)
        # Some groups die while they are taken down, unless all ranks are done.
        dist.barrier()
        answers.put((rank, None, pickle.dumps(result)))
    except BaseException:
        answers.put((rank, traceback.format_exc(), None))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
