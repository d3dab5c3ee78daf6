# pyright: basic
"""The rows behind the heads, by the places of their numbers."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import clearhead as ch
from clearhead.checking.evidence import splitting

BASE = 7
merged: Any = splitting._merged


@given(st.permutations(range(5)), st.sampled_from([1, 3]), st.sampled_from([1, 2]), st.booleans())
def test_rows_of_one_token_each_in_whatever_order(order, dim, batch, apart):
    """One context of 5 tokens, read by what comes next: `apart` is a row for each token of each sample."""
    context = SimpleNamespace(index=1, base=BASE, output=torch.zeros(batch, 5, dim))
    group = [SimpleNamespace(layout=SimpleNamespace(context=context, flip=False))]
    found = [SimpleNamespace(query=torch.arange(5).expand(batch, -1))]
    element = BASE + torch.arange(batch * 5 * dim).view(batch, 5, dim)[:, list(order)]
    element = element if apart else element[0]
    tags = SimpleNamespace(element=element, node=torch.ones_like(element))
    assert merged(tags, group, found) is True
    if dim > 1:  # a row that has a number of the next one
        mixed = element.clone()
        mixed[..., 0, 0] = element[..., 1, 0]
        tags = SimpleNamespace(element=mixed, node=tags.node)
        assert merged(tags, group, found) is False
    unknown = SimpleNamespace(element=element, node=torch.zeros_like(element))
    assert merged(unknown, group, found) is None


class Sliced(nn.Module):
    """Each head has a part of x to itself."""

    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        self.parts = nn.ModuleList(
            nn.ModuleList(nn.Linear(12 // heads, 4, bias=False) for _ in "qkv")
            for _ in range(heads)
        )
        self.out = nn.Linear(4 * heads, 12)

    def forward(self, x):
        contexts = []
        parts: Any = self.parts
        for part, each in zip(parts, x.chunk(self.heads, -1), strict=True):
            query, key, value = (layer(each) for layer in part)
            contexts.append((query @ key.mT / 2).softmax(-1) @ value)
        return self.out(torch.cat(contexts, -1))


@pytest.mark.parametrize("heads", [2, 3])
def test_heads_that_see_a_part_of_x(heads):
    (found,) = ch.check(Sliced(heads), takes="x", causal=False, sizes={"d_in": 12}).findings
    assert found.code == "heads.layout"
