"""The attention beside a module has the heads that a call of the module shows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import clearhead as ch

WIDTH = 64


def heads(x: Tensor, count: int) -> Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def merged(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def by_hand(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value


class Transposed(nn.Module):
    """A linear layer that keeps its matrix transposed, as GPT-2's."""

    def __init__(self, d_out: int, d_in: int) -> None:
        super().__init__()
        self.nf = d_out
        self.weight = nn.Parameter(0.1 * torch.randn(d_in, d_out))
        self.bias = nn.Parameter(torch.zeros(d_out))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).view(*x.shape[:-1], self.nf)


class OneProjection(nn.Module):
    """Query, key and value by one projection, cut into three."""

    def __init__(self, d_in: int = WIDTH, inner: int = WIDTH, num_heads: int = 4) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_in, 3 * inner)
        self.proj = nn.Linear(inner, d_in)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (heads(each, self.num_heads) for each in self.qkv(x).chunk(3, -1))
        return self.proj(merged(by_hand(query, key, value)))


class LikeNanoGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.n_head, self.n_embd = 4, WIDTH

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads(each, self.n_head) for each in self.c_attn(x).split(self.n_embd, dim=2))
        return self.c_proj(merged(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


class LikeGPT2(LikeNanoGPT):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = Transposed(3 * WIDTH, WIDTH), Transposed(WIDTH, WIDTH)


class LikeTimm(nn.Module):
    def __init__(self, dim: int = WIDTH, num_heads: int = 8) -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        packed = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, self.head_dim)
        return self.proj(merged(by_hand(*packed.permute(2, 0, 3, 1, 4).unbind(0))))


class LikeNeoX(nn.Module):
    """The three of one head lie side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.num_attention_heads = 4
        self.query_key_value, self.dense = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        split = heads(self.query_key_value(x), self.num_attention_heads).chunk(3, -1)
        return self.dense(merged(by_hand(*split)))


class PackedParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.out_proj = 4, nn.Linear(WIDTH, WIDTH)
        self.in_proj_weight = nn.Parameter(0.1 * torch.randn(3 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        packed = F.linear(x, self.in_proj_weight).chunk(3, -1)
        return self.out_proj(merged(by_hand(*(heads(each, self.num_heads) for each in packed))))


class OfPyTorch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class KeysAndValues(nn.Module):
    """Key and value by one projection."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.to_q, self.to_kv = 4, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.to_out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        key, value = (heads(each, self.heads) for each in self.to_kv(x).chunk(2, -1))
        return self.to_out(merged(by_hand(heads(self.to_q(x), self.heads), key, value)))


class Grouped(nn.Module):
    """One projection, of fewer keys and values than queries."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.dims = [WIDTH, 8 * groups, 8 * groups]
        self.attn, self.proj = nn.Linear(WIDTH, sum(self.dims)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, *others = (
            heads(each, each.shape[-1] // 8) for each in self.attn(x).split(self.dims, -1)
        )
        key, value = (each.repeat_interleave(8 // each.shape[1], 1) for each in others)
        return self.proj(merged(F.scaled_dot_product_attention(query, key, value, is_causal=True)))


class WiderValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 4 * (8 + 8 + 24)), nn.Linear(4 * 24, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(merged(by_hand(*heads(self.qkv(x), 4).split((8, 8, 24), -1))))


class OneHeadAfterAnother(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * 16) for _ in range(4))
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(torch.cat([by_hand(*each(x).chunk(3, -1)) for each in self.qkv], -1))


class NoAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.qkv = 4, nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.qkv(x)[..., :WIDTH]


class Fails(NoAttention):
    """What takes single numbers of tokens only cannot be observed at others."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float64 or x.shape[1] not in (8, 16):
            raise NotImplementedError("other sizes")
        return super().forward(x)


def profiled(module: nn.Module, **declared: Any) -> ch.Profile:
    return ch.profile(module, takes="x", lengths=(8, 16), rounds=1, seconds=600.0, **declared)


@pytest.mark.parametrize(
    ("make", "words", "declared"),
    [
        (OneProjection, "4 heads of width 16", {}),
        (lambda: OneProjection(48, 64), "4 heads of width 16", {}),
        (lambda: OneProjection(48, 16, 1), "1 head of width 16", {}),
        (LikeNanoGPT, "4 heads of width 16", {"causal": True}),
        (LikeGPT2, "4 heads of width 16", {"causal": True}),
        (LikeTimm, "8 heads of width 8", {}),
        (LikeNeoX, "4 heads of width 16", {}),
        (PackedParameter, "4 heads of width 16", {}),
        (OfPyTorch, "4 heads of width 16", {}),
        (KeysAndValues, "4 heads of width 16", {}),
        (lambda: Grouped(2), "8 heads of width 8, 2 of keys and values", {"causal": True}),
        (lambda: Grouped(1), "8 heads of width 8, 1 of keys and values", {"causal": True}),
        (WiderValues, "4 heads of width 8 (values 24)", {}),
        (OneHeadAfterAnother, "4 heads of width 16", {}),
    ],
)
def test_the_heads_are_those_of_a_call(
    make: Callable[[], nn.Module], words: str, declared: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    module = make()
    found = profiled(module, **declared)
    assert f", {words}, float32" in found.sizes
    assert found.notes == ()
    scale = words.partition("width ")[2].split()[0].rstrip(",")
    assert f"scale 1/√{scale} " in f"{ch.check(module, takes='x', **declared)} "


@pytest.mark.parametrize(
    ("make", "declared", "words", "note"),
    [
        (
            OneProjection,
            {"num_heads": 8},
            "8 heads of width 8",
            "declared are 8 heads of width 8; a call shows 4 heads of width 16",
        ),
        (
            OneProjection,
            {"num_kv_heads": 2, "sizes": {"head_dim": 8, "value_head_dim": 4}},
            "4 heads of width 8 (values 4), 2 of keys and values",
            "declared are 4 heads of width 8 (values 4), 2 of keys and values; a call shows 4 heads "
            "of width 16",
        ),
        (
            lambda: nn.Sequential(OneProjection(), LikeTimm()),
            {},
            "4 heads of width 16",
            "it attends 2 times; the fused call has the heads of the first",
        ),
        (
            NoAttention,
            {},
            "4 heads of width 16",
            "no call shows its heads; the fused call has 4 heads of width 16, as far as declared or "
            "named",
        ),
        (
            Fails,
            {},
            "4 heads of width 16",
            "no call shows its heads; the fused call has 4 heads of width 16, as far as declared or "
            "named",
        ),
    ],
)
def test_what_a_call_does_not_show_is_said(
    make: Callable[[], nn.Module], declared: dict[str, Any], words: str, note: str
) -> None:
    found = profiled(make(), **declared)
    assert f", {words}, float32" in found.sizes
    assert found.notes == (note,)


@pytest.mark.parametrize("causal", [True, False])
def test_a_mask_that_is_taken_hides_what_is_declared(causal: bool) -> None:
    masks: list[Tensor] = []

    def attends(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        masks.append(mask)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    ch.profile(attends, takes="qkv,mask", lengths=(4, 8), rounds=1, seconds=600.0, causal=causal)
    every = torch.ones(8, 8, dtype=torch.bool)
    assert torch.equal(masks[-1][0, 0], every.tril() if causal else every)
