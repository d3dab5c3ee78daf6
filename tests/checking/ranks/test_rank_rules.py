"""Verdicts on ranks where no known mistake is made, or nothing of it was seen."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import clearhead as ch
from clearhead.checking.contract import Contract
from clearhead.checking.evidence.training import Training
from clearhead.checking.hypotheses.matching import Trial, explain
from clearhead.checking.hypotheses.recipe import Setting
from clearhead.checking.judging import account, promises
from clearhead.checking.judging.verdicts import Clear, Found, Unknown
from clearhead.checking.ranks import launching, rank_rules


def of_output(target: Tensor) -> Any:
    """Evidence with this output of one head of two tokens."""
    setting = Setting(Contract(causal=False), 1, 1, 1, 2, 2, 1, 1)
    given = torch.tensor([[[[1.0], [2.0]]]], dtype=torch.float64)
    trials = [Trial("2 tokens", setting, given, given, given, target)]
    explained = explain(trials, Contract(causal=False), lambda contract: ())
    return SimpleNamespace(trials=trials, explained=explained)


@pytest.mark.parametrize(
    ("number", "code", "way"),
    [(7.0, "differs", "ranks"), (torch.nan, "mask.non-finite", "output")],
)
def test_an_output_of_no_recipe(number: float, code: str, way: str) -> None:
    measured = of_output(torch.full((1, 1, 2, 1), number, dtype=torch.float64))
    claims = account._of_ranks(measured).claims
    assert [(each.code, each.found.way) for each in claims] == [(code, way)]


def large(wrong: list[bool], beyond: list[bool]) -> Any:
    context = torch.tensor(wrong, dtype=torch.float64)[None, None, :, None]
    expected = torch.zeros_like(context)
    expected[..., -1:, :] = 1.0
    context = context + expected
    each = SimpleNamespace(context=context, expected=expected, beyond=torch.tensor(beyond))
    return SimpleNamespace(explained=SimpleNamespace(right=True), large=[each])


def test_large_scores() -> None:
    beyond = [True, False, False]
    assert rank_rules.overflow(large([False] * 3, beyond)) == Clear("large")
    for wrong, way in (([True, False, False], "exponential"), ([True, True, False], "otherwise")):
        verdict = rank_rules.overflow(large(wrong, beyond))
        assert isinstance(verdict, Found)
        assert verdict.way == way


@pytest.mark.parametrize("rule", [promises.never, promises.unscaled, rank_rules.alike])
def test_dropout_that_was_not_seen_is_not_called_right(rule: Any) -> None:
    training = Training("dropout-ranks")
    unseen = SimpleNamespace(contract=Contract(dropout=0.1), dropped=[], training=training)
    assert rule(unseen) == Unknown("dropout-ranks", {})


RANK = (str(Path(launching.__file__).with_name("rank_calls.py")), 3, "run_on_rank")
DIST = (str(Path(dist.__file__).parent / "distributed_c10d.py"), 3, "all_gather")
ATTEND = (str(Path(ch.__file__).parent / "attention" / "functional.py"), 3, "attend")
GRAD = (str(Path(torch.__file__).parent / "autograd" / "__init__.py"), 3, "grad")
THREADING = (threading.__file__, 3, "acquire")
IMPORT = ("<frozen importlib._bootstrap>", 3, "_find_and_load")
LEFT = [
    ([], "does not come back"),
    ([RANK], "was still running"),
    ([DIST, ATTEND, RANK], "waits in all_gather"),
    ([ATTEND, RANK], "was still running"),
    ([DIST, 1, RANK], "waits in all_gather, called by 'gather(block)' (ring.py, line 1)"),
    ([2, 4, RANK], "waits in 'work.wait()' (ring.py, line 2)"),
    ([3, RANK], "was still running, in 'total += 1' (ring.py, line 3)"),
    ([9, RANK], "was still running, in '' (ring.py, line 9)"),
    (
        [THREADING, 3, RANK],
        "was still running, in acquire, called by 'total += 1' (ring.py, line 3)",
    ),
    # A module that is imported is nobody's call, whatever it calls.
    ([DIST, 2, IMPORT, GRAD, RANK], "was still running, in grad"),
    (
        [2, IMPORT, 4, RANK],
        "was still running, in import, called by 'import all' (ring.py, line 4)",
    ),
]


@pytest.mark.parametrize("folder", ["torch", "clearhead", "my projects/torch/clearhead", "."])
@pytest.mark.parametrize(("calls", "words"), LEFT)
def test_what_a_rank_was_doing(tmp_path: Path, folder: str, calls: list[Any], words: str) -> None:
    """A folder may have any name: what lies in it is the user's all the same."""
    ring = tmp_path / folder / "ring.py"
    ring.parent.mkdir(parents=True, exist_ok=True)
    ring.write_text("gather(block)\nwork.wait()\ntotal += 1\nimport all\n")
    lines = [(str(ring), each, "step") if isinstance(each, int) else each for each in calls]
    found = launching.left_in(
        "\n".join(f'  File "{file}", line {line} in {name}' for file, line, name in lines)
    )
    assert str(found) == words
    assert found.waits is words.startswith(("waits", "does not"))


def test_a_package_beside_that_of_python_is_not_its_own(tmp_path: Path) -> None:
    file = tmp_path / "site-packages" / "ring.py"
    with mock.patch.object(launching, "PYTHON", tmp_path):
        assert "(ring.py, line 3)" in str(launching.left_in(f'  File "{file}", line 3 in step'))
        assert launching.left_in(f'  File "{tmp_path / "queue.py"}", line 3 in get').words.endswith(
            "get"
        )


def test_ranks_that_wait_and_ranks_that_run() -> None:
    waits, runs = launching.Stuck("waits", waits=True), launching.Stuck("was still running")
    for left, way, ranks in (
        ({0: waits}, "hangs", "rank 0"),
        ({0: waits, 1: runs}, "runs", "rank 1"),
    ):
        verdict = rank_rules.stuck(SimpleNamespace(contract=Contract(world=2), stuck=left))  # type: ignore[arg-type]
        assert isinstance(verdict, Found)
        assert (verdict.way, verdict.values["ranks"]) == (way, ranks)
