"""attend: the table of semantics, row by row."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import clearhead as ch
from tests.attention.kernels.definition import RUNNABLE

NAMES = RUNNABLE
each_kernel = pytest.mark.parametrize("kernel", NAMES)


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


@each_kernel
def test_it_is_what_pytorch_computes_where_they_agree(kernel: str) -> None:
    query, key, value = draw(3, 2, 3, 7, 5).unbind()
    for mask, theirs in (
        (None, {}),
        (ch.causal(), {"is_causal": True}),
        (torch.rand(2, 1, 7, 7) > 0.3, None),
    ):
        given: dict[str, Any] = {"attn_mask": mask} if theirs is None else theirs
        expected = F.scaled_dot_product_attention(query, key, value, **given)
        torch.testing.assert_close(ch.attend(query, key, value, mask=mask, kernel=kernel), expected)


@each_kernel
def test_the_last_query_sits_on_the_last_key(kernel: str) -> None:
    value = torch.arange(4.0, dtype=torch.float64)[None, None, :, None]
    query, key = torch.zeros(1, 1, 2, 1).double(), torch.zeros(1, 1, 4, 1).double()
    context = ch.attend(query, key, value, mask=ch.causal(), kernel=kernel)
    torch.testing.assert_close(context.flatten(), torch.tensor([1.0, 1.5]).double())
    from_the_first = ch.attend(query, key, value, mask=ch.causal(offset=0), kernel=kernel)
    torch.testing.assert_close(from_the_first.flatten(), torch.tensor([0.0, 0.5]).double())


def test_the_order_of_the_options() -> None:
    """Softcap before bias, bias unscaled and before the mask, softmax, then dropout."""
    query, key, value = draw(3, 1, 1, 4, 4).unbind()
    bias = 10 * draw(4, 4)
    scores = 3.0 * torch.tanh(0.25 * (query @ key.mT) / 3.0) + bias
    seen = ch.causal().to_dense(4, 4)
    weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=-1)
    context = ch.attend(query, key, value, mask=seen, bias=bias, scale=0.25, softcap=3.0)
    torch.testing.assert_close(context, weights @ value)
