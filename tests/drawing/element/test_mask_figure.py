"""A mask as a figure."""

import torch

import clearhead as ch
from tests.drawing.element.drawn import data_of
from tests.refusals import refusals, run


def test_it_is_the_mask() -> None:
    mask = ch.sliding_window(left=1, right=0)
    data = data_of(mask.figure(3, 5))
    expected = mask.to_dense(3, 5).int().tolist()
    assert data["mask"] == ["".join(map(str, row)) for row in expected]
    assert (data["show"], data["edit"], data["inputs"]) == (["mask"], ["mask"], {})
    assert (len(data["tokens"]), len(data["source_tokens"])) == (3, 5)
    assert data["title"] == mask.describe()
    assert mask.figure(4).to_element(script=False).count("1.0000") == 7


def test_one_sample_and_head() -> None:
    dense = torch.rand(2, 3, 4, 4) > 0.5
    data = data_of(ch.dense(dense).figure(4, sample=1, head=-1))
    assert data["mask"] == ["".join(map(str, row)) for row in dense[1, 2].int().tolist()]
    padded = ch.padding([2, 4])
    assert data_of(padded.figure(4, sample=0))["mask"][0] == "1100"


test_what_is_refused = refusals(
    run,
    (
        lambda: ch.causal().figure(65),
        "figure.size",
        "mask // 65 // 65 // 4,096 // blocks() and plot() show a longer mask.",
    ),
    (lambda: ch.causal().figure(0), "figure.empty", "mask // 0 // 0"),
    (lambda: ch.causal().figure(-1), "length.negative", "query_len // -1"),
    (lambda: ch.padding([2, 4]).figure(4, sample=2), "figure.part", "2 // sample // 2"),
    (lambda: ch.causal().figure(4, head=1), "figure.part", "1 // head // 1"),
)
