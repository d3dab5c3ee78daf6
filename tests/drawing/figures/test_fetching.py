"""Figures are fetched when one is asked for, and not before."""

import subprocess
import sys

import pytest
import torch

import clearhead as ch

LATE = """
import sys, torch, clearhead as ch
assert "matplotlib" not in sys.modules
assert "clearhead.drawing.figures" not in sys.modules
from matplotlib.figure import Figure
ch.causal().plot(3, 3, ax=Figure().subplots())
assert "matplotlib.pyplot" not in sys.modules
ch.causal().plot(3, 3)
assert "matplotlib.pyplot" in sys.modules
"""


def test_nothing_that_draws_is_imported_before_a_figure_is_asked_for() -> None:
    run = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_matplotlib_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "clearhead.drawing.figures", raising=False)
    with pytest.raises(ch.errors.MissingExtraError, match=r"pip install '\.\[plot\]'") as refusal:
        ch.AttentionMatrix(torch.zeros(2, 3), torch.zeros(2, 3)).plot()
    assert refusal.value.code == "extra.missing"
