"""The example learns a text, and no better than the text allows: what sees the future does."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from tests.examples.loading import example
from tests.surface import ROOT

LETTERS = "abcdefgh"


@pytest.fixture(scope="module")
def gpt() -> Any:
    return example("small_gpt")


def chain(length: int) -> tuple[Tensor, Tensor]:
    """A text in which the next letter depends on the last one, and the logarithms of the chances."""
    generator = torch.Generator().manual_seed(1)
    chances = (3 * torch.randn(8, 8, generator=generator)).softmax(dim=-1)
    drawn = chances.multinomial(length, replacement=True, generator=generator).tolist()
    ids = [0]
    for place in range(length):
        ids.append(drawn[ids[-1]][place])
    return torch.tensor(ids), chances.log()


def test_it_learns_what_there_is_to_learn(gpt: Any) -> None:
    torch.manual_seed(0)
    ids, logarithms = chain(24_000)
    learned, held_out = ids[:20_000], ids[20_000:]
    windows = held_out.unfold(0, 65, 64)
    # Nobody who does not see the next letter is better, but by chance.
    least = -logarithms[windows[:, :-1], windows[:, 1:]]
    model = gpt.SmallGPT(LETTERS)
    before = gpt.held_out(model, held_out)
    gpt.train(model.train(), learned, steps=80, tokens=16, batch=12)
    after = gpt.held_out(model, held_out)
    chance = 4 * float(least.std()) / least.numel() ** 0.5
    assert before > float(least.mean()) + 0.5
    assert float(least.mean()) - 0.01 <= after <= float(least.mean()) + chance

    leaking = gpt.SmallGPT(LETTERS)
    for block in leaking.blocks:
        block.attention.mask = ch.full()
    gpt.train(leaking.train(), learned, steps=80, tokens=16, batch=12)
    assert gpt.held_out(leaking, held_out) < float(least.mean()) - 0.05


@torch.no_grad()
def test_it_writes_with_caches_what_it_would_write_without(gpt: Any) -> None:
    torch.manual_seed(0)
    model = gpt.SmallGPT(LETTERS).eval()
    caches = [ch.layers.GrowingCache() for _ in model.blocks]
    ids = torch.randint(8, (1, 11))
    steps = [model(some, caches) for some in ids.split([4, 1, 1, 5], dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), model(ids))
    text = gpt.write(model, "abc", 7)
    assert len(text) == 10
    assert text.startswith("abc")


def test_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat. " * 60, encoding="utf-8")
    script = str(ROOT / "examples" / "small_gpt.py")
    monkeypatch.setattr(sys, "argv", [script, str(text), "--steps", "3", "--new", "5"])
    runpy.run_path(script, run_name="__main__")
    output, errors = capsys.readouterr()
    first, *rest = output.splitlines()
    assert first.startswith("held out: ")
    assert "\n".join(rest).startswith("the cat sat on the m")
    assert errors == ""


def test_it_is_short() -> None:
    lines = (ROOT / "examples" / "small_gpt.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
