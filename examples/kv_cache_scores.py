"""Scores that say which keys of a cache to keep, from a model on its own kernel.

    clearhead samples install smollm2
    python examples/kv_cache_scores.py [FILE.txt [TOKENS]]

H2O, SnapKV and TOVA drop keys of a KV cache by the attention that they get. Libraries take it from eager attention,
whose matrices are tokens × tokens for each head; here each layer's scores are made before its call runs, in O(tokens)
memory, and the model keeps its kernel.
"""

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import clearhead as ch

WINDOW, POOL = 64, 5
"""SnapKV: the last queries, which vote, and the keys that are averaged."""

KEPT = 0.5
"""The share of the keys that is kept."""


def h2o(weights: ch.AttentionMatrix) -> Tensor:
    """Return what each key gets, on average over the queries that see it (Zhang et al., 2023, https://arxiv.org/abs/2306.14048)."""
    length, group = weights.kv_len, weights.num_heads // weights.num_kv_heads
    return weights.received() / group / torch.arange(length, 0, -1, device=weights.device)


def snapkv(weights: ch.AttentionMatrix) -> Tensor:
    """Return what each key gets from the last queries, pooled (Li et al., 2024, https://arxiv.org/abs/2404.14469)."""
    votes = weights[..., -WINDOW:, :-WINDOW].mean(dim=2)
    pooled = torch.nn.functional.avg_pool1d(votes, POOL, stride=1, padding=POOL // 2)
    scores = pooled.unflatten(1, (weights.num_kv_heads, -1)).mean(dim=2)
    # The window itself is kept.
    return torch.nn.functional.pad(scores, (0, WINDOW), value=float(scores.max()) + 1)


def tova(weights: ch.AttentionMatrix) -> Tensor:
    """Return what each key gets from the last query, over all heads (Oren et al., 2024, https://arxiv.org/abs/2401.06104)."""
    scores = weights[..., -1, :-1].mean(dim=1, keepdim=True)
    scores = torch.nn.functional.pad(scores, (0, 1), value=float(scores.max()) + 1)
    return scores.expand(-1, weights.num_kv_heads, -1)


SCORES: dict[str, Callable[[ch.AttentionMatrix], Tensor]] = {
    "H2O": h2o,
    "SnapKV": snapkv,
    "TOVA": tova,
}


def watching(model: Any, name: str) -> Any:
    """Watch a model and keep the scores of each layer, (batch, num_kv_heads, kv_len), alone."""
    return ch.watch(model, keep=lambda path, weights: SCORES[name](weights))


def kept(scores: Tensor, share: float = KEPT) -> Tensor:
    """The keys with the highest scores, in order, (batch, num_kv_heads, count)."""
    return scores.topk(int(scores.shape[-1] * share), dim=-1).indices.sort(dim=-1).values


def press(model: Any, seen: Any, base: type = object) -> type:
    """A press for NVIDIA's kvpress, given its `ScorerPress` as the base: its `score` returns what a watch has kept.

    Attention of a layer is watched before the hook of the press runs behind it, so the scores are there.
    """
    paths = {id(module): path for path, module in model.named_modules()}

    class WatchedPress(base):
        def score(
            self,
            module: Any,
            hidden_states: Tensor,
            keys: Tensor,
            values: Tensor,
            attentions: Tensor | None,
            kwargs: dict[str, Any],
        ) -> Tensor:
            return seen.calls(paths[id(module)])[-1]

    return WatchedPress


def main() -> None:
    sample = ch.samples.smollm2()
    text = Path(sys.argv[1]).read_text() if len(sys.argv) > 1 else str(__doc__) * 9
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1024
    ids = sample.tokenizer(text, return_tensors="pt")["input_ids"][:, :count]
    config = sample.model.config
    heads = config.num_hidden_layers * config.num_attention_heads
    print(
        f"{ids.shape[1]} tokens; eager matrices take {heads * ids.shape[1] ** 2 * 4 / 1e9:.1f} GB"
    )
    for name in ("none", *SCORES):
        begun = time.perf_counter()
        with torch.no_grad():
            if name == "none":
                sample.model(ids, use_cache=False, logits_to_keep=1)
                found = "the model alone"
            else:
                with watching(sample.model, name) as seen:
                    sample.model(ids, use_cache=False, logits_to_keep=1)
                first = kept(seen[0])[0, 0, :6].tolist()
                found = f"keeps {first} … in layer 0, key head 0"
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"{name:7}{time.perf_counter() - begun:7.1f} s, peak so far {peak:.2f} GB: {found}")


if __name__ == "__main__":
    main()
