"""Models that read pictures, alone or in a text: their patches and their attention."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.checks import as_int
from clearhead._common.lazy import importing
from clearhead._text import patch_names, shown
from clearhead.errors import ModelError, WatchError
from clearhead.integrations.text_models import Reading, brief, calls_of, readable_tokens
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.watching.seen import Seen
from clearhead.watching.watch import watch


@dataclass(frozen=True, eq=False)
class ImageModel:
    """A model that reads pictures, with its processor.

    Attributes:
        name: the requested name.
        model: in eval mode, on the CPU. Of a model that reads text as well it is the part for pictures.
        processor: the image processor of transformers.
        part: True for a part of a model.
    """

    name: str
    model: nn.Module
    processor: Any
    part: bool

    def read(self, file: Path) -> Reading:
        """Run the model on a picture, and return its patches and its attention.

        The grid follows from the size of the patches in the model's configuration. That tokens are its
        patches, row by row, is seen by another run, in which the first and the last patch are changed.

        Raises:
            MissingExtraError: if Pillow is not installed.
            ModelError: codes `model.picture`, for a file that is no picture; `model.unreadable`, if the model
                takes other input; `model.patches`, if its tokens are not the patches.
            WatchError: code `watch.nothing-seen`, if it attends by code of its own.
        """
        pixels = self._pixels(_opened(file))
        high, wide = self._patch()
        rows, columns = pixels.shape[2] // high, pixels.shape[3] // wide
        seen = _watched(self.name, self.model, {"pixel_values": pixels})
        every = calls_of(seen)
        first, length = every[0][0], every[0][1].kv_len
        # A pooling head has queries of its own, and so no place in the picture.
        calls = [each for each in every if each[1].shape[2:] == (length, length)]
        changed = pixels.clone()
        changed[..., :high, :wide] += 1
        changed[..., (rows - 1) * high : rows * high, (columns - 1) * wide : columns * wide] += 1
        other = _watched(self.name, self.model, {"pixel_values": changed}).calls(first)[0]
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
        image = _unprocessed(pixels[0], self.processor)
        return Reading(
            tuple(patch_names((rows, columns), skip)),
            tuple(place < skip for place in range(length)),
            tuple(name for name, _ in calls),
            tuple(matrix for _, matrix in calls),
            seen,
            {"images": image, "grid": (rows, columns), "skip": skip},
        )

    def _pixels(self, picture: Any) -> Tensor:
        """Return the input that the processor makes of a picture, (1, 3, height, width), float32.

        Raises ModelError, code `model.patches`, for another shape.
        """
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


@dataclass(frozen=True, eq=False)
class PicturedModel:
    """A model that reads pictures in a text, with its processor.

    Attributes:
        name: the requested name.
        model: in eval mode, on the CPU.
        processor: the processor of transformers, of pictures and texts.
    """

    name: str
    model: nn.Module
    processor: Any

    def read(self, file: Path, text: str) -> Reading:
        """Run the model on a picture and a text, and return its tokens and its attention.

        A text without the processor's `image_token` is a question about the picture, which precedes it, in the
        processor's chat template if it has one. Layers of other tokens are in `seen` alone; `page`
        has `skip` if those of the vision tower are the patches of the pixels, row by row.

        Raises:
            MissingExtraError: if Pillow is not installed.
            ModelError: codes `model.picture`, for a file that is no picture; `model.unreadable`, if the model
                takes other input.
            WatchError: code `watch.nothing-seen`, if it attends by code of its own.
        """
        picture, processor, tokenizer = _opened(file), self.processor, self.processor.tokenizer
        if processor.image_token not in text:
            content = [{"type": "image"}, {"type": "text", "text": text}]
            chat = [{"role": "user", "content": content}]
            text = (
                processor.apply_chat_template(chat, add_generation_prompt=True)
                if processor.chat_template
                else processor.image_token + text
            )
        inputs = processor(images=[picture], text=[text], return_tensors="pt")
        seen = _watched(self.name, self.model, inputs)
        ids = inputs["input_ids"][0].tolist()
        length, special = len(ids), frozenset(tokenizer.all_special_ids)
        model: Any = self.model
        parts = set(model.get_decoder().modules())
        inside = {path for path, each in model.named_modules() if each in parts}
        every = calls_of(seen)
        calls = [each for each in every if each[0] in inside and each[1].shape[2:] == (length,) * 2]
        tokens = readable_tokens(tokenizer, ids)
        placeholder = readable_tokens(tokenizer, [processor.image_token_id])[0]
        images, grid, skip = [picture], inputs.get("image_grid_thw"), None
        # The picture, or tiles of it, as large as the model saw them.
        if inputs["pixel_values"].ndim > 3:
            tiles = inputs["pixel_values"].flatten(0, -4)
            images = [_unprocessed(each.float(), processor.image_processor) for each in tiles]
            side = math.isqrt(tokens.count(placeholder) // len(images))
            grid = (side, side)
            # The tower has patches row by row, a square of them or one for each in the text, after the first few.
            towers = (call for path, call in every if path not in inside)
            skips = (each.kv_len % side**2 for each in towers if each.batch == len(images))
            skip = next(skips, None)
        page = {"tokens": tokens, "images": images, "image_token": placeholder}
        return Reading(
            tokens,
            tuple(each in special for each in ids),
            tuple(name for name, _ in calls),
            tuple(matrix for _, matrix in calls),
            seen,
            page | {"grid": grid, "skip": skip},
        )


def _opened(file: Path) -> Any:
    """Return the picture in a file, as Pillow has it, in RGB.

    Raises MissingExtraError without Pillow, ModelError, code `model.picture`, for no picture.
    """
    with importing("PIL", extra="samples", purpose="reading a picture"):
        from PIL import Image, ImageOps
    try:
        with Image.open(file) as picture:
            # A phone records how the picture is turned.
            return ImageOps.exif_transpose(picture).convert("RGB")
    # Pillow has no common type for what is wrong with a file.
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ModelError(
            "model.picture", f"{shown(str(file))} must be a picture: {brief(error)}"
        ) from error


def _watched(name: str, model: nn.Module, inputs: Any) -> Seen[AttentionMatrix]:
    """Return the record of a run, without gradients; ModelError, `model.unreadable`, if the model takes other input.

    WatchError if nothing is seen.
    """
    try:
        with torch.no_grad(), watch(model) as seen:
            model(**inputs)
    except WatchError:
        raise
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(
            "model.unreadable", f"{name} could not read a picture: {brief(error)}"
        ) from error
    return seen


def _unprocessed(pixels: Tensor, processor: Any) -> Tensor:
    """Return a picture, (3, height, width), as it was before the processor normalised it, from 0 to 1."""
    if getattr(processor, "do_normalize", False):
        mean, deviation = (
            torch.tensor(each)[:, None, None]
            for each in (processor.image_mean, processor.image_std)
        )
        pixels = pixels * deviation + mean
    if not getattr(processor, "do_rescale", True):
        pixels = pixels / 255
    return pixels.clamp(0, 1)
