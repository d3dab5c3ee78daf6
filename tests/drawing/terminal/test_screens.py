"""The screens of `clearhead show`, for a reading made by hand."""

import io

import pytest
import torch
from rich.console import Console

from clearhead import AttentionMatrix
from clearhead.drawing.terminal.screens import Screens
from clearhead.errors import SelectionError
from clearhead.integrations.text_models import Reading
from clearhead.watching.seen import Seen

TOKENS = ("[CLS]", "cat", "sat", "on", "it", "[SEP]")


def reading() -> Reading:
    """Two layers: one that looks everywhere alike, and one whose second head links it to cat."""
    still = torch.zeros(1, 2, 6, 6)
    linked = still.clone()
    linked[0, 1, 4, 1] = 5.0
    identity = torch.eye(6).expand(1, 2, 6, 6)
    matrices = tuple(AttentionMatrix(each, identity, scale=1.0) for each in (still, linked))
    special = (True, False, False, False, False, True)
    return Reading(TOKENS, special, ("a.0", "a.1"), matrices, Seen("", "matrix"))


@pytest.fixture
def screens() -> Screens:
    return Screens(Console(file=io.StringIO(), width=80), reading())


def text(screens: Screens) -> str:
    file = screens._console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_the_title(screens: Screens) -> None:
    screens.title("a[bold]model", "its encoder only")
    assert text(screens).splitlines() == [
        "a[bold]model (its encoder only): 2 layers × 2 heads, 6 tokens",
        "[CLS] cat sat on it [SEP]",
    ]


def test_a_model(screens: Screens) -> None:
    assert screens.model()[:2] == (1, 1)
    assert "How focused each head is" in text(screens)
    assert "    1    0  15    1.66      2.0    31 %" in text(screens)
    assert "layer  1 head  1   it  → cat  0.97" in text(screens)
    assert "Layer 1, head 1" in text(screens)
    assert "chosen for a strong link that few other queries have: it → cat 0.97" in text(screens)
    assert "97 % of a row's attention goes to a column" in text(screens)


def test_the_heads_of_a_link_from_the_strongest_on(screens: Screens) -> None:
    assert screens.find(4, 1) == (1, 1)
    rows = [line for line in text(screens).splitlines() if "it → cat" in line]
    assert [line[:15] for line in rows[:2]] == ["layer  1 head  ", "layer  0 head  "]


def test_a_layer(screens: Screens) -> None:
    assert screens.layer(1) == 1
    assert "Layer 1   a.1" in text(screens)
    assert "it  → cat  0.97" in text(screens)


def test_a_head(screens: Screens) -> None:
    screens.head(1, 1)
    assert "Layer 1, head 1   a.1" in text(screens)
    assert "entropy 1.53 nats" in text(screens)
    assert "it  → cat  0.97" in text(screens)


def test_a_text_without_words() -> None:
    silent = reading()._replace(special=(True,) * 6)
    screens = Screens(Console(file=io.StringIO(), width=80), silent)
    screens.model()
    assert "none: there are no two words" in text(screens)
    assert "the most focused head" in text(screens)


def test_a_long_text_is_not_printed_whole() -> None:
    tokens = tuple(f"word{place}" for place in range(70))
    long = Reading(tokens, (False,) * 70, (), (), Seen("", "matrix"))
    screens = Screens(Console(file=io.StringIO(), width=80), long)
    screens.title("model", "")
    assert text(screens).endswith("word59 … and 10 more\n")


@pytest.mark.parametrize(
    ("layer", "head", "code", "message"),
    [
        (2, None, "show.layer", "layer must be 0 to 1; got 2"),
        (-1, None, "show.layer", "layer must be 0 to 1; got -1"),
        (0, 2, "show.head", "head must be 0 to 1; got 2"),
    ],
)
def test_what_is_not_there(
    screens: Screens, layer: int, head: int | None, code: str, message: str
) -> None:
    with pytest.raises(SelectionError, match=message) as refusal:
        screens.check(layer, head)
    assert refusal.value.code == code
