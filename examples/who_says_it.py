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
LAYERS = range(15, 30)
"""Those that are patched: before them, nothing has reached the last position."""

Head = tuple[str, int]


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


def number_of(head: Any) -> int:
    """The number of its layer."""
    return int(head.layer.split(".")[2])


def name_of(head: Any) -> str:
    """L23H3."""
    return f"L{number_of(head)}H{head.head}"


@torch.no_grad()
def looks_at(model: Any, ids: Tensor, head: Any, tokenizer: Any) -> list[tuple[str, float]]:
    """The three keys that the last query of a head looks at most in the first text, and their weights."""
    with ch.watch(model, layers=head.layer) as seen:
        model(ids)
    found = seen[head.layer].top_k(3)
    keys, weights = found.keys[0, head.head, -1].tolist(), found.weights[0, head.head, -1].tolist()
    return [
        (tokenizer.decode([int(ids[0, key])]), weight)
        for key, weight in zip(keys, weights, strict=True)
    ]


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
        print(f"  {name_of(row):6} {row.restored:+.2f}  {where[row.layer, row.head]:+.2f}")

    shares = ch.logits_of(model, clean, right, wrong)
    print(f"written into the difference of {float(shares.logit):+.2f}")
    for row in shares.heads.top(4):
        print(f"  {name_of(row):6} {row.logit:+.2f}")
    print(f"  rest   {shares[-1].logit:+.2f}")

    mover = best[0]
    for words, ids in (("clean", clean), ("corrupt", corrupt)):
        seen = looks_at(model, ids, mover, tokenizer)
        keys = ", ".join(f"{token!r} {weight:.2f}" for token, weight in seen)
        print(f"{name_of(mover)} looks, {words}: {keys}")

    senders = [
        (row.layer, row.head)
        for row in said.top(12, by="restored")
        if row.head is not None and number_of(row) < number_of(mover)
    ]
    parts: tuple[Literal["value", "query", "key"], ...] = ("value", "query", "key")
    for part in parts:
        found = ch.paths(
            model,
            clean,
            corrupt,
            metric=metric,
            sender=senders,
            receivers=[(mover.layer, mover.head or 0, part)],
            progress=False,
        )
        line = ", ".join(
            f"{name_of(row)} {row.restored:+.3f}" for row in found.top(3, by="restored")
        )
        print(f"its {part}, from {line}")

    names = ch.lens(model, clean[:1], target=int(right[0]))
    for row in names[15::2]:
        print(f"after layer {number_of(row)}: rank {row.rank}, probability {row.probability:.2f}")


if __name__ == "__main__":
    main()
