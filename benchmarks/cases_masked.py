"""The cost of attention with a mask, forward and backward: against PyTorch's own on the tiles of a window or on each
document, against FlexAttention, and against the formula written out."""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import clearhead as ch
from benchmarks.harness import Side, Sides, case

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


def _by_tiles(query: Tensor, key: Tensor, value: Tensor, size: int = 64) -> Tensor:
    """Attention of a causal window of 256 in one call: tiles of queries, and the keys that each of them sees."""
    tiles, width = query.shape[2] // size, size + 255
    key, value = (F.pad(each, (0, 0, 255, 0))[0].unfold(1, width, size).mT for each in (key, value))
    query_index, key_index = torch.arange(size)[:, None], torch.arange(width)
    visible = (key_index >= query_index) & (key_index <= query_index + 255)
    real = torch.arange(tiles)[:, None] * size + key_index >= 255
    context = F.scaled_dot_product_attention(
        query[0].unflatten(1, (tiles, size)), key, value, attn_mask=visible & real[:, None]
    )
    return context.flatten(1, 2)[None]


def _one_by_one(query: Tensor, key: Tensor, value: Tensor, lengths: list[int]) -> Tensor:
    """Attention of causal documents, a call each."""
    each = zip(*(tensor.split(lengths, dim=2) for tensor in (query, key, value)), strict=True)
    parts = [F.scaled_dot_product_attention(*document, is_causal=True) for document in each]
    return torch.cat(parts, dim=2)


def _of_a_window() -> tuple[list[Tensor], dict[str, Attention]]:
    leaves, mask = _drawn(8192), ch.sliding_window(left=255, right=0)
    query, key, value = leaves
    return leaves, {
        "attend": lambda: ch.attend(query, key, value, mask=mask),
        "scaled_dot_product_attention of the tiles": lambda: _by_tiles(query, key, value),
    }


def _of_documents(
    leaves: list[Tensor], lengths: list[int]
) -> tuple[list[Tensor], dict[str, Attention]]:
    query, key, value = leaves
    mask = ch.causal() & ch.documents(lengths=lengths)
    return leaves, {
        "attend": lambda: ch.attend(query, key, value, mask=mask),
        "scaled_dot_product_attention of each": lambda: _one_by_one(query, key, value, lengths),
    }


