"""The heads of Whisper that follow the speech, found by when each word was said: as good as those of the model card.

    clearhead samples install whisper; apt-get install espeak-ng
    python examples/aligning_heads.py [PICTURE.png]

The score of a head is the mean share of its weight that lies on a word while that word is said, at the query that
predicts it. A model that was fine-tuned, or has no model card, is asked the same.
"""

import sys
from typing import Any

import torch
from speech import RATE, Speech, speak
from torch import Tensor
from words_in_time import FRAME, aligned, looked, tokens_of, weights_of, words

import clearhead as ch

TEXTS = (
    "She opened the old wooden box and found seven letters, a silver ring and a map of the island. "
    "We left before sunrise and drove north for three hours without stopping.",
    "The teacher asked every child to bring a leaf, a stone and a story from home. "
    "Nobody in the office could explain why the printer worked only on Fridays.",
    "A small boat with a red sail crossed the bay while the storm gathered over the hills. "
    "When the music stopped, the dancers stood still and the lights went out.",
)
"""Those that heads are found on."""

HELD_OUT = (
    "Every morning my brother walks along the river, because the water is quiet before the city wakes up.",
    "The quick brown fox jumps over the lazy dog, and attention lets every word look at the others.",
    "The animal didn't cross the street because it was too tired.",
    "My sister keeps three goats, two dogs and a parrot that speaks better than her neighbour.",
)

Head = tuple[int, int]


class Read:
    """A speech that the model has read: the weights of all heads, and when each word was said."""

    def __init__(self, sample: Any, speech: Speech) -> None:
        tokens = tokens_of(sample, speech.text)
        self.matrices, self.sound = looked(sample, speech.sound, tokens), speech.sound
        said = [(number, speech.starts.get(place)) for _, number, place in words(sample, tokens)]
        self.known = [(number, second) for number, second in said if second is not None]

    def weights(self, heads: list[Head]) -> Tensor:
        return weights_of(self.matrices, self.sound, heads)

    def heads(self) -> list[Head]:
        return [
            (layer, head)
            for layer, matrix in enumerate(self.matrices)
            for head in range(matrix.shape[1])
        ]

    def shares(self) -> Tensor:
        """For each head, the share of its weight on each word while it is said, (heads, words)."""
        weights = self.weights(self.heads())
        bounds = [round(second * RATE / FRAME) for _, second in self.known] + [weights.shape[-1]]
        return torch.stack(
            [
                weights[:, number, start:end].sum(dim=-1)
                for (number, _), start, end in zip(self.known, bounds[:-1], bounds[1:], strict=True)
            ],
            dim=-1,
        )

    def errors(self, heads: list[Head]) -> Tensor:
        """Return the distance of the starts of the words from those that are known, in seconds."""
        starts = aligned(self.weights(heads))
        return torch.tensor(
            [abs(starts[number] * FRAME / RATE - second) for number, second in self.known]
        )


def scores(reads: list[Read]) -> dict[Head, float]:
    """The mean share of each head, from the largest."""
    means = torch.cat([each.shares() for each in reads], dim=-1).mean(dim=-1)
    order = means.argsort(descending=True).tolist()
    heads = reads[0].heads()
    return {heads[place]: float(means[place]) for place in order}


def draw(found: dict[Head, float], card: list[Head], file: str) -> None:
    """The score of each head, layers × heads; those of the model card are framed."""
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    values = torch.zeros(1 + max(layer for layer, _ in found), 1 + max(head for _, head in found))
    for place, value in found.items():
        values[place] = value
    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    image = axes.imshow(values.numpy(), vmin=0, vmax=1, cmap="cividis")
    for (layer, head), value in found.items():
        axes.text(
            head,
            layer,
            f"{value:.2f}",
            ha="center",
            va="center",
            color="white" if value < 0.6 else "black",
        )
    for layer, head in card:
        axes.add_patch(
            Rectangle(
                (head - 0.46, layer - 0.46), 0.92, 0.92, fill=False, color="#ff7f0e", linewidth=2
            )
        )
    axes.set_yticks(range(len(values)))
    axes.set_xlabel("head; framed: the model card's")
    axes.set_ylabel("layer")
    figure.colorbar(image, label="share of weight on the word that is said")
    figure.savefig(file, dpi=120)


def main() -> None:
    sample = ch.samples.whisper()
    card = [(layer, head) for layer, head in sample.model.generation_config.alignment_heads]
    found = scores([Read(sample, speak(text)) for text in TEXTS])
    for rank, ((layer, head), value) in enumerate(list(found.items())[:12], start=1):
        mark = "  of the model card" if (layer, head) in card else ""
        print(f"{rank:2}  layer {layer} head {head}  {value:.2f}{mark}")
    others = [Read(sample, speak(text, "en-gb")) for text in HELD_OUT]
    for name, heads in (
        ("model card", card),
        ("best four", list(found)[:4]),
        ("best eight", list(found)[:8]),
    ):
        errors = torch.cat([each.errors(heads) for each in others])
        print(
            f"{name:11} median error {errors.median():.3f} s, 90 % within {errors.quantile(0.9):.3f} s"
        )
    if len(sys.argv) > 1:
        draw(found, card, sys.argv[1])


if __name__ == "__main__":
    main()
