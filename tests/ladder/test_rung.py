import torch

from clearhead import ladder
from clearhead.ladder import SelfAttention, SelfAttentionWithLayers
from clearhead.ladder.rung import Rung


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
