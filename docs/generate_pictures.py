"""Draw the pictures of figures.md and of the README anew.

`python docs/generate_pictures.py` writes them into docs/pictures; it needs the extra `demo`.
"""

from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import clearhead as ch
from clearhead import ladder
from clearhead.drawing.figures.png_files import head_picture, save_png
from clearhead.integrations import huggingface

FOLDER = Path(__file__).resolve().parent / "pictures"
TEXT = "The animal didn't cross the street because it was too tired"
OTHER_END = "The animal didn't cross the street because it was too wide"
LAYER, HEAD = 3, 1
"""A head in which “it” looks at “animal”, and the end of the sentence decides how much."""


def save(axes: Axes, name: str, dots_per_inch: int) -> None:
    """Write the figure of some axes; the same figure gives the same bytes."""
    figure = axes.figure.figure
    assert isinstance(figure, Figure)
    figure.savefig(FOLDER / f"{name}.png", dpi=dots_per_inch, metadata={"Software": None})


def main() -> None:
    mpl.use("agg")
    torch.manual_seed(0)
    reader = huggingface.load()
    reading = reader.read(TEXT)
    ids = reader.tokenizer(TEXT, return_tensors="pt")
    with ch.watch(reader.model) as seen:
        reader.model(**ids)

    figure = Figure(figsize=(11.6, 5.4), layout="constrained")
    for axes, text in zip(figure.subplots(1, 2), (TEXT, OTHER_END), strict=True):
        read = reader.read(text)
        weights = read.matrices[LAYER][0, HEAD]
        it, animal = read.tokens.index("it"), read.tokens.index("animal")
        title = f"… because it was too {read.tokens[-2]}: it → animal {weights[it, animal]:.0%}"
        picture = head_picture(weights, read.tokens, title=title, axes=axes)
        picture.add_patch(Rectangle((-0.5, it - 0.5), len(read.tokens), 1, fill=False, ec="w"))
    save_png(picture, FOLDER / "head.png")
    save(seen.plot(heads=range(6))[0, 0], "layers", 80)
    save(seen.plot("entropy"), "entropy", 90)
    save(seen[5].plot("received", head=11, tokens=reading.tokens), "received", 90)

    torch.manual_seed(123)
    rung = ladder.MaskedAttention(3, head_dim=2, value_head_dim=2, mask=ch.causal())
    trace = ch.trace(rung, ladder.EXAMPLE_EMBEDDINGS, tokens=ladder.EXAMPLE_TOKENS)
    save(trace.plot(["query", "key", "masked_scores", "weights"])[0], "stages", 80)
    save((ch.causal() & ch.sliding_window(left=4_000)).plot(20_000, 20_000), "mask", 80)


if __name__ == "__main__":
    main()
