"""What attention costs as a function: against PyTorch's own, which it runs on."""

import torch
import torch.nn.functional as F

import clearhead as ch
from benchmarks.harness import Sides, case

LENGTHS = [512, 300, 411, 128, 500, 77, 256, 333]


@case("attend-causal-4096", reach="<= 1.02x", work="causal, (1, 12, 4096, 64)")
def causal_long() -> Sides:
    query, key, value = torch.randn(3, 1, 12, 4096, 64).unbind()
    mask = ch.causal()
    return {
        "attend": lambda: ch.attend(query, key, value, mask=mask),
        "scaled_dot_product_attention(is_causal=True)": lambda: F.scaled_dot_product_attention(
            query, key, value, is_causal=True
        ),
    }


@case("attend-causal-16", reach="<= 20us", work="causal, (1, 4, 16, 16)", memory=False)
def causal_tiny() -> Sides:
    query, key, value = torch.randn(3, 1, 4, 16, 16).unbind()
    mask = ch.causal()
    return {
        "attend": lambda: ch.attend(query, key, value, mask=mask),
        "scaled_dot_product_attention(is_causal=True)": lambda: F.scaled_dot_product_attention(
            query, key, value, is_causal=True
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
