import torch

import clearhead as ch
from clearhead import stages
from clearhead.ladder import (
    BatchedAttention,
    ConcatenatedHeads,
    CrossAttention,
    SelfAttention,
    merge_heads,
)


def test_contexts_stand_side_by_side() -> None:
    heads = [BatchedAttention(5, head_dim=3, value_head_dim=2, mask=ch.causal()) for _ in range(3)]
    rung = ConcatenatedHeads(heads)
    x = torch.randn(2, 7, 5)
    torch.testing.assert_close(rung(x), torch.cat([head(x) for head in heads], dim=-1))
    steps = rung.stages(x)
    assert steps.weights.shape == (2, 3, 7, 7)
    assert steps.context.shape == (2, 3, 7, 2)
    torch.testing.assert_close(merge_heads(steps.context), rung(x))
    torch.testing.assert_close(steps.weights[:, 1], heads[1].stages(x).weights)


def test_heads_may_be_of_any_kind_and_take_what_they_take() -> None:
    cross = ConcatenatedHeads([CrossAttention(5, head_dim=3, context_dim=13) for _ in range(2)])
    x, context = torch.randn(7, 5), torch.randn(11, 13)
    torch.testing.assert_close(cross(x, context), cross(x, context=context))
    assert cross.stages(x, context).scores.shape == (2, 7, 11)
    mixed = ConcatenatedHeads([SelfAttention(5, head_dim=3), CrossAttention(5, head_dim=3)])
    assert mixed(x).shape == (7, 6)
    padded = ConcatenatedHeads([BatchedAttention(5, head_dim=3)])
    assert padded(x[None], mask=ch.padding([4])).shape == (1, 7, 3)


def test_query_key_and_value_are_stacked_like_the_stages() -> None:
    heads = [SelfAttention(5, head_dim=3, value_head_dim=2) for _ in range(4)]
    rung, x = ConcatenatedHeads(heads), torch.randn(7, 5)
    query, key, value = rung.project(x)
    assert (query.shape, key.shape, value.shape) == ((4, 7, 3), (4, 7, 3), (4, 7, 2))
    steps = stages.compute(query, key, value, scale=3**-0.5)
    torch.testing.assert_close(rung.stages(x), steps)
