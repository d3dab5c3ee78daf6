"""A picture or a sound, whose parts the keys of a page are."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead._common.checks import as_int, is_number
from clearhead._common.text import format_bytes, patch_names, shown
from clearhead.drawing.page.payload import Payload
from clearhead.drawing.page.runs import Layer
from clearhead.drawing.png import png
from clearhead.errors import ArgumentError
from clearhead.matrix.matrix import AttentionMatrix, PageOptions
from clearhead.matrix.summary import Summary

PAIRS = 600
"""The waveform is drawn from so many pairs of its smallest and largest sample."""

LONGEST = 1e30
"""Seconds; a text with more is refused."""

MIDDLE = 127.5
"""Of a byte: silence."""


class Sound(NamedTuple):
    """The seconds of keys, and a waveform.

    Attributes:
        times: (keys + 1,), float32, seconds: the beginning of each key, and the end of the last.
        wave: (2, PAIRS), uint8: the smallest and the largest sample of each part, 0 to 255 from the lowest
            to the highest amplitude; None without audio.
        seconds: the length of the audio; to the end of the keys without it, or where these end before.
    """

    times: Tensor
    wave: Tensor | None
    seconds: float

    @property
    def keys(self) -> int:
        """The number of keys."""
        return len(self.times) - 1

    @property
    def tokens(self) -> list[str]:
        """The time of each key, as its name."""
        return [f"{time:.2f}s" for time in self.times[:-1].tolist()]

    @property
    def entry(self) -> dict[str, Any]:
        """The entry of a payload."""
        heard = int((self.times[:-1] < self.seconds).sum())
        about = {"keys": self.keys, "heard": heard, "wave": self.wave is not None}
        return {"sound": {"seconds": self.seconds} | about}

    @property
    def arrays(self) -> dict[str, Tensor]:
        """The arrays of a payload."""
        return {"times": self.times} | ({} if self.wave is None else {"wave": self.wave})

    def check(self, keys: Sequence[int]) -> None:
        """Refuse times if no layer has so many keys.

        Raises:
            ArgumentError: code `page.sound`.
        """
        if self.keys not in keys:
            found = ", ".join(str(each) for each in sorted(set(keys)))
            raise ArgumentError(
                "page.sound",
                f"times must be as many as the keys of a layer; got {self.keys}, and layers of {found}.",
            )


def read_sound(times: Any, audio: Any, keys: int) -> Sound:
    """The seconds of keys, and the outline of the audio.

    Args:
        times: the seconds of each key, one number for all; or where each begins, in seconds.
        audio: samples, (len,), of any kind of number, and samples per second; None for none.
        keys: the number of keys, where `times` is one number.

    Raises:
        ArgumentError: code `page.sound`.

    Example:
        >>> sound = read_sound(0.5, (torch.tensor([0.0, 0.5, -1.0, 0.0]), 2), 3)
        >>> sound.tokens, sound.seconds
        (['0.00s', '0.50s', '1.00s'], 1.5)
    """
    edges = _edges(times, keys)
    if audio is None:
        return Sound(edges, None, float(edges[-1]))
    given: Any = None
    rate: Any = None
    if isinstance(audio, tuple | list) and len(audio) == 2:
        given, rate = audio
    samples = _numbers(given)
    if samples is None or not len(samples) or not is_number(rate) or not 0 < float(rate) < math.inf:
        got = (
            f"samples of shape {tuple(given.shape)}"
            if hasattr(given, "shape")
            else type(given).__name__
        )
        raise ArgumentError(
            "page.sound",
            "audio must be finite samples of shape (len,), one or more, and how many there are per second, "
            f"such as (samples, 16_000); got {got} and {shown(rate)}.",
        )
    samples = samples[: math.ceil(float(edges[-1]) * float(rate))]
    # A part of fewer samples than parts repeats them.
    bounds = torch.arange(PAIRS + 1) * len(samples) // PAIRS
    parts = [
        samples[low : max(high, low + 1)]
        for low, high in zip(bounds.tolist(), bounds[1:].tolist(), strict=False)
    ]
    ends = torch.stack([torch.stack(part.aminmax()) for part in parts], dim=1)
    loudest = float(samples.abs().max()) or 1.0
    wave = (MIDDLE + MIDDLE * ends / loudest).round().to(torch.uint8)
    seconds = min(len(samples) / float(rate), float(edges[-1]))
    return Sound(edges, wave, seconds)


def _edges(times: Any, keys: int) -> Tensor:
    # Beyond it float32, which a page has, is not finite.
    if is_number(times) and 0 < float(times) < LONGEST / max(keys, 1):
        return torch.arange(keys + 1, dtype=torch.float32) * float(times)
    starts = None if is_number(times) else _numbers(times)
    if (
        starts is None
        or len(starts) < 2
        or float(starts[0]) < 0
        or bool((starts.diff() <= 0).any())
        or float(starts[-1]) >= LONGEST
    ):
        raise ArgumentError(
            "page.sound",
            "times must be the seconds of a key, above 0, or where each key begins, two or more that "
            f"increase from 0 or above; got {shown(times)}.",
        )
    # The last key is as long as the one before.
    return torch.cat([starts, 2 * starts[-1:] - starts[-2:-1]]).float()


def _numbers(given: Any) -> Tensor | None:
    """(len,), float64; None for what is not finite numbers of one dimension."""
    try:
        found = torch.as_tensor(given).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        return None
    if found.ndim != 1 or found.is_complex() or found.dtype == torch.bool:
        return None
    found = found.double()
    return found if bool(found.isfinite().all()) else None


KINDS = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}
"""The first bytes of a file, and its media type."""

MOST_BYTES = 8_000_000


class Photo(NamedTuple):
    """A picture and its patches.

    Attributes:
        content: a PNG or a JPEG.
        kind: its media type.
        grid: rows and columns of patches; tokens go through them row by row.
        skip: tokens before the first patch, such as [CLS].
    """

    content: bytes
    kind: str
    grid: tuple[int, int]
    skip: int

    @property
    def tokens(self) -> list[str]:
        """A name for each token: those that are skipped, then each patch by its row and column."""
        return patch_names(self.grid, self.skip)

    @property
    def entry(self) -> dict[str, Any]:
        """The entry of a payload that says how its patches are tokens."""
        return {"photo": {"kind": self.kind, "grid": self.grid, "skip": self.skip}}

    @property
    def arrays(self) -> dict[str, Tensor]:
        """Its bytes, as an array of a payload."""
        return {"photo": torch.frombuffer(bytearray(self.content), dtype=torch.uint8)}

    def check(self, keys: Sequence[int]) -> None:
        """Refuse the picture if no layer has its patches as keys.

        Raises:
            ArgumentError: code `page.grid`.
        """
        rows, columns = self.grid
        patches = self.skip + rows * columns
        if patches not in keys:
            found = ", ".join(str(each) for each in sorted(set(keys)))
            raise ArgumentError(
                "page.grid",
                f"grid and skip must be those of a layer: {self.skip} + {rows} × {columns} = {patches} keys; "
                f"got layers of {found}.",
            )


def read_photo(image: Any, grid: Any, skip: Any) -> Photo | None:
    """A picture of any kind, with its grid of patches; None for none.

    Args:
        image: the path of a PNG or a JPEG, its bytes, a picture of Pillow, or a tensor or an array of
            numpy, (height, width, 3) or (3, height, width), of bytes or of floats from 0 to 1.
        grid: rows and columns of patches.
        skip: tokens before the first patch.

    Raises:
        ArgumentError: codes `page.image` and `page.grid`.

    Example:
        >>> photo = read_photo(torch.rand(3, 8, 8), (2, 2), 1)
        >>> photo.kind, photo.tokens
        ('image/png', ['[CLS]', '0,0', '0,1', '1,0', '1,1'])
    """
    if image is None and grid is None:
        if as_int(skip) != 0:
            raise ArgumentError(
                "page.grid",
                f"skip counts the tokens before the patches of image=, with grid=; got {shown(skip)} "
                "without either.",
            )
        return None
    sizes = [as_int(each) for each in grid] if isinstance(grid, tuple | list) else []
    if len(sizes) != 2 or not all(each is not None and each > 0 for each in sizes):
        raise ArgumentError(
            "page.grid",
            f"grid must be the rows and columns of patches, such as (14, 14); got {shown(grid)}.",
        )
    before = as_int(skip)
    if before is None or before < 0:
        raise ArgumentError(
            "page.grid",
            f"skip must be the tokens before the first patch, 0 or more; got {shown(skip)}.",
        )
    content = _content(image)
    kind = next((kind for first, kind in KINDS.items() if content.startswith(first)), None)
    if kind is None or len(content) > MOST_BYTES:
        what = f"{format_bytes(len(content))} that are neither" if kind is None else "one of "
        what += "" if kind is None else format_bytes(len(content))
        raise ArgumentError(
            "page.image",
            f"image must be a PNG or a JPEG of up to {format_bytes(MOST_BYTES)}; got {what}.",
        )
    rows, columns = (int(each or 0) for each in sizes)
    return Photo(content, kind, (rows, columns), before)


def _content(image: Any) -> bytes:
    """The bytes of a file, or a PNG of pixels."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | os.PathLike):
        try:
            return Path(image).read_bytes()
        except OSError as error:
            raise ArgumentError(
                "page.image", f"image {shown(str(image))} cannot be read: {error.strerror}."
            ) from error
    if hasattr(image, "convert") and hasattr(image, "tobytes"):  # Pillow
        plain = image.convert("RGB")
        width, height = plain.size
        pixels = torch.frombuffer(bytearray(plain.tobytes()), dtype=torch.uint8)
        return png(pixels.reshape(height, width, 3))
    if hasattr(image, "__array__") or isinstance(image, Tensor):
        pixels = torch.as_tensor(image).detach().cpu()
        if pixels.ndim == 3 and pixels.shape[0] == 3 and pixels.shape[2] != 3:
            pixels = pixels.permute(1, 2, 0)
        if pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.numel():
            if pixels.is_floating_point() and 0 <= float(pixels.min()) <= float(pixels.max()) <= 1:
                pixels = (255 * pixels).round().to(torch.uint8)
            if pixels.dtype == torch.uint8:
                return png(pixels)
        got = f"{pixels.dtype} of shape {tuple(pixels.shape)}"
        if pixels.is_floating_point() and pixels.numel():
            got += f" from {float(pixels.min()):.2g} to {float(pixels.max()):.2g}"
    else:
        got = type(image).__name__
    raise ArgumentError(
        "page.image",
        "image must be a path, a picture of Pillow, or pixels of shape (height, width, 3) or (3, height, "
        f"width), as bytes or as floats from 0 to 1; got {got}.",
    )


