"""The cost of tokens that ranks share: in time where there is one rank, in memory on each rank of a ring."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

import clearhead as ch
from benchmarks.harness import Sides, case

RANKS = 4
WINDOW = ch.causal() & ch.sliding_window(left=255)
"""All blocks go round, and few of their pairs are computed: what is weighed is what a rank holds."""


@case(
    "across-one-rank-1024",
    reach="<= 1.05x",
    work="causal, (1, 8, 1024, 64), forward, in a group of one",
    memory=False,
    rounds=9,
)
def one_rank() -> Sides:
    query, key, value = torch.randn(3, 1, 8, 1024, 64).unbind()
    if not dist.is_initialized():
        store = f"file://{tempfile.mkdtemp()}/store"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    where = ch.across(dist.group.WORLD, tokens=1024, mask=ch.causal())
    return {
        "attend(across=)": lambda: ch.attend(query, key, value, mask=ch.causal(), across=where),
        "attend": lambda: ch.attend(query, key, value, mask=ch.causal()),
    }


def _tokens(rank: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of a rank, made there, so that no process has those of all."""
    generator = torch.Generator().manual_seed(rank)
    shape = (3, 1, 4, tokens // RANKS, 64)
    query, key, value = torch.randn(shape, generator=generator).unbind()
    return query, key, value


def _attend(rank: int, store: str, tokens: int) -> Tensor:
    if dist.is_initialized():  # the group of another case
        dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    try:
        where = ch.across(dist.group.WORLD, tokens=tokens, layout="contiguous", how="ring")
        with torch.no_grad():
            context = ch.attend(*_tokens(rank, tokens), mask=WINDOW, across=where)
        dist.barrier()
        return context
    finally:
        dist.destroy_process_group()


def _other(index: int, store: str, tokens: int) -> None:
    torch.set_num_threads(1)
    _attend(index + 1, store, tokens)


@case(
    "across-ring-65536",
    reach="<= 174MB",
    work="a causal window of 256, (1, 4, 65 536, 64), one rank of four; its tokens and two blocks are 134 MB",
    rounds=1,
)
def ring() -> Sides:
    def of_rank_0() -> Tensor:
        with tempfile.TemporaryDirectory() as folder:
            given = f"file://{Path(folder, 'store')}", 65536
            others = spawn(_other, given, nprocs=RANKS - 1, join=False, start_method="spawn")
            context = _attend(0, *given)
            assert others is not None
            while not others.join():
                pass
        return context

    def alone() -> Tensor:
        query, key, value = _tokens(0, 65536)
        return ch.attend(query, key, value, mask=WINDOW)

    return {"a rank of a ring": of_rank_0, "its own tokens alone": alone}
