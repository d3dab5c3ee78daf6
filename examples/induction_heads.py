"""Induction heads and sinks of a trained language model, and whether the loss needs them.

    clearhead samples install smollm2
    python examples/induction_heads.py [PICTURE.png]

On random tokens that repeat, nothing but what came before tells the next token. Heads that look at the token after
the last occurrence of the present one (Olsson et al., 2022, https://arxiv.org/abs/2209.11895) are found by their
roles, and ablated.
"""

import sys
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

import clearhead as ch

TEXT = (
    "The animal didn't cross the street because it was too tired. Attention lets each word of a sentence look at the "
    "others, and take from them what it needs to be understood."
)
HALF, BATCH = 64, 4
"""Tokens before they repeat, and samples."""

Head = tuple[str, int]


def repeated(vocabulary: int, *, half: int = HALF, batch: int = BATCH, seed: int = 0) -> Tensor:
    """Random tokens, twice, (batch, 2 · half)."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, vocabulary, (batch, half), generator=generator)
    return torch.cat([ids, ids], dim=1)


def loss_of_the_repeat(logits: Tensor, ids: Tensor) -> Tensor:
    """The mean loss of the second half, in nats."""
    half = ids.shape[1] // 2
    predicted = logits[:, half:-1].flatten(0, 1)
    return torch.nn.functional.cross_entropy(predicted, ids[:, half + 1 :].flatten())


@torch.no_grad()
def table_of(model: Any, ids: Tensor) -> ch.types.Table:
    """The roles of all heads on these tokens."""
    with ch.watch(model, keep="summary") as seen:
        model(ids, use_cache=False)
    return seen.table()


@torch.no_grad()
def loss_without(model: Any, ids: Tensor, heads: list[Head]) -> float:
    """The loss of the repeat with some heads ablated."""
    edit = ch.edit(model)
    for layer, head in heads:
        edit[layer].heads[head].ablate()
    with edit if heads else nullcontext():
        return float(loss_of_the_repeat(model(ids, use_cache=False).logits, ids))


def strongest(table: ch.types.Table, count: int = 2) -> list[Head]:
    """The heads with the highest induction scores."""
    rows = sorted(table, key=lambda row: -(row.induction or 0.0))
    return [(row.layer, row.head) for row in rows[:count]]


def sinks(table: ch.types.Table) -> list[Head]:
    """The heads that give more than half of their weight to the first token."""
    return [(row.layer, row.head) for row in table if (row.first or 0.0) > 0.5]


def random_heads(table: ch.types.Table, *, seed: int, count: int = 2) -> list[Head]:
    """Some heads that are no induction heads."""
    others = [(row.layer, row.head) for row in table if (row.induction or 0.0) < 0.1]
    generator = torch.Generator().manual_seed(seed)
    return [others[place] for place in torch.randperm(len(others), generator=generator)[:count]]


def draw(table: ch.types.Table, file: str) -> None:
    """The induction score of each head, layers × heads, as a picture."""
    from matplotlib import pyplot

    layers = list(dict.fromkeys(row.layer for row in table))
    values = torch.zeros(len(layers), 1 + max(row.head for row in table))
    for row in table:
        values[layers.index(row.layer), row.head] = row.induction or 0.0
    figure, axes = pyplot.subplots(figsize=(4, 7), layout="constrained")
    image = axes.imshow(values, vmin=0, vmax=1, cmap="cividis", aspect="auto")
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    figure.colorbar(image, label="induction score (share of 1)")
    figure.savefig(file, dpi=120)


def main() -> None:
    sample = ch.samples.smollm2()
    ids = repeated(sample.model.config.vocab_size)
    table = table_of(sample.model, ids)
    best = strongest(table)
    for row in sorted(table, key=lambda row: -(row.induction or 0.0))[:5]:
        print(f"{row.layer:28} head {row.head}  induction {row.induction:.2f}")
    text = sample.tokenizer(TEXT, return_tensors="pt")["input_ids"]
    print(f"{len(sinks(table_of(sample.model, text)))} of {len(table)} heads are sinks on a text")
    print(f"loss of the repeat: {loss_without(sample.model, ids, []):.2f} nats")
    print(
        f"  without the two strongest induction heads: {loss_without(sample.model, ids, best):.2f}"
    )
    for seed in range(5):
        others = random_heads(table, seed=seed)
        print(f"  without two random heads: {loss_without(sample.model, ids, others):.2f}")
    if len(sys.argv) > 1:
        draw(table, sys.argv[1])


if __name__ == "__main__":
    main()
