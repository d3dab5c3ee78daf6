"""The two circuits of an induction head, off its weights, and how far they go.

    clearhead samples install smollm2
    python examples/two_circuits.py [PICTURE.png]

An induction head looks for the token behind the last occurrence of the present one. For that its keys must tell what
the token before each was, so that a head that looks one token back must have written it there (Elhage et al., 2021,
https://transformer-circuits.pub/2021/framework; Olsson et al., 2022, https://arxiv.org/abs/2209.11895). The weights
say which one.
"""

import sys
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

import clearhead as ch
from clearhead.reading.head_circuits import Circuits

HEADS = ((17, 3), (17, 4), (18, 6))
"""The three strongest induction heads, layer and head."""
HALF, BATCH = 50, 2

Head = tuple[int, int]


def repeated(vocabulary: int) -> Tensor:
    """Random tokens, twice, (batch, 2 · half)."""
    half = torch.randint(3, vocabulary, (BATCH, HALF), generator=torch.Generator().manual_seed(0))
    return torch.cat([half, half], dim=1)


def name_of(head: Head) -> str:
    """L17H3."""
    return f"L{head[0]}H{head[1]}"


def circuits_of(model: Any) -> list[Circuits]:
    """The circuits of all layers, each behind its norm."""
    return [
        ch.reading.circuits(model, number, norm=layer.input_layernorm)
        for number, layer in enumerate(model.model.layers)
    ]


@torch.no_grad()
def roles_of(model: Any, ids: Tensor, without: Head | None = None) -> dict[str, Tensor]:
    """The induction and the previous-token scores, (layers, heads), with a head ablated."""
    edit = ch.edit(model)
    if without is not None:
        edit[without[0]].heads[without[1]].ablate()
    with edit if without else nullcontext(), ch.watch(model, keep="summary") as seen:
        model(ids, use_cache=False)
    table, layers = seen.table(), len(seen)
    return {name: table[name].view(layers, -1) for name in ("induction", "previous")}


def composed(circuits: list[Circuits], head: Head, into: Any) -> Tensor:
    """The composition of every head of the layers before with this one, (layers, heads)."""
    layer, number = head
    rows = [each.composition(circuits[layer], into)[:, number] for each in circuits[:layer]]
    return torch.stack(rows)


def best(scores: Tensor, count: int = 3) -> list[tuple[Head, float]]:
    """The heads with the highest scores, the highest first."""
    found = scores.flatten().topk(count)
    places = (divmod(at, scores.shape[1]) for at in found.indices.tolist())
    return list(zip(places, found.values.tolist(), strict=True))


@torch.no_grad()
def mean_inputs(model: Any, ids: Tensor) -> list[Tensor]:
    """The mean input of each layer over a text, which no token and no position is in."""
    found = model(ids, use_cache=False, output_hidden_states=True).hidden_states
    return [each.mean(dim=(0, 1)) for each in found]


@torch.no_grad()
def by_position_alone(layer: ch.MultiHeadAttention, x: Tensor, length: int = 64) -> Tensor:
    """The weight that the last of some tokens of the same input gives to the one before it, (heads,)."""
    return layer.weights(x.expand(1, length, -1), mask=ch.causal())[0, :, -1, -2]


def copied(model: Any, ids: Tensor) -> Tensor:
    """The share of each head in the logit of the token that comes next, less that of another one of the text,
    (layers, heads), at a query of the repeat."""
    until = ids[:, :-10]
    shares = ch.reading.logits_of(model, until, ids[:, -10], against=ids[:, -20])
    return shares.heads["logit"].view(len(model.model.layers), -1)


def draw(composition: Tensor, previous: Tensor, file: str) -> None:
    """Two pictures of layers × heads beside each other: off the weights, and in a run."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(6, 4.5), layout="constrained", sharey=True)
    titles = f"K-composition with {name_of(HEADS[0])}", "weight on the token before"
    for each, values, title in zip(axes, (composition, previous), titles, strict=True):
        image = each.imshow(values, vmin=0, cmap="cividis", aspect="auto")
        each.set(title=title, xlabel="head", xticks=range(0, values.shape[1], 2))
        figure.colorbar(image, ax=each)
    axes[0].set_ylabel("layer")
    figure.savefig(file, dpi=120)


def main() -> None:
    model = ch.samples.smollm2().model
    ids = repeated(model.config.vocab_size)
    circuits, plain = circuits_of(model), roles_of(model, ids)

    print("in a run on random tokens, twice: looks behind the last occurrence")
    for head, score in best(plain["induction"]):
        print(f"  {name_of(head):6} {score:.2f}")
    print("looks one token back, in the run, and off the weights by position alone")
    means = zip(model.model.layers, mean_inputs(model, ids), strict=False)
    by_position = torch.stack(
        [
            by_position_alone(each.layer, block.input_layernorm(x))
            for each, (block, x) in zip(circuits, means, strict=True)
        ]
    )
    for head, score in best(plain["previous"]):
        print(f"  {name_of(head):6} {score:.2f}  {by_position[head]:.2f}")

    print("QK: the heads that write into the keys, off the weights; the mean over all before")
    for head in HEADS:
        found = composed(circuits, head, "key")
        most = ", ".join(f"{name_of(each)} {score:.2f}" for each, score in best(found))
        print(f"  {name_of(head)}  {most}; mean {found.mean():.2f}")
    print("  and into its queries")
    for head in HEADS:
        found = composed(circuits, head, "query")
        most = ", ".join(f"{name_of(each)} {score:.2f}" for each, score in best(found))
        print(f"  {name_of(head)}  {most}; mean {found.mean():.2f}")

    print("the induction scores without the head that looks one token back")
    for without in (None, (16, 0), (11, 1), (2, 1)):
        found = plain if without is None else roles_of(model, ids, without)
        scores = ", ".join(f"{name_of(head)} {found['induction'][head]:.2f}" for head in HEADS)
        print(f"  {'all there' if without is None else f'no {name_of(without)}':9}  {scores}")

    print("OV: copying off the weights, its rank, and what is added for the next token in a run")
    embedding = model.get_input_embeddings().weight
    unembedding = model.get_output_embeddings().weight * model.model.norm.weight
    copying = torch.stack([each.copying(embedding, unembedding) for each in circuits])
    added = copied(model, ids)
    for head in HEADS:
        rank = int((copying > copying[head]).sum()) + 1
        place = int((added > added[head]).sum()) + 1
        print(
            f"  {name_of(head)}  {copying[head]:+.2f}, {rank} of {copying.numel()}; {added[head]:+.2f}, {place}"
        )
    if len(sys.argv) > 1:
        draw(composed(circuits, HEADS[0], "key"), plain["previous"], sys.argv[1])


if __name__ == "__main__":
    main()
