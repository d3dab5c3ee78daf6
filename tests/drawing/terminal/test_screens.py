"""The screens of `clearhead show`, for a reading made by hand."""

import io

import pytest
import torch
from rich.console import Console

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.drawing.terminal.screens import DIMENSIONS, Screens, why_lines
from clearhead.errors import SelectionError
from clearhead.integrations.text_models import Reading
from clearhead.matrix.map_tiles import stages_of_pair
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


QUERY, KEY = 4, 2


def said(weights: ch.AttentionMatrix, query: int = QUERY, key: int = KEY) -> list[str]:
    stages = stages_of_pair(weights.problem, 0, 0, query, key)
    return [line.plain for line in why_lines(stages, "it", "the\tend")]


def test_its_numbers_are_those_of_a_trace() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(1, 1, 5, 11), torch.randn(1, 1, 7, 11)
    options = {"bias": torch.randn(5, 7), "softcap": 2.0, "scale": 0.3}
    found = said(ch.AttentionMatrix(query, key, **options))
    trace = ch.trace(ch.attend, query, key, torch.randn(1, 1, 7, 3), **options)
    scores, scaled, capped, masked, weights = (
        f"{float(trace.steps[name].tensor[0, 0, QUERY, KEY]):.4f}"
        for name in ("scores", "scaled_scores", "capped_scores", "masked_scores", "weights")
    )
    assert found[0] == f"Why {weights}? it → the⇥end"
    parts = (query[0, 0, QUERY] * key[0, 0, KEY]).tolist()
    order = sorted(range(11), key=lambda at: -abs(parts[at]))[:DIMENSIONS]
    assert [int(line.split()[0]) for line in found[2 : 2 + DIMENSIONS]] == order
    assert [line.split()[3] for line in found[2 : 2 + DIMENSIONS]] == [
        f"{parts[at]:.4f}" for at in order
    ]
    rest = sum(part for at, part in enumerate(parts) if at not in order)
    last = [" ".join(line.split()) for line in found[2 + DIMENSIONS :]]
    assert last[0] == f"the other 3 dimensions {rest:.4f}"
    assert last[1:4] == [
        f"query · key {scores}",
        f"× scale 0.3000 {scaled}",
        f"after the softcap {capped}",
    ]
    assert last[4] == f"+ bias {options['bias'][QUERY, KEY]:.4f} {masked}"
    assert last[5].startswith(f"exp({masked} - ")
    assert last[5].endswith(f") {weights}")


def test_a_key_that_the_mask_hides() -> None:
    query = torch.randn(1, 1, 5, 3)
    found = said(ch.AttentionMatrix(query, query, mask=ch.causal()), 1, 3)
    assert found[0].startswith("Why 0.0000?")
    assert found[-1].split() == ["the", "mask", "hides", "the", "key", "0.0000"]


def test_a_step_that_the_layer_does_not_have_is_not_said() -> None:
    torch.manual_seed(0)
    # Long enough that a product of one pair and one of many round differently.
    query, key = torch.randn(1, 1, 5, 64), torch.randn(1, 1, 300, 64)
    for pair in range(300):
        found = said(ch.AttentionMatrix(query, key), 4, pair)
        assert not [line for line in found if "bias" in line or "softcap" in line]


def test_a_score_of_zero_has_its_scale() -> None:
    query, key = torch.eye(2)[None, None], torch.eye(2)[None, None]
    assert "× scale 0.2500                      0.0000" in said(
        ch.AttentionMatrix(query, key, scale=0.25), 0, 1
    )


def test_a_score_that_is_no_number_has_no_softcap() -> None:
    query = torch.full((1, 1, 2, 3), torch.nan)
    found = said(ch.AttentionMatrix(query, query), 0, 1)
    assert not [line for line in found if "bias" in line or "softcap" in line]
    assert found[-2].split()[-1] == "nan"
