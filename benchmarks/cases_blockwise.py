"""What attention block by block costs, forward and backward: against PyTorch's own with the mask as a
tensor, and against the formula written out."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import clearhead as ch
from benchmarks.harness import Side, Sides, case
from clearhead.kernels import blockwise
from clearhead.problem import Problem, pose

Attention = Callable[[], Tensor]


def _drawn(tokens: int) -> list[Tensor]:
    return [tensor.requires_grad_() for tensor in torch.randn(3, 1, 8, tokens, 64).unbind()]


def _forward(attention: Attention) -> Side:
    def run() -> Tensor:
        with torch.no_grad():
            return attention()

    return run


def _both_passes(attention: Attention, leaves: list[Tensor]) -> Side:
    def run() -> tuple[Tensor, ...]:
        context = attention()
        return context.detach(), *torch.autograd.grad(context.square().sum(), leaves)

    return run


def _against_a_dense_mask(mask: ch.Mask) -> tuple[list[Tensor], dict[str, Attention]]:
    leaves = _drawn(8192)
    query, key, value = leaves
    problem = pose(query, key, value, mask=mask)
    dense = mask.to_dense(8192, 8192)
    return leaves, {
        "blockwise": lambda: blockwise.attend(problem),
        "scaled_dot_product_attention(attn_mask=dense)": lambda: F.scaled_dot_product_attention(
            query, key, value, attn_mask=dense
        ),
    }


def _near(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    """Gradients are held to the largest of them: small ones are differences of large ones."""
    for mine, other in zip(ours, theirs, strict=True):
        largest = other.abs().max().item()
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5 * largest)


@case(
    "blockwise-window-8192",
    reach="<= 0.10x",
    work="a causal window of 256, (1, 8, 8192, 64), forward",
    rounds=3,
)
def window() -> Sides:
    _, sides = _against_a_dense_mask(ch.sliding_window(left=255, right=0))
    return {name: _forward(side) for name, side in sides.items()}


@case(
    "blockwise-window-8192-backward",
    reach="<= 0.15x",
    work="a causal window of 256, (1, 8, 8192, 64), forward and backward",
    compare=_near,
    rounds=3,
)
def window_backward() -> Sides:
    leaves, sides = _against_a_dense_mask(ch.sliding_window(left=255, right=0))
    return {name: _both_passes(side, leaves) for name, side in sides.items()}


@case(
    "blockwise-documents-8192-backward",
    reach="<= 0.12x",
    work="16 causal documents of 512, (1, 8, 8192, 64), forward and backward",
    compare=_near,
    rounds=3,
)
def documents_backward() -> Sides:
    ids = torch.arange(8192) // 512
    leaves, sides = _against_a_dense_mask(ch.causal() & ch.documents(ids))
    return {name: _both_passes(side, leaves) for name, side in sides.items()}


@case(
    "blockwise-softcap-4096-backward",
    reach=("<= 0.5x", "<= 0.1x memory"),
    work="causal with a softcap, (1, 8, 4096, 64), forward and backward",
    compare=_near,
    rounds=2,
)
def softcap_backward() -> Sides:
    leaves = _drawn(4096)
    query, key, value = leaves
    problem: Problem = pose(query, key, value, mask=ch.causal(), softcap=30.0)
    hidden = ~ch.causal().to_dense(4096, 4096)

    def formula() -> Tensor:
        scores = 30.0 * torch.tanh(query @ key.mT * (64**-0.5 / 30.0))
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value

    return {
        "blockwise": _both_passes(lambda: blockwise.attend(problem), leaves),
        "the formula": _both_passes(formula, leaves),
    }
