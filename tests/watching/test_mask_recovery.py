"""Tensors that say what a description says, and those that do not."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead.watching.mask_recovery import read_bias, read_mask

VALID = torch.tensor([[True, True, True, False, False], [False, False, True, True, True]])
PAST = torch.ones(5, 5, dtype=torch.bool).tril()

READ: dict[str, tuple[Tensor, str]] = {
    "full": (torch.ones(3, 5, dtype=torch.bool), "full()"),
    "full per sample": (torch.ones(2, 3, 5, 7, dtype=torch.bool), "full()"),
    "causal": (PAST, "causal()"),
    "causal, written out": (PAST.repeat(2, 3, 1, 1), "causal()"),
    "causal behind a cache": (torch.ones(3, 7, dtype=torch.bool).tril(4), "causal()"),
    "padding": (VALID[:, None, None], "padding(<valid 2 × 5>)"),
    "padding of every query": (VALID[:, None, None].repeat(1, 3, 7, 1), "padding(<valid 2 × 5>)"),
    "both": (PAST & VALID[:, None, None], "causal() & padding(<valid 2 × 5>)"),
    "window": (PAST.triu(-2), "causal() & sliding_window(left=2, right=None)"),
    "window behind a cache": (
        torch.ones(3, 7, dtype=torch.bool).tril(4).triu(3),
        "causal() & sliding_window(left=1, right=None)",
    ),
    "window on both sides": (
        torch.ones(5, 5, dtype=torch.bool).tril(1).triu(-2),
        "sliding_window(left=2, right=1)",
    ),
    "window and padding": (
        PAST.triu(-2) & torch.tensor([False, True, True, True, True]),
        "causal() & sliding_window(left=2, right=None) & padding(<valid 5>)",
    ),
    "chunks": (
        PAST & (torch.arange(5)[:, None] // 2 == torch.arange(5) // 2),
        "documents([0, 0, 1, 1, 2]) & causal()",
    ),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_read(name: str) -> None:
    tensor, described = READ[name]
    mask = read_mask(tensor)
    assert mask is not None
    assert mask.describe() == described
    drawn = mask.to_dense(*tensor.shape[-2:])
    assert torch.equal(drawn.expand(tensor.shape), tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3, dtype=torch.bool).flip(0),
        torch.eye(5, dtype=torch.bool) | torch.ones(5, 5, dtype=torch.bool).tril(-2),
        torch.ones(3, 5, dtype=torch.bool).tril(),  # from the first key on
        PAST & (torch.arange(25).view(5, 5) != 16),  # all but one key
        torch.stack([PAST, PAST.mT]),
        torch.stack([PAST, ~PAST])[None],
        VALID[:, None],  # samples or heads
        torch.ones(0, 5, dtype=torch.bool),
        torch.ones(2, 1, 5, 0, dtype=torch.bool),
        torch.ones(5, 5, dtype=torch.bool, device="meta"),
    ],
    ids=str,
)
def test_what_stays_a_tensor(tensor: Tensor) -> None:
    assert read_mask(tensor) is None


def test_what_is_read_is_a_copy() -> None:
    tensor = VALID[:, None, None].clone()
    mask = read_mask(tensor)
    tensor.fill_(True)
    assert mask is not None
    assert torch.equal(mask.to_dense(1, 5)[:, 0, 0], VALID)


@given(st.data())
def test_no_reading_says_something_else(data: st.DataObject) -> None:
    """Whatever is read draws the tensor that it was read from."""
    batch, query_len, kv_len = (data.draw(st.integers(1, 3)) for _ in range(3))
    count = batch * query_len * kv_len
    bits = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    tensor = torch.tensor(bits).view(batch, 1, query_len, kv_len)
    mask = read_mask(tensor)
    if mask is not None:
        assert torch.equal(mask.to_dense(query_len, kv_len).expand(tensor.shape), tensor)


@given(st.data())
def test_every_description_is_read_back(data: st.DataObject) -> None:
    batch, query_len, kv_len = (data.draw(st.integers(1, 5)) for _ in range(3))
    bits = data.draw(st.lists(st.booleans(), min_size=batch * kv_len, max_size=batch * kv_len))
    mask: ch.Mask = ch.padding(torch.tensor(bits).view(batch, kv_len))
    if data.draw(st.booleans()):
        mask = ch.causal() & mask
    tensor = mask.to_dense(query_len, kv_len).view(batch, 1, query_len, kv_len)
    read = read_mask(tensor)
    assert read is not None
    assert torch.equal(read.to_dense(query_len, kv_len).expand(tensor.shape), tensor)


def test_an_additive_mask_is_split_into_what_it_hides_and_the_rest() -> None:
    past = torch.ones(3, 5).tril().bool()
    hiding = torch.zeros(3, 5).masked_fill(~past, -torch.inf)
    for other in (0.0, 1.0, -1e30, torch.finfo(torch.float32).min):
        changed = hiding.clone()
        changed[2, 1] = other
        visible, rest = read_bias(changed)
        hides = other < -1e38
        assert visible is not None
        assert visible.equal(past & (torch.arange(15).view(3, 5) != 11) if hides else past)
        assert (rest is None) == (hides or not other)
        assert rest is None or (rest[2, 1] == other and rest.count_nonzero() == 1)
    adding = torch.ones(3, 5)
    assert read_bias(adding) == (None, adding)
    assert read_bias(hiding.to("meta"))[0] is None