Media = Photo | Sound


def read_media(
    layers: Sequence[tuple[str, AttentionMatrix | Summary] | Layer], options: PageOptions
) -> Media | None:
    """A picture, with the grid of its patches, or a sound, with the seconds of its keys; None for neither.

    Args:
        layers: whose keys these are; a number of seconds is that of each key of the first one between two
            texts, or else of the one that has most.
        options: `image`, `grid` and `skip` as `read_photo` takes them, `times` and `audio` as `read_sound` does.

    Raises:
        ArgumentError: codes `page.image`, `page.grid` and `page.sound`.

    Example:
        >>> read_media([("", ch.AttentionMatrix(torch.eye(3), torch.eye(3)))], {"times": 0.5}).tokens
        ['0.00s', '0.50s', '1.00s']
    """
    photo = read_photo(options.get("image"), options.get("grid"), options.get("skip", 0))
    times, audio = options.get("times"), options.get("audio")
    if times is None:
        if audio is not None:
            raise ArgumentError(
                "page.sound", "audio needs the seconds of the keys as well, times=; got none."
            )
        return photo
    if photo is not None:
        raise ArgumentError(
            "page.sound", "the keys are the patches of a picture, image=, or have times=; got both."
        )
    weights = [each[1] for each in layers]
    crossing = [each.kv_len for each in weights if each.cross]
    keys = crossing[0] if crossing else max([each.kv_len for each in weights], default=0)
    return read_sound(times, audio, keys)


def texts_with(media: Media | None, options: PageOptions) -> tuple[Any, Any]:
    """The texts of a page, where the parts of a picture or a sound are tokens, or beside other tokens the
    source.

    Example:
        >>> photo = read_photo(torch.rand(2, 2, 3), (1, 2), 0)
        >>> texts_with(photo, {}), texts_with(photo, {"tokens": ["a"]})
        ((['0,0', '0,1'], None), (['a'], ['0,0', '0,1']))
    """
    tokens, source_tokens = options.get("tokens"), options.get("source_tokens")
    if media is None:
        return tokens, source_tokens
    if tokens is None:
        return media.tokens, source_tokens
    return tokens, media.tokens if source_tokens is None else source_tokens


def with_media(payload: Payload, media: Media | None) -> Payload:
    """The payload of a page of heads with the picture or the sound whose parts the keys of a layer are; or as it is.

    Raises:
        ArgumentError: codes `page.grid` and `page.sound`, if no layer has such keys.
    """
    if media is None:
        return payload
    media.check([layer["keys"] for layer in payload.data["layers"]])
    data, arrays = {**payload.data, **media.entry}, {**payload.arrays, **media.arrays}
    return replace(payload, data=data, arrays=arrays)
