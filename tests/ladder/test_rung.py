from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead import ladder
from clearhead.errors import ArgumentError
from clearhead.ladder import SelfAttention, SelfAttentionWithLayers
from clearhead.ladder.rung import Init, Rung
from tests.ladder.refusal import refused


def test_no_rung_is_another() -> None:
    """`isinstance` tells the rungs apart: the right mask is not a kind of the wrong one."""
    public = [getattr(ladder, name) for name in ladder.__all__]
    rungs = [each for each in public if isinstance(each, type) and issubclass(each, Rung)]
    assert len(rungs) == 10
    for rung in rungs:
        assert [other for other in rungs if issubclass(rung, other)] == [rung]


def test_weights_are_copied_in_the_usual_layout() -> None:
    saved = torch.randn(3, 5)
    rung = SelfAttentionWithLayers(5, head_dim=3).with_weights(saved.mT, saved.mT, saved.mT)
    for parameter in rung.parameters():
        assert torch.equal(parameter, saved)
        assert parameter.is_contiguous()
        assert parameter.requires_grad
        assert parameter.data_ptr() != saved.data_ptr()
    matrices = SelfAttention(5, head_dim=3).with_weights(saved.mT, saved.mT, saved.mT)
    assert matrices.query_weight.is_contiguous()


def test_weights_that_are_frozen_stay_so() -> None:
    rung = SelfAttention(5, head_dim=3).requires_grad_(False)
    rung.with_weights(*torch.randn(3, 5, 3))
    assert not any(parameter.requires_grad for parameter in rung.parameters())


@pytest.mark.parametrize("init", ["linear", "normal", "uniform"])
def test_every_rung_draws_the_same_matrices(init: Init) -> None:
    def matrices(kind: Any, **options: Any) -> list[Tensor]:
        torch.manual_seed(7)
        rung = kind(5, head_dim=3, value_head_dim=2, init=init, **options)
        names = ("query", "key", "value")
        if kind is SelfAttention:
            return [getattr(rung, f"{name}_weight") for name in names]
        return [getattr(rung, f"{name}_projection").weight.mT for name in names]

    plain = matrices(SelfAttention)
    for kind in (SelfAttentionWithLayers, ladder.CrossAttention, ladder.MaskedAttention):
        assert all(map(torch.equal, matrices(kind), plain))
    for kind in (ladder.RenormalisedAttention, ladder.DropoutAttention, ladder.BatchedAttention):
        assert all(map(torch.equal, matrices(kind), plain))
    split = matrices(ladder.SplitHeads, num_heads=1)
    assert all(map(torch.equal, split, plain))


def test_another_word_is_refused() -> None:
    for kind in (SelfAttention, ladder.MaskedAttention):
        with refused(ArgumentError, "init.value", "; got 'zeros'"):
            kind(3, head_dim=2, init="zeros")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("rung", "text"),
    [
        (SelfAttention(3, head_dim=2, value_head_dim=4), "3, head_dim=2, value_head_dim=4"),
        (SelfAttentionWithLayers(3, head_dim=2), "3, head_dim=2"),
        (
            ladder.CrossAttention(3, head_dim=2, context_dim=5),
            "3, head_dim=2, context_dim=5",
        ),
        (
            ladder.SplitHeads(6, num_heads=2, mask=ch.causal(), dropout=0.5),
            "6, head_dim=3, num_heads=2, mask=causal(), dropout=0.5",
        ),
        (ladder.SimpleAttention(), ""),
    ],
)
def test_a_rung_says_its_sizes(rung: Rung, text: str) -> None:
    assert rung.extra_repr() == text
    assert text in repr(rung)
