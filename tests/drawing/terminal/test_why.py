"""The computation of a weight, in a terminal."""

import torch

import clearhead as ch
from clearhead.drawing.live.pairs import stages_of_pair
from clearhead.drawing.terminal.why import DIMENSIONS, why_lines

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
