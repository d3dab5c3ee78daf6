"""The monitor's numbers are those of dense weights, and tell a training that diverges from one that does not."""

from pathlib import Path
from typing import Any

import pytest
import torch

import clearhead as ch
from tests.examples.loading import example
from tests.surface import ROOT


@pytest.fixture
def monitoring(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "examples")
    return example("monitor_training")


def test_the_numbers_are_those_of_the_weights(monitoring: Any) -> None:
    layers = [ch.MultiHeadAttention(12, num_heads=3, mask=ch.causal()) for _ in "ab"]
    model, monitor = torch.nn.Sequential(*layers), monitoring.Monitor(layers[0])
    x = torch.randn(2, 7, 12)
    for _ in range(2):
        with monitor:
            model(x).sum().backward()
    assert [step.shape for step in monitor.steps] == [(1, 3, 3)] * 2
    weights = layers[0].weights(x).dense()
    expected = [torch.special.entr(weights).sum(dim=-1), weights[..., 0]]
    found = monitor.steps[1][0]
    torch.testing.assert_close(found[1:], torch.stack([e.mean(dim=(0, 2)) for e in expected]))
    matrix = layers[0].weights(x)
    torch.testing.assert_close(
        found[0], (weights.log() + matrix.logsumexp[..., None]).amax((0, 2, 3))
    )


def test_scores_grow_without_a_norm_of_query_and_key(
    monitoring: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An eighth of the example's work at each step is enough to diverge.
    monkeypatch.setattr(monitoring, "TOKENS", 32)
    monkeypatch.setattr(monitoring, "BATCH", 8)
    # A text that nobody edits: the numbers of a divergence are those of its text.
    text = (ROOT / "tests" / "golden" / "numbers.json").read_text(encoding="utf-8")[:20_000]
    monitors = {
        qk_norm: monitoring.trained(text, qk_norm, 51, every=25)[0] for qk_norm in (True, False)
    }
    largest = {name: [step[:, 0].max() for step in each.steps] for name, each in monitors.items()}
    assert largest[False][-1] > 20 * largest[False][0]
    assert largest[True][-1] < 5 * largest[True][0]
    monitoring.draw({"with": monitors[True], "without": monitors[False]}, tmp_path / "scores.png")
    assert (tmp_path / "scores.png").stat().st_size > 10_000
