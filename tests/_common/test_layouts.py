"""Which rank holds which heads; which rank holds which tokens is tested in `tests/sharding`."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead._common.layouts import BALANCED, LAYOUTS, head_layout, key_heads, layout_of


def test_a_key_head_is_there_once_for_a_whole_group() -> None:
    for heads, used in (([0, 1, 2, 3], [0, 1]), ([3, 0], [1, 0]), ([0, 2, 1, 3], [0, 1, 0, 1])):
        assert key_heads(torch.tensor(heads), 2).tolist() == used
    assert key_heads(torch.arange(1, 4), 2).tolist() == [0, 1, 1]


@given(st.lists(st.integers(0, 7), max_size=8, unique=True))
def test_some_heads_have_the_key_heads_that_they_had(heads: list[int]) -> None:
    used = key_heads(torch.tensor(heads, dtype=torch.int64), 4).tolist()
    group = len(heads) // max(1, len(used))
    assert [used[place // group] for place in range(len(heads))] == [head // 4 for head in heads]


@given(st.sampled_from(LAYOUTS), st.integers(0, 40), st.integers(1, 5), st.booleans())
def test_every_layout_gives_each_token_to_one_rank(
    name: str, tokens: int, world: int, causal: bool
) -> None:
    """Ranks have as many tokens as can be, but where they are balanced: there the pairs are."""
    pairs = torch.arange(1, tokens + 1).double() if causal else torch.ones(tokens).double()
    order, counts = layout_of(name, tokens, world, lambda: pairs)
    assert order.sort().values.tolist() == list(range(tokens))
    assert len(counts) == world
    assert sum(counts) == tokens
    if name == "contiguous":
        assert order.tolist() == list(range(tokens))
    loads = [float(pairs[each].sum()) for each in order.split(list(counts))]
    if name == "balanced":
        # Chunks are halved until ranks are alike, or of one token, which is the largest difference then.
        enough = float(pairs.sum()) * max(BALANCED / world, 1 / max(1, tokens))
        assert max(loads) - min(loads) <= max(enough, float(pairs.max()) if tokens else 0.0)
    given_again = layout_of(order.split(list(counts)), tokens, world, lambda: pairs)
    assert torch.equal(given_again.order, order)
    assert given_again.counts == counts


@given(st.integers(0, 12), st.integers(1, 4))
def test_heads_are_shared_as_evenly_as_can_be(heads: int, world: int) -> None:
    order, counts = head_layout(heads, world)
    assert order.tolist() == list(range(heads))
    assert max(counts) - min(counts) <= 1