def _unequal(tokens: int) -> list[int]:
    """Lengths of 150 to 900 tokens."""
    lengths = ([700, 300, 450, 900, 150] * (tokens // 2500 + 1))[: tokens // 500 + 1]
    while sum(lengths) > tokens:
        lengths.pop()
    return [*lengths, tokens - sum(lengths)] if sum(lengths) < tokens else lengths


def near(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    """Gradients are held to the largest of them: small ones are differences of large ones."""
    for mine, other in zip(ours, theirs, strict=True):
        largest = other.abs().max().item()
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5 * largest)


@case(
    "masked-window-8192",
    reach="<= 1.0x",
    work="a causal window of 256, (1, 8, 8192, 64), forward",
    rounds=3,
)
def window() -> Sides:
    _, sides = _of_a_window()
    return {name: _forward(side) for name, side in sides.items()}


@case(
    "masked-window-8192-backward",
    reach="<= 1.0x",
    work="a causal window of 256, (1, 8, 8192, 64), forward and backward",
    compare=near,
    rounds=3,
)
def window_backward() -> Sides:
    leaves, sides = _of_a_window()
    return {name: _both_passes(side, leaves) for name, side in sides.items()}


@case(
    "masked-documents-8192-backward",
    reach="<= 1.1x",
    work="16 causal documents of 512, (1, 8, 8192, 64), forward and backward",
    compare=near,
    rounds=3,
)
def documents_backward() -> Sides:
    leaves, sides = _of_documents(_drawn(8192), [512] * 16)
    return {name: _both_passes(side, leaves) for name, side in sides.items()}


def _of_unequal_documents(backward: bool, *shape: int) -> Sides:
    drawn = [tensor.requires_grad_() for tensor in torch.randn(3, 1, *shape).unbind()]
    leaves, sides = _of_documents(drawn, _unequal(shape[1]))
    if backward:
        return {name: _both_passes(side, leaves) for name, side in sides.items()}
    return {name: _forward(side) for name, side in sides.items()}


for _shape in ((4, 8192, 64), (1, 32768, 32)):
    _work = f"causal documents of 150 to 900, {(1, *_shape)}, forward"
    case(f"masked-documents-unequal-{_shape[1]}", reach="<= 1.1x", work=_work, rounds=3)(
        lambda shape=_shape: _of_unequal_documents(False, *shape)
    )
    case(
        f"masked-documents-unequal-{_shape[1]}-backward",
        reach="<= 1.1x",
        work=f"{_work} and backward",
        compare=near,
        rounds=3,
    )(lambda shape=_shape: _of_unequal_documents(True, *shape))


@case(
    "masked-softcap-4096-backward",
    reach=("<= 0.5x", "<= 0.1x memory"),
    work="causal with a softcap, (1, 8, 4096, 64), forward and backward",
    compare=near,
    rounds=2,
)
def softcap_backward() -> Sides:
    leaves = _drawn(4096)
    query, key, value = leaves
    hidden = ~ch.causal().to_dense(4096, 4096)

    def formula() -> Tensor:
        scores = 30.0 * torch.tanh(query @ key.mT * (64**-0.5 / 30.0))
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value

    return {
        "attend": _both_passes(
            lambda: ch.attend(query, key, value, mask=ch.causal(), softcap=30.0), leaves
        ),
        "the formula": _both_passes(formula, leaves),
    }


def _of_one_window(longer: Tensor, shorter: Tensor) -> None:
    """A query sees its window, whatever comes later: the beginnings are the same."""
    torch.testing.assert_close(longer[:, :, : shorter.shape[2]], shorter, rtol=1e-4, atol=1e-5)


@case(
    "masked-window-65536",
    reach=("<= 8.8x", "<= 8.8x memory"),
    work="a causal window of 256, 8 heads of 64, 65 536 tokens against 8 192",
    compare=_of_one_window,
    rounds=3,
)
def linear() -> Sides:
    query, key, value = torch.randn(3, 1, 8, 65536, 64).unbind()
    mask = ch.sliding_window(left=255, right=0)

    def attend(tokens: int) -> Tensor:
        few = [each[:, :, :tokens] for each in (query, key, value)]
        return ch.attend(few[0], few[1], few[2], mask=mask)

    return {"65 536 tokens": lambda: attend(65536), "8 192 tokens": lambda: attend(8192)}


def _against_flex(
    shape: tuple[int, ...],
    visible: Callable[..., Tensor],
    scores: Callable[..., Tensor] | None = None,
    **options: Any,
) -> Sides:
    """Attention with these options, and FlexAttention with its block mask, compiled and run once."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    query, key, value = torch.randn(3, *shape).unbind()
    blocks = create_block_mask(visible, None, None, shape[2], shape[2], device="cpu")
    compiled = torch.compile(flex_attention)

    def by_flex() -> Tensor:
        with torch.no_grad():
            return compiled(query, key, value, score_mod=scores, block_mask=blocks)

    by_flex()
    return {"attend": lambda: ch.attend(query, key, value, **options), "flex_attention": by_flex}


def _earlier(b: Tensor, h: Tensor, query_index: Tensor, key_index: Tensor) -> Tensor:
    return query_index >= key_index


@case(
    "masked-window-8192-flex",
    reach="<= 1.0x",
    work="a causal window of 256, (1, 8, 8192, 64), forward; compiling and the block mask left out",
    rounds=3,
)
def flex() -> Sides:
    def visible(b: Tensor, h: Tensor, query_index: Tensor, key_index: Tensor) -> Tensor:
        behind = query_index - key_index
        return (behind >= 0) & (behind <= 255)

    return _against_flex((1, 8, 8192, 64), visible, mask=ch.sliding_window(left=255, right=0))


@case(
    "masked-documents-8192-flex",
    reach="<= 1.0x",
    work="16 causal documents of 512, (1, 8, 8192, 64), forward; compiling and the block mask left out",
    clock=time.process_time,
    limit="The one fused call over tiles alone takes 0.95 of attend; the look at 50 MB for what is not finite, which "
    "flex_attention has none of, takes 0.02 to 0.04.",
)
def flex_documents() -> Sides:
    ids = torch.arange(8192) // 512

    def visible(b: Tensor, h: Tensor, query_index: Tensor, key_index: Tensor) -> Tensor:
        return (query_index >= key_index) & (ids[query_index] == ids[key_index])

    return _against_flex((1, 8, 8192, 64), visible, mask=ch.causal() & ch.documents(ids))


@case(
    "masked-alibi-4096-flex",
    reach="<= 1.2x",
    work="causal with ALiBi, (1, 8, 4096, 64), forward; compiling and the block mask left out",
    clock=time.process_time,
)
def flex_alibi() -> Sides:
    bias = ch.alibi(8)
    slopes = -bias.to_dense(1, 2)[0, :, 0, 0]

    def sloped(score: Tensor, b: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score - slopes[head] * (query - key)

    return _against_flex((1, 8, 4096, 64), _earlier, sloped, mask=ch.causal(), bias=bias)


@case(
    "masked-softcap-4096-flex",
    reach="<= 1.3x",
    work="causal with a softcap, (1, 8, 4096, 64), forward; compiling and the block mask left out",
    clock=time.process_time,
)
def flex_softcap() -> Sides:
    def capped(score: Tensor, b: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return 30.0 * torch.tanh(score / 30.0)

    return _against_flex((1, 8, 4096, 64), _earlier, capped, mask=ch.causal(), softcap=30.0)
