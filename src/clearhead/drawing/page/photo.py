"""A picture whose patches are the keys of a page."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead._common.checks import as_int
from clearhead._text import format_bytes, patch_names, shown
from clearhead.drawing.page.payload import Payload
from clearhead.drawing.png import png
from clearhead.errors import ArgumentError
from clearhead.matrix.matrix import PageOptions

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
        """A name for each token: the skipped ones, then each patch by row and column."""
        return patch_names(self.grid, self.skip)


def read_photo(image: Any, grid: Any, skip: Any) -> Photo | None:
    """Return a picture of any kind with its grid of patches; None if there is none.

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
        size = format_bytes(len(content))
        got = f"one of {size}" if kind else f"{size} that are neither"
        raise ArgumentError(
            "page.image",
            f"image must be a PNG or a JPEG of up to {format_bytes(MOST_BYTES)}; got {got}.",
        )
    rows, columns = (int(each or 0) for each in sizes)
    return Photo(content, kind, (rows, columns), before)


def _content(image: Any) -> bytes:
    """Return bytes as they are, the content of a file, or a PNG of pixels; ArgumentError, `page.image`, for the rest.

    Pixels are of Pillow, or uint8 or floats from 0 to 1, with colours first or last.
    """
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | os.PathLike):
        try:
            return Path(image).read_bytes()
        except OSError as error:
            raise ArgumentError(
                "page.image", f"image {shown(str(image))} cannot be read: {error.strerror}."
            ) from error
    got = type(image).__name__
    if hasattr(image, "convert"):  # Pillow
        image = image.convert("RGB")
    if hasattr(image, "__array__") or isinstance(image, Tensor):
        pixels = torch.as_tensor(image if isinstance(image, Tensor) else image.__array__())
        pixels = pixels.detach().cpu()
        if pixels.ndim == 3 and pixels.shape[0] == 3 and pixels.shape[2] != 3:
            pixels = pixels.permute(1, 2, 0)
        if pixels.is_floating_point() and bool(((pixels >= 0) & (pixels <= 1)).all()):
            pixels = (255 * pixels).round().to(torch.uint8)
        if pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.dtype == torch.uint8:
            return png(pixels)
        got = f"{pixels.dtype} of shape {tuple(pixels.shape)}"
    raise ArgumentError(
        "page.image",
        "image must be a path, a picture of Pillow, or pixels of shape (height, width, 3) or (3, height, "
        f"width), as bytes or as floats from 0 to 1; got {got}.",
    )


def photo_of(options: PageOptions) -> Photo | None:
    """Return the picture of a page with its grid of patches; None if there is none.

    Raises:
        ArgumentError: codes `page.image` and `page.grid`.

    Example:
        >>> photo_of({"image": torch.rand(2, 2, 3), "grid": (1, 2)}).tokens
        ['0,0', '0,1']
    """
    return read_photo(options.get("image"), options.get("grid"), options.get("skip", 0))


def texts_with(photo: Photo | None, options: PageOptions) -> tuple[Any, Any]:
    """Return the tokens and the source tokens of a page; patches are the tokens, or the source if there are tokens.

    Without a picture they are those of the options.

    Example:
        >>> photo = read_photo(torch.rand(2, 2, 3), (1, 2), 0)
        >>> texts_with(photo, {}), texts_with(photo, {"tokens": ["a"]})
        ((['0,0', '0,1'], None), (['a'], ['0,0', '0,1']))
    """
    tokens, source_tokens = options.get("tokens"), options.get("source_tokens")
    if photo is None:
        return tokens, source_tokens
    if tokens is None:
        return photo.tokens, source_tokens
    return tokens, photo.tokens if source_tokens is None else source_tokens


def with_photo(payload: Payload, photo: Photo | None) -> Payload:
    """Return a payload with the picture whose patches are keys of a layer; without a picture the same payload.

    Raises:
        ArgumentError: code `page.grid`, if no layer has such keys.
    """
    if photo is None:
        return payload
    rows, columns = photo.grid
    patches = photo.skip + rows * columns
    keys = {layer["keys"] for layer in payload.data["layers"]}
    if patches not in keys:
        raise ArgumentError(
            "page.grid",
            f"grid and skip must be those of a layer: {photo.skip} + {rows} × {columns} = {patches} keys; "
            f"got layers of {', '.join(map(str, sorted(keys)))}.",
        )
    entry = {"kind": photo.kind, "grid": photo.grid, "skip": photo.skip}
    content = torch.frombuffer(bytearray(photo.content), dtype=torch.uint8)
    return replace(
        payload, data={**payload.data, "photo": entry}, arrays={**payload.arrays, "photo": content}
    )
