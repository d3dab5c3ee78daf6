"""Every rung of the ladder as a trace."""

from typing import Any

import pytest
import torch

import clearhead as ch
from clearhead import ladder, stages
from clearhead.ladder import EXAMPLE_EMBEDDINGS

STAGES = list(stages.NAMES)

RUNGS = {
    "simple": (ladder.SimpleAttention, ()),
    "parameters": (lambda: ladder.SelfAttention(3, head_dim=2), ()),
    "layers": (lambda: ladder.SelfAttentionWithLayers(3, head_dim=2), ()),
    "cross": (lambda: ladder.CrossAttention(3, head_dim=2), (torch.randn(4, 3),)),
    "renormalised": (
        lambda: ladder.RenormalisedAttention(3, head_dim=2, mask=ch.causal()),
        (),
    ),
    "masked": (lambda: ladder.MaskedAttention(3, head_dim=2, mask=ch.causal()), ()),
    "dropout": (
        lambda: ladder.DropoutAttention(3, head_dim=2, mask=ch.causal(), dropout=0.5),
        (),
    ),
    "side by side": (
        lambda: ladder.ConcatenatedHeads(
            [ladder.MaskedAttention(3, head_dim=2, mask=ch.causal()) for _ in range(2)]
        ),
        (),
    ),
    "split": (lambda: ladder.SplitHeads(3, num_heads=3, mask=ch.causal()), ()),
}


@pytest.mark.parametrize("name", RUNGS)
def test_rungs(name: str) -> None:
    make, others = RUNGS[name]
    rung: Any = make()
    rung.eval()
    steps = ch.trace(rung, EXAMPLE_EMBEDDINGS, *others)
    assert set(STAGES) <= set(steps)
    result = steps["output"] if "output" in steps else steps["context"]
    assert torch.allclose(result, rung(EXAMPLE_EMBEDDINGS, *others), atol=1e-6)
    assert steps.difference < 1e-6
    assert steps.kernel == "fused"


def test_a_mask_of_the_call_is_traced() -> None:
    x = torch.stack([EXAMPLE_EMBEDDINGS] * 2)
    rung = ladder.BatchedAttention(3, head_dim=2, mask=ch.causal())
    steps = ch.trace(rung, x, mask=ch.padding([3, 6]))
    assert steps.mask == "causal() & padding([3, 6])"
    assert bool((steps["weights"][0, :, 3:] == 0).all())
    assert steps.difference < 1e-6


def test_heads_side_by_side_that_drop_weights() -> None:
    heads = [ladder.DropoutAttention(3, head_dim=2, dropout=0.5) for _ in range(2)]
    rung = ladder.ConcatenatedHeads(heads)
    steps = ch.trace(rung, EXAMPLE_EMBEDDINGS)
    step = steps.steps["dropped_weights"]
    assert step.same_as is None
    assert step.formula == "dropout 0.5: some weights 0, the others × 2"
    assert bool((step.tensor == 0).any())
    assert "after dropout" in steps.explain(1)
    assert ch.trace(rung.eval(), EXAMPLE_EMBEDDINGS).steps["dropped_weights"].same_as == "weights"


def test_tokens_that_are_not_projected_are_said_to_be_the_input() -> None:
    steps = ch.trace(ladder.SimpleAttention(), EXAMPLE_EMBEDDINGS).steps
    assert {steps[name].formula for name in ("query", "key", "value")} == {"the same as x"}
    steps = ch.trace(ladder.SelfAttention(3, head_dim=2), EXAMPLE_EMBEDDINGS).steps
    assert steps["key"].formula == "key projection of x"


def test_weights_that_are_renormalised_are_explained_as_such() -> None:
    rung = ladder.RenormalisedAttention(3, head_dim=2, mask=ch.causal())
    text = ch.trace(rung, EXAMPLE_EMBEDDINGS).explain(1)
    assert "then 0 where hidden" in text


@pytest.mark.parametrize("kind", [ladder.SimpleAttention, None])
def test_heads_keep_the_scale_of_their_kind(kind: Any) -> None:
    heads = [kind() if kind else ladder.SelfAttention(3, head_dim=2) for _ in range(2)]
    steps = ch.trace(ladder.ConcatenatedHeads(heads), EXAMPLE_EMBEDDINGS)
    assert steps.scale == pytest.approx(1.0 if kind else 2**-0.5)
    assert steps.steps["key"].formula == ("the same as x" if kind else "key projection of x")
    assert steps.difference < 1e-6


@pytest.mark.parametrize("kind", [ladder.MaskedAttention, ladder.RenormalisedAttention])
def test_heads_with_masks_of_their_own(kind: Any) -> None:
    masks = [ch.causal(), ch.sliding_window(left=1), None]
    heads = [kind(3, head_dim=2, mask=mask) for mask in masks]
    rung = ladder.ConcatenatedHeads(heads)
    steps = ch.trace(rung, EXAMPLE_EMBEDDINGS)
    assert steps.mask == "dense(<1 × 3 × 6 × 6>)"
    torch.testing.assert_close(steps["output"], rung(EXAMPLE_EMBEDDINGS))
    assert steps.difference < 1e-6
