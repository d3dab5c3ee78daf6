"""The definition as a kernel: in portions it is the same."""

import pytest
import torch

import clearhead as ch
from clearhead.attention.kernels import eager
from clearhead.attention.problem import make_problem
from tests.attention.kernels.definition import draw


def test_portions_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    posed = make_problem(**draw(dtype=torch.float64), mask=ch.causal(), bias=ch.alibi(6))
    whole, total = eager.attend(posed), eager.logsumexp(posed)
    assert "portions" not in eager.how(posed)
    monkeypatch.setattr(eager, "PORTION", 1000)
    assert "in 10 portions of queries" in eager.how(posed)
    torch.testing.assert_close(eager.attend(posed), whole)
    torch.testing.assert_close(eager.logsumexp(posed), total)
