import torch

import clearhead as ch
from clearhead.errors import ArgumentError, ArgumentTypeError, ShapeError
from clearhead.ladder import (
    BatchedAttention,
    ConcatenatedHeads,
    CrossAttention,
    SelfAttention,
    SimpleAttention,
    SplitHeads,
    merge_heads,
)
from tests.ladder.refusal import refused


def test_one_head_is_the_rung_itself() -> None:
    head = SelfAttention(5, head_dim=3)
    x = torch.randn(7, 5)
    assert torch.equal(ConcatenatedHeads([head])(x), head(x))


def test_contexts_stand_side_by_side() -> None:
    heads = [BatchedAttention(5, head_dim=3, value_head_dim=2, mask=ch.causal()) for _ in range(3)]
    rung = ConcatenatedHeads(heads)
    x = torch.randn(2, 7, 5)
    assert torch.equal(rung(x), torch.cat([head(x) for head in heads], dim=-1))
    steps = rung.stages(x)
    assert steps.weights.shape == (2, 3, 7, 7)
    assert steps.context.shape == (2, 3, 7, 2)
    assert torch.equal(merge_heads(steps.context), rung(x))
    assert torch.equal(steps.weights[:, 1], heads[1].stages(x).weights)


def test_heads_may_be_of_any_kind_and_take_what_they_take() -> None:
    cross = ConcatenatedHeads([CrossAttention(5, head_dim=3, context_dim=13) for _ in range(2)])
    x, context = torch.randn(7, 5), torch.randn(11, 13)
    assert torch.equal(cross(x, context), cross(x, context=context))
    assert cross.stages(x, context).scores.shape == (2, 7, 11)
    mixed = ConcatenatedHeads([SelfAttention(5, head_dim=3), CrossAttention(5, head_dim=3)])
    assert mixed(x).shape == (7, 6)
    padded = ConcatenatedHeads([BatchedAttention(5, head_dim=3)])
    assert padded(x[None], mask=ch.padding([4])).shape == (1, 7, 3)


def test_all_heads_learn() -> None:
    rung = ConcatenatedHeads(SelfAttention(5, head_dim=3) for _ in range(3))
    rung(torch.randn(7, 5)).square().sum().backward()
    assert len(list(rung.parameters())) == 9
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in rung.parameters())


def test_refusals() -> None:
    x = torch.zeros(7, 5)
    with refused(ArgumentError, "rung.heads", "heads must be one rung or more; got none"):
        ConcatenatedHeads([])
    with refused(ArgumentTypeError, "rung.heads", "weights of their own; got Linear"):
        ConcatenatedHeads([torch.nn.Linear(5, 3)])  # pyright: ignore[reportArgumentType]
    with refused(ArgumentTypeError, "rung.heads", "weights of their own; got SimpleAttention"):
        ConcatenatedHeads([SimpleAttention()])
    with refused(ShapeError, "rung.heads", "contexts of one shape; got (7, 2), (7, 3) for x of"):
        ConcatenatedHeads([SelfAttention(5, head_dim=2), SelfAttention(5, head_dim=3)])(x)
    with refused(
        ShapeError, "rung.heads", "rungs of one head, with contexts of one shape; got (1, 7"
    ):
        ConcatenatedHeads([SplitHeads(5, num_heads=1)])(x)
