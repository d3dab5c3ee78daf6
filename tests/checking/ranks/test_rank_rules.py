"""Verdicts on ranks where no known mistake is made, or nothing of it was seen."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.matching import Trial, explain
from clearhead.checking.hypotheses.recipe import Setting
from clearhead.checking.judging.verdicts import Clear, Found, Unknown
from clearhead.checking.ranks import rank_rules
from clearhead.checking.ranks.launching import waiting_in


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
    for each in ("differs", "mask.non-finite", "ranks.precision"):
        verdict = rank_rules.definition(each, measured)
        assert (verdict.way if isinstance(verdict, Found) else None) == (
            way if each == code else None
        )


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


@pytest.mark.parametrize("rule", [rank_rules.never_dropped, rank_rules.unscaled, rank_rules.alike])
def test_dropout_that_was_not_seen_is_not_called_right(rule: Any) -> None:
    unseen = SimpleNamespace(contract=Contract(dropout=0.1), dropped=[])
    assert rule(unseen) == Unknown("dropout-ranks", {})
    assert rule(SimpleNamespace(contract=Contract(), dropped=[])) is None


def frames(*calls: tuple[str, str]) -> str:
    return "\n".join(f'  File "{file}", line 3 in {name}' for file, name in calls)


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ((), "does not come back"),
        ((("/p/clearhead/checking/ranks/rank_calls.py", "run_on_rank"),), "waits"),
        (
            (
                ("/p/torch/distributed/c.py", "all_gather"),
                ("/p/clearhead/attention/x.py", "attend"),
                ("/p/clearhead/checking/ranks/rank_calls.py", "run_on_rank"),
            ),
            "waits in all_gather",
        ),
    ],
)
def test_where_a_rank_waits(calls: tuple[tuple[str, str], ...], words: str) -> None:
    assert waiting_in(frames(*calls)) == words
