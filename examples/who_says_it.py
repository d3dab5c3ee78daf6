"""Heads of a language model that say a name: where they look, what they write, and whom they listen to.

    clearhead samples install smollm2
    python examples/who_says_it.py

The indirect-object task (Wang et al., 2022, https://arxiv.org/abs/2211.00593): "When Mary and John went to the store,
John gave the drink to" goes on with Mary. In the corrupt text it is Mary who gives, and the answer is John.
"""

from typing import Any, Literal

import torch
from torch import Tensor

import clearhead as ch

TEXT = "When {one} and {other} went to the {place}, {giver} gave the {thing} to"
SCENES = (
    ("Mary", "John", "store", "drink"),
    ("Tom", "James", "park", "ball"),
    ("Dan", "Anna", "office", "book"),
    ("Sarah", "Paul", "school", "pen"),
)
LAYERS = range(17, 30)
"""Those that are patched: of all 270 heads the twelve that change most are in them."""

Head = tuple[int, int]
SAYING: tuple[Head, ...] = ((23, 3), (29, 1), (23, 0))
LOOKING: tuple[Head, ...] = ((23, 3), (23, 0), (20, 0))
SENDERS: list[tuple[str | int, int]] = [(20, 0), (19, 2)]
LISTENERS: tuple[list[tuple[str | int, int, Literal["query", "value"]]], ...] = (
    [(23, 3, "value")],
    [(23, 0, "query"), (23, 7, "query")],
)


def prompts(tokenizer: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Clean and corrupt tokens, (scenes, tokens), and the two names, (scenes,), the answer of the clean text first."""
    texts = [
        TEXT.format(one=one, other=other, place=place, giver=giver, thing=thing)
        for at in (1, 0)
        for one, other, place, thing in SCENES
        for giver in [(one, other)[at]]
    ]
    ids = tokenizer(texts, return_tensors="pt")["input_ids"]
    names = [[tokenizer(f" {name}")["input_ids"][0] for name in scene[:2]] for scene in SCENES]
    right, wrong = torch.tensor(names).unbind(dim=1)
    return *ids.chunk(2), right, wrong


class Difference:
    """The logit of the right name less that of the wrong one, behind the last token; the mean over the scenes."""

    def __init__(self, right: Tensor, wrong: Tensor) -> None:
        self.right, self.wrong = right[:, None], wrong[:, None]

    def __call__(self, output: Any) -> Tensor:
        last = output.logits[:, -1]
        return (last.gather(1, self.right) - last.gather(1, self.wrong)).mean()


def name_of(head: tuple[str | int, int | None]) -> str:
    """L23H3."""
    layer, number = head
    return f"L{str(layer).split('.')[2] if isinstance(layer, str) else layer}H{number}"


@torch.no_grad()
def looks_at(model: Any, ids: Tensor, head: Head, tokenizer: Any) -> str:
    """The key that the last query of a head looks at most in the first text, and its weight."""
    layer, number = head
    with ch.watch(model, layers=layer) as seen:
        model(ids)
    found = seen[layer].top_k(1)
    key = int(found.keys[0, number, -1, 0])
    return f"{tokenizer.decode([int(ids[0, key])])} at {key}, {float(found.weights[0, number, -1, 0]):.2f}"


def main() -> None:
    sample = ch.samples.smollm2()
    model, tokenizer = sample.model, sample.tokenizer
    clean, corrupt, right, wrong = prompts(tokenizer)
    metric = Difference(right, wrong)

    said = ch.effects(model, clean, corrupt, metric=metric, layers=list(LAYERS), progress=False)
    print(f"logit difference: clean {said.clean:+.2f}, corrupt {said.baseline:+.2f}")
    print("restored by what a head says, or by where it looks")
    best = said.top(6, by="restored")
    looked = ch.effects(
        model,
        clean,
        corrupt,
        metric=metric,
        patch="pattern",
        layers=list(dict.fromkeys(row.layer for row in best)),
        progress=False,
    )
    where = {(row.layer, row.head): row.restored for row in looked}
    for row in best:
        print(f"  {name_of(row[:2]):6} {row.restored:+.2f}  {where[row.layer, row.head]:+.2f}")

    shares = [ch.reading.logits_of(model, clean, name) for name in (right, wrong)]
    written = {(row.layer, row.head): [] for row in shares[0]}
    for row in (*shares[0], *shares[1]):
        written[row.layer, row.head].append(row.logit)
    print("written to the logit of the right name, and of the wrong one")
    most = sorted(written.items(), key=lambda item: item[1][1] - item[1][0])
    for (layer, head), (to_right, to_wrong) in most[:5]:
        name = layer if head is None else name_of((layer, head))
        print(f"  {name:8} {to_right:+.2f}  {to_wrong:+.2f}")

    print("the tokens that it raises and lowers in the first text")
    tokens = ch.reading.writes(model, clean[:1], top=4)
    for head in SAYING:
        rows = tokens.of(*head)
        for name, some in (("up", rows.raised), ("down", rows.lowered)):
            found = [f"{tokenizer.decode([row.token])!r} {row.above:+.1f}" for row in some]
            print(f"  {name_of(head):6} {name:4}  {', '.join(found)}")

    print("the last token looks at, in the first text, and in its corrupt one")
    for head in LOOKING:
        both = [looks_at(model, ids, head, tokenizer) for ids in (clean, corrupt)]
        print(f"  {name_of(head)}  {both[0]:20}  {both[1]}")

    print("restored by a path")
    for receivers in LISTENERS:
        found = ch.paths(
            model,
            clean,
            corrupt,
            metric=metric,
            sender=SENDERS,
            receivers=receivers,
            progress=False,
        )
        to = " and ".join(f"{name_of((layer, head))}'s {part}" for layer, head, part in receivers)
        for row in found:
            print(f"  {name_of((row.layer, row.head))} to {to}: {row.restored:+.2f}")

    print("the right name of the first text after a layer")
    for row in ch.reading.lens(model, clean[:1], target=int(right[0]))[21::2]:
        print(f"  {row.layer.split('.')[2]}: rank {row.rank}, probability {row.probability:.2f}")


if __name__ == "__main__":
    main()
