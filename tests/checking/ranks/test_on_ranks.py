"""Sharded attention: every mistake of the bank is named, nothing right is blamed."""

import multiprocessing
import multiprocessing.connection
import os
import select
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import clearhead as ch
from clearhead.checking.ranks import launching
from tests.checking.ranks import bank
from tests.checking.ranks.bank import Entry
from tests.checking.ranks.variants import Sharded
from tests.sharding import ranks


def checked(entry: Entry) -> Any:
    return ch.check(
        entry.subject, takes="qkv", world=entry.world, layout=entry.layout, **entry.declared
    )


def judged(entry: Entry, report: Any) -> str:
    """The fault of a report of an entry, or nothing."""
    codes = {each.code for each in report.findings}
    expected = {entry.code} if entry.code else set()
    return "" if codes == expected and (report.ok or codes) else f"{entry}, {entry.code}: {report}"


PARTS = 2
"""Groups that share the bank, so that none comes near the minute that a group has."""


def some_entries(group: Any, world: int, part: int) -> tuple[int, list[str]]:
    every = (*bank.wrong(), *bank.right())
    entries = [each for each in every if each.world == world and not each.alone][part::PARTS]
    found = [(entry, checked(entry)) for entry in entries]
    return len(found), [words for entry, report in found if (words := judged(entry, report))]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("world", [2, 3, 4])
def test_the_bank_in_a_group_that_is_there(world: int, part: int) -> None:
    results = ranks.run(world, some_entries, world, part)
    count, wrong = results[0]
    assert count >= {2: 12, 3: 9, 4: 3}[world]
    assert not wrong
    # Every rank has the same report.
    assert all(each == results[0] for each in results)


ALONE = [each for each in (*bank.wrong(), *bank.right()) if each.alone]


@pytest.mark.parametrize("entry", ALONE, ids=str)
def test_lengths_that_do_not_divide(entry: Entry) -> None:
    report = checked(entry)
    assert not judged(entry, report)
    assert not multiprocessing.active_children()


def test_lengths_that_are_refused_are_told() -> None:
    report = ch.check(Sharded("heads"), takes="qkv", causal=True, world=2)
    assert report.ok
    assert report.told[0].startswith(
        "23 tokens: rank 0 raises ValueError: 23 tokens are no multiple"
    )


LOST: list[int] = []
"""The ends of a pipe, by which a rank says that it is lost from here on."""


def is_lost(waits: bool = True) -> None:
    os.write(LOST[1], f"{0 if waits else os.getpid()}\n".encode())


def rests(process: int) -> bool:
    """Whether a process only waits: it neither runs, nor did between two looks."""

    def look() -> tuple[str, str]:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[11]

    before = look()
    time.sleep(0.05)
    return before == look() and before[0] == "S"


@pytest.fixture
def eventful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Time stands still until a rank said that it is lost and does nothing more; then all of it has passed."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("what a process does is read from /proc")
    LOST[:] = os.pipe()
    lost: list[int] = []
    passed = 0.0

    def wait(pipes: list[Connection], timeout: float) -> list[Any]:
        nonlocal passed
        while not (ready := multiprocessing.connection.wait(pipes, 0.1)):
            if select.select([LOST[0]], [], [], 0)[0]:
                lost.extend(map(int, os.read(LOST[0], 100).split()))
            others = {each.pid or 0 for each in multiprocessing.active_children()} - {*lost}
            if lost and all(map(rests, others)):
                passed += timeout
                break
        return ready

    monkeypatch.setattr(launching, "wait", wait)
    monkeypatch.setattr(
        launching, "time", SimpleNamespace(monotonic=lambda: passed, sleep=time.sleep)
    )
    yield
    for end in LOST:
        os.close(end)


def hangs(query: Tensor, key: Tensor, value: Tensor, group: Any, rank: int) -> Tensor:
    if rank == 1:
        is_lost()
        dist.barrier(group)
    return query


def raises(query: Tensor, key: Tensor, value: Tensor, group: Any, rank: int) -> Tensor:
    if rank == 1:
        raise ValueError("not so many")
    is_lost()
    dist.all_reduce(torch.zeros(3), group=group)
    return query


def ends(query: Tensor, key: Tensor, value: Tensor, group: Any, rank: int) -> Tensor:
    if rank == 1:
        os._exit(3)
    return query


def hangs_backward(query: Tensor, key: Tensor, value: Tensor, group: Any, rank: int) -> Tensor:
    if rank == 1:
        query.register_hook(lambda grad: (is_lost(), dist.barrier(group))[1])
    return query * 1.0


def goes_on(query: Tensor, key: Tensor, value: Tensor, group: Any, rank: int) -> Tensor:
    if rank == 1:
        is_lost(waits=False)
    while rank == 1:
        query = query.clone()
    return query


