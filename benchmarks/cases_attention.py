"""The cost of attention as a function: against PyTorch's own, which it runs on."""

from functools import partial

import torch
import torch.nn.functional as F

import clearhead as ch
from benchmarks.harness import Sides, case

LENGTHS = [512, 300, 411, 128, 500, 77, 256, 333]
SMALL_LIMIT = (
    "On one thread the lookup of a known call and the look at three inputs for what is not finite take 30 us; on two "
    "threads of one core, where the waiting one takes its share, Python takes 1.7 times as long."
)
"""The limit of a call of a few microseconds."""
TOKEN_LIMIT = (
    "Keys and values are read once, from memory: of the fused call of one token over 4 096 keys of 12 x 64, a sum over "
    "the keys takes 0.37, the two batched products 0.45 and 0.64, and a product for each head (mv) 2.0. "
    "For eight tokens the fused call with a look at every key takes 1.2 to 2.8."
)
"""The limit of a call of one or a few tokens over a long text."""


def _causal(*shape: int) -> Sides:
    query, key, value = torch.randn(3, *shape).unbind()
    mask = ch.causal()
    return {
        "attend": lambda: ch.attend(query, key, value, mask=mask),
        "scaled_dot_product_attention(is_causal=True)": lambda: F.scaled_dot_product_attention(
            query, key, value, is_causal=True
        ),
    }


@case("attend-causal-4096", reach="<= 1.02x", work="causal, (1, 12, 4096, 64)")
def causal_long() -> Sides:
    return _causal(1, 12, 4096, 64)


@case(
    "attend-causal-16",
    reach="<= 20us",
    work="causal, (1, 4, 16, 16)",
    memory=False,
    limit=SMALL_LIMIT,
)
def causal_tiny() -> Sides:
    return _causal(1, 4, 16, 16)


def _one_token(kv_len: int, heads: int, head_dim: int) -> list[torch.Tensor]:
    query = torch.randn(1, heads, 1, head_dim)
    return [query, *torch.randn(2, 1, heads, kv_len, head_dim).unbind()]


def _tokens(queries: int, heads: int, head_dim: int) -> Sides:
    """The last tokens of 4 096 without a mask, which is what one causal token sees."""
    query = torch.randn(1, heads, queries, head_dim)
    _, key, value = _one_token(4096, heads, head_dim)
    mask = ch.causal() if queries == 1 else None
    return {
        "attend": lambda: ch.attend(query, key, value, mask=mask),
        "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(query, key, value),
    }


for _name, _reach, _work, _sizes in (
    ("token-4096", 0.95, "one token, causal", (1, 12, 64)),
    ("token-4096-wide", 0.75, "one token, causal", (1, 32, 128)),
    ("drafts-4096", 0.95, "eight drafts of a token, no mask", (8, 12, 64)),
):
    case(
        f"attend-{_name}",
        reach=f"<= {_reach}x",
        work=f"{_work}, over 4 096 keys, {_sizes[1]} heads of {_sizes[2]}",
        limit=TOKEN_LIMIT,
    )(lambda sizes=_sizes: _tokens(*sizes))


@case(
    "attend-token-window-4096",
    reach="<= 1.2x",
    work="one token with a window of 1 024 in 4 096 keys, 12 heads of 64",
    limit=TOKEN_LIMIT,
)
def token_window_long() -> Sides:
    return _window(1024, *_one_token(4096, 12, 64))


@case(
    "attend-token-window-16",
    reach="<= 30us",
    work="one token with a window of 8 in 16 keys, 4 heads of 16",
    memory=False,
    limit=SMALL_LIMIT,
)
def token_window_tiny() -> Sides:
    return _window(8, *_one_token(16, 4, 16))


