"""Which rank holds which heads; which rank holds which tokens is tested in `tests/sharding`."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead._common.layouts import key_heads


def test_a_key_head_is_there_once_for_a_whole_group() -> None:
    for heads, used in (([0, 1, 2, 3], [0, 1]), ([3, 0], [1, 0]), ([0, 2, 1, 3], [0, 1, 0, 1])):
        assert key_heads(torch.tensor(heads), 2).tolist() == used
    assert key_heads(torch.arange(1, 4), 2).tolist() == [0, 1, 1]


@given(st.lists(st.integers(0, 7), max_size=8, unique=True))
def test_some_heads_have_the_key_heads_that_they_had(heads: list[int]) -> None:
    used = key_heads(torch.tensor(heads, dtype=torch.int64), 4).tolist()
    group = len(heads) // max(1, len(used))
    assert [used[place // group] for place in range(len(heads))] == [head // 4 for head in heads]
