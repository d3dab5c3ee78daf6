"""The screens of `clearhead show` for a long text, of a reading made by hand."""

import io
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from torch import Tensor

from clearhead import AttentionMatrix, causal, roles
from clearhead.drawing.terminal.terminal import LongScreens
from clearhead.integrations.text_models import LongReading
from clearhead.types import Summary
from clearhead.watching.seen import Seen

TOKENS = tuple(f"w{place}" if place % 5 else "\x1b[it]" for place in range(60))


def summary(scores: Tensor) -> Summary:
    """The summary of given scores, (heads, 60, 60), that are causal."""
    identity = torch.eye(60).expand(1, len(scores), 60, 60)
    matrix = AttentionMatrix(scores[None], identity, scale=1.0, mask=causal())
    ids = torch.arange(60)[None]
    return replace(matrix.summary(pool=(12, 12)), roles=roles(matrix, ids))


def reading() -> LongReading:
    """Layer 0 looks everywhere alike; in layer 1 head 0 does so too, head 1 at the token before."""
    alike = torch.zeros(2, 60, 60)
    before = alike.clone()
    before[1] += 20 * torch.eye(60).roll(-1, dims=1)
    summaries = {0: summary(alike), 1: summary(before)}
    return LongReading(TOKENS, ("a.0", "a.1"), (2, 2), summaries, Seen("", "summary"))


@pytest.fixture
def screens() -> LongScreens:
    return LongScreens(Console(file=io.StringIO(), width=80), reading())


def lines(screens: LongScreens) -> list[str]:
    file = screens._console.file
    assert isinstance(file, io.StringIO)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_the_title(screens: LongScreens) -> None:
    screens.title("a[bold]model", "its encoder only")
    found = lines(screens)
    assert found[0] == "a[bold]model (its encoder only): 2 layers × 2 heads, 60 tokens"
    assert found[1].startswith("\\x1b[it] w1 w2 w3 w4 \\x1b[it] w6")
    assert found[-1].endswith("w39 … and 20 more")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_nothing_is_cut(width: int) -> None:
    screens = LongScreens(Console(file=io.StringIO(), width=width), reading())
    screens.model()
    screens.layer(1, None)
    found = lines(screens)
    assert max(map(len, found)) <= width
    across = " ".join(" ".join(found).split())
    assert "…" not in across
    for words in ("induct. roles", "1 previous", "in %", "by its square root"):
        assert words in across
    received = across.partition("receive most of the attention ")[2]
    assert received.count("[w") + received.count("[\\x1b[it]]") == received.count(" % ") == 8


def test_a_model(screens: LongScreens) -> None:
    """The layer with the head that points at certain tokens is the one to look at."""
    assert screens.model() == 1
    alike, before = lines(screens)[-2:]
    # Of n tokens that are attended to alike, the entropy is ln n and the distance (n - 1) / 2.
    counts = torch.arange(1.0, 61.0)
    entropy, distance = counts.log().mean(), (counts - 1).mean() / 2
    assert alike.split() == ["0", f"{entropy:.2f}", f"{distance:.0f}", *alike.split()[3:]]
    assert len(alike.split()) == 6, "no head of it has a role"
    assert before.endswith("1 previous")
    assert float(before.split()[1]) == pytest.approx(float(entropy) / 2, abs=0.01)


def test_a_layer(screens: LongScreens) -> None:
    assert screens.layer(1, None) == 1
    found = lines(screens)
    assert "Layer 1   a.1" in found
    row = next(line for line in found if line.endswith("previous"))
    assert row.split()[:4] == ["1", "0.00", "0.98", "0.02"]
    assert "Layer 1, head 1, from the first token to the last" in found
    assert max(map(len, found)) <= 80
    received = found[found.index("The tokens that receive most of the attention") + 1 :]
    assert len(received) == 8
    # Of the first token everybody sees a part: 1 + 1/2 + … + 1/60, and the head that looks before
    # gives it 2; all in all 120 queries give 1 each.
    share = (float((1 / torch.arange(1.0, 61.0)).sum()) + 2) / 120
    assert received[0].startswith(f" 0 \\x1b[it]   {share * 100:.1f} % ━━━━━━━━━━   [\\x1b[it]]")


def test_a_head_alone() -> None:
    whole = reading()
    one = summary(20 * torch.eye(60).roll(-1, dims=1)[None])
    screens = LongScreens(Console(file=io.StringIO(), width=80), whole._replace(summaries={1: one}))
    assert screens.layer(1, 1) == 1
    assert "Layer 1, head 1   a.1" in lines(screens)