def _window(width: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Sides:
    mask = ch.sliding_window(left=width - 1, right=0)
    return {
        "attend": lambda: ch.attend(query, key, value, mask=mask),
        "scaled_dot_product_attention of the slice": lambda: F.scaled_dot_product_attention(
            query, key[:, :, -width:], value[:, :, -width:]
        ),
    }


@case(
    "attend-token-padding-16",
    reach="<= 60us",
    work="one token, padding that is made in the call, 12 of 16 keys real, 4 heads of 16",
    memory=False,
    limit=SMALL_LIMIT,
)
def token_padding_tiny() -> Sides:
    query, key, value = _one_token(16, 4, 16)
    real = (torch.arange(16) < 12)[None]
    dense = real[:, None, None]
    return {
        "attend": lambda: ch.attend(query, key, value, mask=ch.padding(real)),
        "scaled_dot_product_attention(attn_mask=dense)": lambda: F.scaled_dot_product_attention(
            query, key, value, attn_mask=dense
        ),
    }


def _small(name: str) -> Sides:
    """A call of (1, 4, 16, 16) with what it takes, and PyTorch's with the same mask as a tensor."""
    query, key, value = torch.randn(3, 1, 4, 16, 16).unbind()
    mask, real = ch.causal(), torch.arange(16)[None] < 12
    visible = mask.to_dense(16, 16)
    if name == "grouped":
        key, value = key[:, :1], value[:, :1]
    documents = mask & ch.documents(torch.tensor([[0] * 6 + [1] * 10]))
    bias = ch.alibi(4)
    sloped = bias.to_dense(16, 16).masked_fill(~visible, -torch.inf)
    padded, apart = visible & real[:, None, None], documents.to_dense(16, 16)
    attend = partial(ch.attend, query, key, value)
    ours = {
        "grouped": lambda: attend(mask=mask),
        "causal-padding": lambda: attend(mask=ch.causal() & ch.padding(real)),
        "documents": lambda: attend(mask=documents),
        "alibi": lambda: attend(mask=mask, bias=bias),
    }
    given = {"grouped": visible, "causal-padding": padded, "documents": apart, "alibi": sloped}
    dense, grouped = given[name], name == "grouped"
    return {
        "attend": ours[name],
        "scaled_dot_product_attention(attn_mask=dense)": lambda: F.scaled_dot_product_attention(
            query, key, value, attn_mask=dense, enable_gqa=grouped
        ),
    }


for _name, _reach, _work in (
    ("grouped", 15, "causal, four heads that share a key"),
    ("causal-padding", 60, "causal and padding that are made in the call"),
    ("documents", 60, "two causal documents"),
    ("alibi", 60, "causal with ALiBi"),
):
    case(
        f"attend-{_name}-16",
        reach=f"<= {_reach}us",
        work=f"{_work}, (1, 4, 16, 16)",
        memory=False,
        limit=SMALL_LIMIT,
    )(lambda name=_name: _small(name))


@case(
    "attend-causal-16-backward",
    reach="<= 1.5x",
    work="causal, (1, 4, 16, 16), forward and backward",
    memory=False,
    limit=SMALL_LIMIT,
)
def causal_tiny_backward() -> Sides:
    leaves = [tensor.requires_grad_() for tensor in torch.randn(3, 1, 4, 16, 16).unbind()]
    query, key, value = leaves
    mask = ch.causal()

    def gradients(context: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(context.sum(), leaves)

    return {
        "attend": lambda: gradients(ch.attend(query, key, value, mask=mask)),
        "scaled_dot_product_attention(is_causal=True)": lambda: gradients(
            F.scaled_dot_product_attention(query, key, value, is_causal=True)
        ),
    }


@case(
    "attend-causal-padding-512",
    reach=("<= 1.0x", "<= 1.0x memory"),
    work="causal and padded on the right, (8, 12, 512, 64), rows of 77 to 512 tokens",
)
def causal_and_padded() -> Sides:
    return _padded(LENGTHS)


@case(
    "attend-causal-padding-none-512",
    reach="<= 1.0x",
    work="the same mask with nothing padded, (8, 12, 512, 64)",
)
def causal_and_not_padded() -> Sides:
    return _padded([512] * 8)


def _padded(lengths: list[int]) -> Sides:
    query, key, value = torch.randn(3, 8, 12, 512, 64).unbind()
    mask = ch.causal() & ch.padding(lengths)
    dense = mask.to_dense(512, 512)
    return {
        "attend": lambda: ch.attend(query, key, value, mask=mask),
        "scaled_dot_product_attention(attn_mask=dense)": lambda: F.scaled_dot_product_attention(
            query, key, value, attn_mask=dense
        ),
    }


def _near(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """One more dimension loses digits; that is the point of the case."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)


@case(
    "attend-alibi-4096",
    work="causal with ALiBi, (1, 4, 4096, 64), against ALiBi as one more dimension of the product",
    compare=_near,
)
def alibi() -> Sides:
    query, key, value = torch.randn(3, 1, 4, 4096, 64).unbind()
    mask, bias = ch.causal(), ch.alibi(4)
    slopes, scale = bias.to_dense(1, 2)[..., 0].abs().view(4, 1), 64**-0.5

    def one_more_dimension() -> torch.Tensor:
        more_query, more_key, more_value = (F.pad(t, (0, 1)) for t in (query, key, value))
        more_query[..., 64] = slopes / scale
        more_key[..., 64] = torch.arange(4096.0)
        context = F.scaled_dot_product_attention(
            more_query, more_key, more_value, is_causal=True, scale=scale
        )
        return context[..., :64]

    return {
        "attend": lambda: ch.attend(query, key, value, mask=mask, bias=bias),
        "one more dimension": one_more_dimension,
    }
