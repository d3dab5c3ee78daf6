"""Models that read pictures: their patches and their attention."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead._common.checks import as_int
from clearhead._text import patch_names, shown
from clearhead.errors import ModelError, WatchError, missing_extra
from clearhead.integrations.text_models import brief
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.watching.seen import Seen
from clearhead.watching.watch import watch


class ImageReading(NamedTuple):
    """The patches of a picture and the attention over them.

    Attributes:
        pixels: (3, height, width), from 0 to 1: the part of the picture that the model saw, as large as it did.
        grid: rows and columns of patches.
        skip: tokens before the first patch, such as [CLS].
        tokens: a name for each token: those that are skipped, then each patch by its row and column.
        special: for each token True if it is no patch.
        layers: the path of the module that attended, in order; one that attended twice stands twice.
        matrices: what each of them attended to: [batch=1, num_heads, tokens, tokens].
        seen: the same by the paths of the modules, which can be saved.
    """

    pixels: Tensor
    grid: tuple[int, int]
    skip: int
    tokens: tuple[str, ...]
    special: tuple[bool, ...]
    layers: tuple[str, ...]
    matrices: tuple[AttentionMatrix, ...]
    seen: Seen[AttentionMatrix]


@dataclass(frozen=True, eq=False)
class ImageModel:
    """A model that reads pictures, with its processor.

    Attributes:
        name: what it was asked for by.
        model: in eval mode, on the CPU. Of a model that reads text as well it is the part for pictures.
        processor: the image processor of transformers.
        part: True for a part of a model.
    """

    name: str
    model: nn.Module
    processor: Any
    part: bool

    def read(self, file: Path) -> ImageReading:
        """Run the model on a picture, and return its patches and its attention.

        The grid follows from the size of the patches in the model's configuration. That tokens are its
        patches, row by row, is seen by another run, in which the first and the last patch are changed.

        Raises:
            MissingExtraError: if Pillow is not installed.
            ModelError: codes `model.picture`, for a file that is no picture; `model.unreadable`, if the model
                takes other input; `model.patches`, if its tokens are not the patches.
            WatchError: code `watch.nothing-seen`, if it attends by code of its own.
        """
        pixels = self._pixels(file)
        high, wide = self._patch()
        rows, columns = pixels.shape[2] // high, pixels.shape[3] // wide
        seen = self._run(pixels)
        every = [(name, each) for name in seen for each in seen.calls(name)]
        first, length = every[0][0], every[0][1].kv_len
        # A pooling head has queries of its own, and so no place in the picture.
        calls = [each for each in every if each[1].shape[2:] == (length, length)]
        changed = pixels.clone()
        changed[..., :high, :wide] += 1
        bottom, right = (rows - 1) * high, (columns - 1) * wide
        changed[..., bottom : bottom + high, right : right + wide] += 1
        other = self._run(changed).calls(first)[0]
        found: list[int] = []
        if calls and other.kv_len == length:
            keys, others = (each.problem.key[0] for each in (every[0][1], other))
            found = (keys != others).any(dim=-1).any(dim=0).nonzero()[:, 0].tolist()
        skip = length - rows * columns
        if found != [skip, length - 1]:
            raise ModelError(
                "model.patches",
                f"the last tokens of a layer must be the {rows} × {columns} patches of {high} × {wide} "
                f"pixels, row by row; {first} of {self.name} has {length} tokens, of which the first and the "
                f"last patch change {shown(found)}.",
            )
        return ImageReading(
            self._unprocessed(pixels[0]),
            (rows, columns),
            skip,
            tuple(patch_names((rows, columns), skip)),
            tuple(place < skip for place in range(length)),
            tuple(name for name, _ in calls),
            tuple(matrix for _, matrix in calls),
            seen,
        )

    def _pixels(self, file: Path) -> Tensor:
        """Return the input that the processor makes of a picture, (1, 3, height, width), float32.

        Raises MissingExtraError without Pillow, ModelError for no picture (`model.picture`) or another shape
        (`model.patches`).
        """
        try:
            from PIL import Image, ImageOps
        except ModuleNotFoundError as error:
            if error.name != "PIL":
                raise
            raise missing_extra("pillow", "samples", "reading a picture") from error
        try:
            with Image.open(file) as opened:
                # A telephone turns the picture by a note in the file.
                picture = ImageOps.exif_transpose(opened).convert("RGB")
        # Pillow has no common type for what is wrong with a file.
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise ModelError(
                "model.picture", f"{shown(str(file))} must be a picture: {brief(error)}"
            ) from error
        pixels = self.processor(images=picture, return_tensors="pt").get("pixel_values")
        if not isinstance(pixels, Tensor) or pixels.ndim != 4 or pixels.shape[:2] != (1, 3):
            got = tuple(pixels.shape) if isinstance(pixels, Tensor) else type(pixels).__name__
            raise ModelError(
                "model.patches",
                f"the processor of {self.name} must make one picture of shape (1, 3, height, width); got {got}.",
            )
        return pixels.float()

    def _patch(self) -> tuple[int, int]:
        """Return height and width of a patch, in pixels; ModelError, `model.patches`, if the configuration has none."""
        size = getattr(getattr(self.model, "config", None), "patch_size", None)
        sides = size if isinstance(size, tuple | list) else (size, size)
        numbers = [each for each in map(as_int, sides) if each is not None and each > 0]
        if len(numbers) != 2:
            raise ModelError(
                "model.patches",
                f"the configuration of {self.name} must have a patch_size; got {shown(size)}.",
            )
        return numbers[0], numbers[1]

    def _run(self, pixels: Tensor) -> Seen[AttentionMatrix]:
        """Return the record of a run on a picture, without gradients; ModelError if the model takes other input.

        WatchError if nothing is seen.
        """
        try:
            with torch.no_grad(), watch(self.model) as seen:
                self.model(pixel_values=pixels)
        except WatchError:
            raise
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            raise ModelError(
                "model.unreadable", f"{self.name} could not read a picture alone: {brief(error)}"
            ) from error
        return seen

    def _unprocessed(self, pixels: Tensor) -> Tensor:
        """Return a picture, (3, height, width), as it was before the processor normalised it, from 0 to 1."""
        if getattr(self.processor, "do_normalize", False):
            mean, deviation = (
                torch.tensor(each)[:, None, None]
                for each in (self.processor.image_mean, self.processor.image_std)
            )
            pixels = pixels * deviation + mean
        if not getattr(self.processor, "do_rescale", True):
            pixels = pixels / 255
        return pixels.clamp(0, 1)
