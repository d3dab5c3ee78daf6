"""Pictures whose patches are tokens of a page."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead._common.checks import as_int, as_ints
from clearhead._common.lazy import importing
from clearhead._text import format_bytes, patch_names, shown
from clearhead.drawing.colours import png
from clearhead.drawing.page.payload import Payload
from clearhead.drawing.page.texts import read_text
from clearhead.errors import ArgumentError
from clearhead.matrix.matrix import PageOptions
from clearhead.watching.finding import image_numbers

KINDS = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}
"""The first bytes of a file, and its media type."""

MOST_BYTES = 8_000_000


class Photo(NamedTuple):
    """A picture and its patches.

    Attributes:
        content: a PNG or a JPEG.
        kind: its media type.
        grid: rows and columns of patches; tokens go through them row by row.
        places: the index of the token of each patch.
    """

    content: bytes
    kind: str
    grid: tuple[int, int]
    places: Sequence[int]


class Pictured(NamedTuple):
    """The texts of a page, with a name for each patch, and its pictures.

    Attributes:
        tokens, source_tokens: as `Seen.to_html` takes them.
        photos: the pictures, in the order of the text.
        text: the tokens of the text that the pictures are in.
    """

    tokens: Any
    source_tokens: Any
    photos: Sequence[Photo] = ()
    text: tuple[str, ...] = ()

    @property
    def patches(self) -> set[str]:
        """The names of all patches."""
        return {self.text[at] for photo in self.photos for at in photo.places}


def read_pictures(options: PageOptions) -> Pictured:
    """Return the texts of a page, with its pictures; none without `images`.

    The patches of the pictures are the tokens that equal `image_token`, one picture after the other. Without it they
    are all tokens, or all source tokens if there are tokens, after the first `skip`.

    Raises:
        ArgumentError: codes `page.image` and `page.grid`.
        ArgumentTypeError: code `page.tokens`.

    Example:
        >>> image = torch.rand(3, 2, 2)
        >>> read_pictures({"images": image, "grid": (1, 2), "skip": 1}).tokens
        ['[CLS]', '0,0', '0,1']
        >>> read_pictures({"images": image, "tokens": [7, 9, 9, 9, 9, 8], "image_token": 9}).tokens
        ['#7', '0,0', '0,1', '1,0', '1,1', '#8']
    """
    tokens, source_tokens = options.get("tokens"), options.get("source_tokens")
    images, grid, token = (options.get(name) for name in ("images", "grid", "image_token"))
    skip = as_int(options.get("skip", 0))
    if images is None and grid is None and token is None and skip == 0:
        return Pictured(tokens, source_tokens)
    if images is None or skip is None or skip < 0 or (token is not None and skip):
        raise ArgumentError(
            "page.grid",
            "grid, image_token and skip say where the patches of images= are. skip counts the tokens before the first "
            f"patch, 0 or more, and is left out with image_token; got skip={shown(options.get('skip', 0))}, "
            f"image_token={shown(token)} and {'no images' if images is None else 'images'}.",
        )
    contents = [
        _content(each) for each in (images if isinstance(images, list | tuple) else [images])
    ]
    kinds = [_kind(each) for each in contents]
    sizes = (
        None
        if grid is None and token is not None
        else _sizes(grid, len(contents), whole=token is None)
    )
    in_source = source_tokens is not None or (token is None and tokens is not None)
    if token is None:
        text = patch_names((0, 0), skip) + [""] * sum(map(math.prod, sizes or ()))
        places, lengths = list(range(skip, len(text))), []
    else:
        name, given = ("source_tokens", source_tokens) if in_source else ("tokens", tokens)
        text = list(read_text(name, given, options.get("sample", 0)).tokens)
        wanted = token if isinstance(token, str) else f"#{token}"
        numbers = image_numbers(text, wanted)
        places = (numbers >= 0).nonzero()[:, 0].tolist()
        lengths = numbers[places].bincount().tolist()
    grids = _fitting(contents, kinds, lengths) if sizes is None else _merged(sizes, len(places))
    if not places or sum(map(math.prod, grids)) != len(places):
        patches = " + ".join(f"{rows} × {columns}" for rows, columns in grids)
        raise ArgumentError(
            "page.grid",
            "the patches of all pictures, rows × columns, must be as many as the tokens that equal image_token; got "
            f"{patches} patches, and {len(places)} tokens {shown(token)}.",
        )
    photos, start = [], 0
    for number, (content, kind, size) in enumerate(zip(contents, kinds, grids, strict=True), 1):
        photo = Photo(content, kind, size, places[start : start + math.prod(size)])
        for place, each in zip(photo.places, patch_names(size, 0), strict=True):
            text[place] = each if len(contents) == 1 else f"{number}:{each}"
        photos.append(photo)
        start += len(photo.places)
    sides = (tokens, text) if in_source else (text, source_tokens)
    return Pictured(*sides, photos, tuple(text))


def _sizes(grid: Any, count: int, *, whole: bool) -> list[tuple[int, ...]]:
    """Return the sizes of a grid for each picture: two of its patches, or, if not `whole`, three of `image_grid_thw`.

    A pair is that of each picture. Raises ArgumentError, code `page.grid`, for anything else.
    """
    rows = grid.tolist() if hasattr(grid, "tolist") else grid
    rows = list(rows) if isinstance(rows, list | tuple) else [rows]
    rows = [rows] * count if rows and as_int(rows[0]) is not None else rows
    sizes = [as_ints(each) if isinstance(each, list | tuple) else None for each in rows]
    found = [each for each in sizes if each is not None and min(each, default=0) > 0]
    lengths = {len(each) for each in found}
    thw = not whole and lengths == {3} and all(each[0] == 1 for each in found)
    if len(found) != count or len(rows) != count or not (thw or lengths == {2}):
        raise ArgumentError(
            "page.grid",
            f"grid must be the rows and columns of patches, such as (14, 14), or a list of them for {count} pictures, "
            f"or, with image_token, the processor's image_grid_thw; got {shown(grid)}.",
        )
    return found


def _merged(sizes: Sequence[tuple[int, ...]], count: int) -> list[tuple[int, int]]:
    """Return rows and columns of the patches: the sizes; of `image_grid_thw`, which a model merges to `count` tokens.

    It merges squares of patches into a token.
    """
    side = math.isqrt(sum(map(math.prod, sizes)) // max(1, count)) if len(sizes[0]) == 3 else 1
    return [(each[-2] // side, each[-1] // side) for each in sizes]


def _fitting(
    contents: Sequence[bytes], kinds: Sequence[str], lengths: Sequence[int]
) -> list[tuple[int, int]]:
    """Return rows and columns of the patches of pictures, of which each has a run of patches with one of the lengths.

    They are a square, or sides that round to those of the picture. Raises ArgumentError, code `page.grid`, if runs are
    not as many as pictures, or several or no sizes fit.
    """
    if len(lengths) != len(contents):
        raise ArgumentError(
            "page.grid",
            f"without grid the patches of each picture are a run of tokens; got {len(contents)} pictures and "
            f"{len(lengths)} runs. Pass grid=[(rows, columns)] of each, or the processor's image_grid_thw.",
        )
    grids = []
    for length, content, kind in zip(lengths, contents, kinds, strict=True):
        high, wide = _sides(content, kind)
        pairs = [(rows, length // rows) for rows in range(1, length + 1) if length % rows == 0]
        fits = [
            (rows, columns)
            for rows, columns in pairs
            if rows == columns
            or (
                high * (columns - 1) < wide * (rows + 1)
                and wide * (rows - 1) < high * (columns + 1)
            )
        ]
        if len(fits) != 1:
            found = " or ".join(f"{rows} × {columns}" for rows, columns in fits)
            raise ArgumentError(
                "page.grid",
                f"without grid the {length} patches of a picture of {high} × {wide} pixels must be a square, or have "
                f"its sides; got {found or 'neither'}. Pass grid=(rows, columns), or the processor's image_grid_thw.",
            )
        grids += fits
    return grids


def _sides(content: bytes, kind: str) -> tuple[int, int]:
    """Return height and width of a PNG or a JPEG, in pixels; MissingExtraError for a JPEG without Pillow."""
    if kind == "image/png":
        return int.from_bytes(content[20:24], "big"), int.from_bytes(content[16:20], "big")
    with importing("PIL", extra="samples", purpose="reading the size of a JPEG"):
        from PIL import Image, ImageOps
    with Image.open(BytesIO(content)) as opened:
        # A phone records how the picture is turned, which a browser reads too.
        wide, high = ImageOps.exif_transpose(opened).size
    return high, wide


def _kind(content: bytes) -> str:
    """Return the media type of a PNG or a JPEG; ArgumentError, `page.image`, for anything else or too many bytes."""
    kind = next((kind for first, kind in KINDS.items() if content.startswith(first)), None)
    if kind is None or len(content) > MOST_BYTES:
        size = format_bytes(len(content))
        got = f"one of {size}" if kind else f"{size} that are neither"
        raise ArgumentError(
            "page.image",
            f"each of images must be a PNG or a JPEG of up to {format_bytes(MOST_BYTES)}; got {got}.",
        )
    return kind


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
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        image = pixels.view(image.height, image.width, 3)
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


def with_photos(payload: Payload, pictured: Pictured) -> Payload:
    """Return a payload with the pictures whose patches are tokens of a text of it; without pictures the same payload.

    Raises:
        ArgumentError: code `page.grid`, if no layer attends to the patches.
    """
    if not pictured.photos:
        return payload
    texts = payload.data["texts"]
    place = texts.index(pictured.text) if pictured.text in texts else None
    keys = [layer["keys"] for layer in payload.data["layers"] if layer["key"]["text"] == place]
    if max(keys, default=0) <= max(pictured.photos[-1].places):
        raise ArgumentError(
            "page.grid",
            f"the {len(pictured.text)} tokens that images= are in must be keys of a layer; got layers of "
            f"{', '.join(map(str, sorted({each['keys'] for each in payload.data['layers']})))}.",
        )
    entries = [
        {"kind": each.kind, "grid": each.grid, "places": each.places, "text": place}
        for each in pictured.photos
    ]
    contents = {
        f"photo{number}": torch.frombuffer(bytearray(each.content), dtype=torch.uint8)
        for number, each in enumerate(pictured.photos)
    }
    return replace(
        payload, data={**payload.data, "photos": entries}, arrays={**payload.arrays, **contents}
    )