@pytest.mark.parametrize(
    ("subject", "rank", "words"),
    [
        (hangs, 1, "rank 1 waits in barrier"),
        (raises, 1, "rank 0 waits in all_reduce"),
        (hangs_backward, 1, "rank 1 waits in barrier"),
        (goes_on, 1, "rank 1 was still running"),
    ],
)
def test_a_rank_that_is_lost(eventful: None, subject: Any, rank: int, words: str) -> None:
    (found,) = ch.check(subject, takes="qkv", world=2).findings
    assert found.code == "call.raises"
    assert f"rank {rank}" in found.sentence
    assert words in found.measured
    first = subject.__code__.co_firstlineno
    assert found.place is not None
    assert found.place[0] == __file__
    assert first < found.place[1] <= first + 5
    assert not multiprocessing.active_children()


def test_a_rank_whose_process_ends() -> None:
    # The other one is waited for: it makes what is made once in a process, which takes what it takes.
    with mock.patch.object(launching, "GRACE", launching.WATCHDOG):
        report = ch.check(ends, takes="qkv", world=2)
    (found,) = report.findings
    assert found.code == "call.raises"
    assert "rank 1 ends with exit code 3" in found.measured
    assert not multiprocessing.active_children()


def refuses(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raise ValueError("never")


def gives_all(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.cat([query, query], 2)


def wants_more(query: Tensor, key: Tensor, value: Tensor, flavour: str) -> Tensor:
    return query


@pytest.mark.parametrize(
    ("subject", "options", "code", "words"),
    [
        (
            refuses,
            {"world": 2},
            "check.ranks",
            "on 2 ranks and raised on all of them: rank 0 raises Val",
        ),
        (wants_more, {"world": 2}, "check.ranks", "no value is known for flavour"),
        (
            gives_all,
            {"world": 2},
            "check.output",
            "rank 0 has 10 queries and returns [2, ",
        ),
        (refuses, {"world": 65}, "check.world", "world must be 64 or less, each a process; got 65"),
        (refuses, {"world": 0}, "argument.size", "world must be 1 or more; got 0"),
        (
            refuses,
            {"world": 2, "layout": "round"},
            "layout.value",
            '"zigzag", with world=…; got \'r',
        ),
        (
            refuses,
            {"layout": "zigzag"},
            "layout.value",
            "with world=…; got 'zigzag' and world=None",
        ),
        (
            refuses,
            {"world": 2, "takes": "x"},
            "check.takes",
            'takes="qkv" or "qkv,mask"; got \'x\'',
        ),
    ],
)
def test_what_is_refused(subject: Any, options: dict[str, Any], code: str, words: str) -> None:
    with pytest.raises(ch.errors.ClearheadError) as caught:
        ch.check(subject, **{"takes": "qkv", **options})
    assert caught.value.code == code
    assert words in str(caught.value)


def test_processes_that_cannot_be_forked() -> None:
    with (
        mock.patch.object(launching, "autograd_has_threads", return_value=True),
        pytest.raises(ch.errors.ModelError, match="cannot be sent to other processes") as caught,
    ):
        ch.check(lambda query, key, value: query, takes="qkv", world=2)
    assert caught.value.code == "check.ranks"
    assert not launching.autograd_has_threads()


def test_a_group_that_cannot_be_started() -> None:
    with (
        mock.patch.object(dist, "init_process_group", side_effect=RuntimeError("no address")),
        pytest.raises(ch.errors.ModelError) as caught,
    ):
        ch.check(hangs, takes="qkv", world=2)
    assert str(caught.value) == (
        "[check.ranks] 2 ranks on gloo could not be started here: rank 0 raises RuntimeError: no address."
    )


def other_sizes(group: Any) -> list[str]:
    found = []
    for subject, world in ((refuses, 3), (refuses, 2)):
        with pytest.raises(ch.errors.ClearheadError) as caught:
            ch.check(subject, takes="qkv", world=world)
        found.append(str(caught.value).partition(".")[0])
    return found


def test_every_rank_of_a_group_raises() -> None:
    one, other = ranks.run(2, other_sizes)
    assert one == other
    assert one == ["[check", "[check"]


def masked(how: str) -> Any:
    def attention(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor, group: Any, positions: Tensor
    ) -> Tensor:
        where = ch.across(group, tokens=mask.shape[-1], layout="zigzag")
        key, value = where.gather(key), where.gather(value)
        rows = {"right": positions, "local": torch.arange(len(positions)), "none": None}[how]
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if rows is not None:
            scores = scores.masked_fill(~mask[..., rows, :], -torch.inf)
        return scores.softmax(-1) @ value

    return attention


@pytest.mark.parametrize(
    ("how", "code"), [("right", ""), ("local", "differs"), ("none", "differs")]
)
def test_a_mask_that_is_handed_in(how: str, code: str) -> None:
    report = ch.check(masked(how), takes="qkv,mask", causal=False, world=2, layout="zigzag")
    assert [each.code for each in report.findings][:1] == [code] * bool(code)
    assert report.ok is not bool(code)


def test_a_module_and_one_rank_alone() -> None:
    class Attention(torch.nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    report = ch.check(Attention(), takes="qkv", causal=False, world=1)
    assert report.ok
    assert not report.told


def test_dropout_is_not_judged_on_ranks() -> None:
    report = ch.check(Sharded("gather"), takes="qkv", world=1, causal=True, dropout=0.4)
    assert report.outcome == "not judged"
