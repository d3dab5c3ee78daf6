"""Draw the pictures of figures.md and of the README anew.

`python docs/generate_pictures.py` writes them into docs/pictures; it needs the extra `demo`.
"""

from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import clearhead as ch
from clearhead import ladder
from clearhead.drawing.figures.png_files import head_picture, save_png
from clearhead.integrations import huggingface

FOLDER = Path(__file__).resolve().parent / "pictures"
TEXT = "The animal didn't cross the street because it was too tired"


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

    picture = head_picture(reading.matrices[5][0, 11], reading.tokens, title="layer 5, head 11")
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
