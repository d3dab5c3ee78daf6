"""The look of a vision transformer at a photo: the last layer of DINOv2, on its own kernel.

    clearhead samples install dinov2
    python examples/look_at_photo.py [PICTURE.jpg [PHOTO.jpg]]

The weights of the class token over the patches, head by head, drawn over the photo (Caron et al., 2021,
https://arxiv.org/abs/2104.14294). Without a photo it is the portrait of Grace Hopper that comes with matplotlib.
"""

import sys
from typing import Any

import torch
from torch import Tensor

import clearhead as ch

PATCH = 14
"""Pixels of a patch, in each direction."""


def opened(file: str | None = None) -> Any:
    """A photo; the portrait without a file."""
    from matplotlib.cbook import get_sample_data
    from PIL import Image

    with Image.open(file or get_sample_data("grace_hopper.jpg", asfileobj=False)) as photo:
        return photo.convert("RGB")


@torch.no_grad()
def looked(sample: Any, photo: Any, *, rows: int = 43) -> Tensor:
    """The weights of the class token in the last layer, (heads, rows, columns), over so many rows of patches."""
    columns = max(1, round(rows * photo.width / photo.height))
    size = {"height": PATCH * rows, "width": PATCH * columns}
    pixels = sample.processor(photo, size=size, do_center_crop=False, return_tensors="pt")
    with ch.watch(sample.model, layers="encoder.layer.11.*") as seen:
        sample.model(**pixels)
    return seen[11][0, :, 0, 1:].unflatten(-1, (rows, columns))


def brightest(weights: Tensor, share: float = 0.2) -> Tensor:
    """True for this share of the patches, those with the largest weights, (rows, columns)."""
    flat = weights.flatten()
    chosen = torch.zeros(len(flat), dtype=torch.bool)
    chosen[flat.topk(round(share * len(flat))).indices] = True
    return chosen.unflatten(0, weights.shape)


def person(weights: Tensor) -> Tensor:
    """True for the patches on the person of the portrait: a box around the head, and all that is below."""
    rows, columns = weights.shape
    y = (torch.arange(rows) + 0.5)[:, None] * 600 / rows
    x = (torch.arange(columns) + 0.5) * 512 / columns
    head = (x > 155) & (x < 370) & (y > 20)
    return head | (y > 400)


def draw(photo: Any, weights: Tensor, file: str) -> None:
    """The photo, and over it the weights of each head."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 4, figsize=(10, 6), layout="constrained")
    maps = [("the photo", None), ("mean of the heads", weights.mean(dim=0))]
    maps += [(f"head {number}", each) for number, each in enumerate(weights)]
    extent = (0, photo.width, photo.height, 0)
    for place, (title, values) in zip(axes.flat, maps, strict=True):
        place.imshow(photo.convert("L") if values is not None else photo, cmap="gray")
        if values is not None:
            most = float(values.quantile(0.99))
            shown = (values / most).clamp(0, 1).numpy()
            place.imshow(
                shown, cmap="inferno", alpha=0.25 + 0.6 * shown, extent=extent, vmin=0, vmax=1
            )
        place.set_title(title)
        place.axis("off")
    figure.savefig(file, dpi=100)


def main() -> None:
    photo = opened(sys.argv[2]) if len(sys.argv) > 2 else opened()
    weights = looked(ch.samples.dinov2(), photo)
    if len(sys.argv) < 3:
        print(f"{person(weights[0]).float().mean():.0%} of the patches are on the person")
        for name, each in [("mean", weights.mean(dim=0)), *enumerate(weights)]:
            share = person(each)[brightest(each)].float().mean()
            print(f"{f'head {name}':9}  {share:4.0%} of the brightest fifth")
    if len(sys.argv) > 1:
        draw(photo, weights, sys.argv[1])


if __name__ == "__main__":
    main()
