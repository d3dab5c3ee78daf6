"""Draw a link as a card for a slide, 1200 × 630 pixels: a sentence, the text with arcs, and the map.

    python examples/card.py [QUERY KEY [CARD.png]]

Which head looks from one token to the other most says `Seen.find`; its map is drawn by `AttentionMatrix.plot`.
"""

import sys

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import clearhead as ch
from clearhead.integrations import huggingface

TEXT = "The animal didn't cross the street because it was too tired"
LEAST = 0.02
"""The share of attention that has an arc."""


def card(
    seen: ch.types.Seen[ch.AttentionMatrix], tokens: list[str], query: str, key: str
) -> Figure:
    """Draw the strongest of all links between two tokens."""
    link = seen.find(query, key, tokens=tokens)[0]
    matrix = seen[link.layer]
    figure = pyplot.figure(figsize=(12, 6.3), dpi=100)
    text, grid = figure.subplots(1, 2, width_ratios=(3, 2))
    figure.suptitle(f"“{query}” gives {link.weight:.0%} of its attention to “{key}”", fontsize=26)
    figure.text(0.02, 0.03, f"{link.layer}, head {link.head}")
    matrix.plot(head=link.head, tokens=tokens, ax=grid)
    with_arcs(text, tokens, link.query, matrix[0, link.head, link.query].flatten())
    return figure


def with_arcs(axes: Axes, tokens: list[str], query: int, row: Tensor) -> None:
    """Write the tokens one below the other, with an arc from the query to each that gets some."""
    axes.set(xlim=(-1, 1), ylim=(len(tokens), -1))
    axes.axis("off")
    for place, (token, share) in enumerate(zip(tokens, row.tolist(), strict=True)):
        heavy = "bold" if place == query else "normal"
        axes.text(0, place, token, ha="right", va="center", fontsize=13, fontweight=heavy)
        if share >= LEAST:
            arrow = {"arrowstyle": "-|>", "lw": 0.8 + 4 * share, "alpha": 0.5 + 0.5 * share}
            arrow["color"] = "C0"
            arrow["connectionstyle"] = f"arc3,rad={0.5 if place < query else -0.5}"
            arrow["shrinkA"] = arrow["shrinkB"] = 4
            axes.annotate("", (0.03, place), (0.03, query), arrowprops=arrow)
            axes.text(0.6, place, f"{share:.0%}", va="center")


def main(query: str = "it", key: str = "animal", file: str = "card.png") -> None:
    reader = huggingface.load()
    reading = reader.read(TEXT)
    card(reading.seen, list(reading.tokens), query, key).savefig(file)
    print(f"The card is in {file}")


if __name__ == "__main__":
    main(*sys.argv[1:])
