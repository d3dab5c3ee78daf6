"""attend: the table of semantics, row by row."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import clearhead as ch
from clearhead import stages
from tests.attention.kernels.definition import RUNNABLE

NAMES = RUNNABLE
each_kernel = pytest.mark.parametrize("kernel", NAMES)


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


@each_kernel
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_fewer_leading_dimensions(kernel: str, lead: tuple[int, ...]) -> None:
    query, key, value = draw(*lead, 5, 4), draw(*lead, 7, 4), draw(*lead, 7, 2)
    context = ch.attend(query, key, value, kernel=kernel)
    assert context.shape == (*lead, 5, 2)
    expected = stages.compute(query, key, value, scale=0.5).context
    torch.testing.assert_close(context, expected)


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


@each_kernel
def test_a_query_with_nothing_to_see(kernel: str) -> None:
    query, key, value = (t.requires_grad_() for t in draw(3, 1, 2, 3, 4).unbind())
    mask = torch.tensor([[True, True, False], [False] * 3, [True] * 3])
    context = ch.attend(query, key, value, mask=mask, kernel=kernel)
    assert bool((context[:, :, 1] == 0).all())
    gradients = torch.autograd.grad(context.square().sum(), (query, key, value))
    assert all(bool(torch.isfinite(g).all()) for g in gradients)
    assert bool((gradients[0][:, :, 1] == 0).all())


@each_kernel
def test_a_nan_behind_the_mask_stays_there(kernel: str) -> None:
    query, key, value = draw(3, 1, 2, 5, 4).unbind()
    clean = ch.attend(query, key, value, mask=ch.causal(), kernel=kernel)
    key[:, :, -1], value[:, :, -1] = torch.nan, torch.nan
    leaves = [t.requires_grad_() for t in (query, key, value)]
    context = ch.attend(*leaves, mask=ch.causal(), kernel=kernel)
    torch.testing.assert_close(context[:, :, :-1], clean[:, :, :-1])
    assert bool(context[:, :, -1].isnan().all())
    gradients = torch.autograd.grad(context[:, :, :-1].sum(), leaves)
    assert all(bool(torch.isfinite(g).all()) for g in gradients)


@each_kernel
def test_grouped_heads_are_neighbours(kernel: str) -> None:
    query, key, value = draw(2, 6, 5, 4), draw(2, 2, 7, 4), draw(2, 2, 7, 3)
    context = ch.attend(query, key, value, kernel=kernel)
    for head in range(6):
        alone = ch.attend(query[:, head], key[:, head // 3], value[:, head // 3], kernel="eager")
        torch.testing.assert_close(context[:, head], alone)


def test_the_order_of_the_options() -> None:
    """Softcap before bias, bias unscaled and before the mask, softmax, then dropout."""
    query, key, value = draw(3, 1, 1, 4, 4).unbind()
    bias = 10 * draw(4, 4)
    scores = 3.0 * torch.tanh(0.25 * (query @ key.mT) / 3.0) + bias
    seen = ch.causal().to_dense(4, 4)
    weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=-1)
    context = ch.attend(query, key, value, mask=seen, bias=bias, scale=0.25, softcap=3.0)
    torch.testing.assert_close(context, weights @ value)


def test_dropout_drops_weights_and_scales_the_others() -> None:
    value = torch.eye(50).double()[None, None]
    query = key = torch.zeros(1, 1, 50, 1).double()
    weights = ch.attend(query, key, value, dropout=0.25)
    kept = weights[weights != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 50 / 0.75))
    share = kept.numel() / weights.numel()
    # Four standard deviations of 2500 draws.
    assert abs(share - 0.75) < 4 * (0.75 * 0.25 / 2500) ** 0.5
    assert torch.equal(ch.attend(query, key, value, dropout=0.0), ch.attend(query, key, value))


@each_kernel
def test_sinks_take_a_share(kernel: str) -> None:
    query, key, value = draw(3, 1, 2, 5, 4).unbind()
    sinks = draw(2)
    context = ch.attend(query, key, value, sinks=sinks, kernel=kernel)
    scores = torch.exp(query @ key.mT / 2)
    total = scores.sum(-1, keepdim=True) + torch.exp(sinks)[:, None, None]
    torch.testing.assert_close(context, scores / total @ value)


@each_kernel
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_is_kept(kernel: str, dtype: torch.dtype) -> None:
    query, key, value = draw(3, 1, 2, 5, 4, dtype=dtype).unbind()
    assert ch.attend(query, key, value, mask=ch.causal(), kernel=kernel).dtype == dtype


def test_a_misspelt_option_is_named() -> None:
    query, key, value = draw(3, 5, 4).unbind()
    with pytest.raises(TypeError, match="attn_mask"):
        ch.attend(query, key, value, attn_mask=None)  # pyright: ignore[reportCallIssue]


def test_type_checkers_take_three_tensors_in_one() -> None:
    qkv = draw(3, 5, 4)
    torch.testing.assert_close(ch.attend(*qkv), ch.attend(*qkv.unbind()))
    with pytest.raises(TypeError, match="by place"):
        ch.attend(*qkv, qkv[0])  # pyright: ignore[reportCallIssue]
