"""Evidence on ranks: of processes that are started for it, or of the caller's own process group."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from clearhead.checking.ranks.launching import (
    AskedOfRanks,
    CallersRanks,
    StartedRanks,
    follow,
)
from clearhead.checking.ranks.rank_calls import LOSS
from clearhead.checking.ranks.rank_labels import LabelsEvidence
from clearhead.checking.ranks.ranks_evidence import RanksEvidence
from clearhead.checking.subject.subject import Subject
from clearhead.errors import ArgumentError

T = TypeVar("T")

MOST = 64
"""Processes that are started."""


def on_ranks(subject: Subject, seed: int, judge: Callable[[AskedOfRanks], T]) -> T:
    """Return the report that `judge` makes of the evidence; in a process group of the caller's the same on every rank.

    Raises:
        ArgumentError: codes `check.takes`, `check.world`.
    """
    contract = subject.contract
    world = contract.world or 1
    kind = LabelsEvidence if subject.takes == LOSS else RanksEvidence
    if kind is RanksEvidence and not subject.takes.startswith("qkv"):
        raise ArgumentError(
            "check.takes",
            'ranks are handed query, key and value, takes="qkv" or "qkv,mask", or a loss its logits and '
            f'ids, takes="{LOSS}"; got {subject.takes!r}.',
        )
    if not (dist.is_available() and dist.is_initialized()):
        if world > MOST:
            raise ArgumentError(
                "check.world", f"world must be {MOST} or less, each a process; got {world}."
            )
        ranks = StartedRanks(subject, world)
        try:
            return judge(kind(subject, contract, seed, ranks))
        finally:
            ranks.close()
    if dist.get_world_size() != world:
        raise ArgumentError(
            "check.world",
            f"world must be that of the process group that is there, {dist.get_world_size()}; got "
            f"{world}.",
        )
    result: Any
    if dist.get_rank():
        result = follow(subject)
    else:
        group = CallersRanks()
        try:
            result = judge(kind(subject, contract, seed, group))
        except BaseException as error:  # the other ranks wait for it
            result = error
        group.finish(result)
    if isinstance(result, BaseException):
        raise result
    return result
