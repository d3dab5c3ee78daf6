"""Pictures whose patches are tokens of a page."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead._common.checks import as_int, as_ints
from clearhead._text import format_bytes, patch_names, shown
from clearhead.drawing.colours import png
from clearhead.drawing.page.payload import Payload
from clearhead.drawing.page.runs import Layer, Run
from clearhead.drawing.page.texts import offsets, read_text
from clearhead.errors import ArgumentError, ShapeError
from clearhead.matrix.matrix import AttentionMatrix, PageOptions
from clearhead.matrix.summary import Summary
from clearhead.watching.finding import image_numbers

PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
"""The first bytes of a file."""

MOST_BYTES = 8_000_000


class Photo(NamedTuple):
    """A picture and its patches.

    Attributes:
        content: a PNG or a JPEG.
        grid: rows and columns of patches; tokens go through them row by row.
        places: the index of the token of each patch.
        text: the tokens that it is in.
    """

    content: bytes
    grid: tuple[int, int]
    places: Sequence[int]
    text: tuple[str, ...]


class Pictured(NamedTuple):
    """The texts of a page, with a name for each patch, and its pictures.

    Attributes:
        tokens, source_tokens: as `Seen.to_html` takes them.
        photos: the pictures, in the order of the text.
        skip: the tokens before the first patch in a vision tower whose layers are asked for; else None.
        left_out: the number of layers of other tokens that are not on the page.
    """

    tokens: Any
    source_tokens: Any
    photos: Sequence[Photo] = ()
    skip: int | None = None
    left_out: int = 0


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
    given_skip = options.get("skip")
    if images is None and grid is None and token is None and not given_skip:
        return Pictured(tokens, source_tokens)
    skip = as_int(given_skip or 0)
    if images is None or skip is None or skip < 0:
        raise ArgumentError(
            "page.grid",
            "grid, image_token and skip say where the patches of images= are. skip counts the tokens before the first "
            f"patch, 0 or more; got skip={shown(given_skip)}, image_token={shown(token)} and "
            f"{'no images' if images is None else 'images'}.",
        )
    contents = [_content(e) for e in (images if isinstance(images, list | tuple) else [images])]
    if token is None:
        in_source = source_tokens is not None or tokens is not None
        grids = _grids(grid, len(contents))
        text = patch_names((0, 0), skip) + [""] * sum(map(math.prod, grids))
        places = list(range(skip, len(text)))
    else:
        in_source = source_tokens is not None
        name, given = ("source_tokens", source_tokens) if in_source else ("tokens", tokens)
        text = list(read_text(name, given, options.get("sample", 0)).tokens)
        numbers = image_numbers(text, token if isinstance(token, str) else f"#{token}").tolist()
        places = [at for at, number in enumerate(numbers) if number >= 0]
        sides = [math.isqrt(numbers.count(each)) for each in range(1 + max(numbers))]
        squares = [(side, side) for side in sides]
        grids = squares if grid is None else _grids(grid, len(contents), len(places))
    if not places or sum(map(math.prod, grids)) != len(places) or len(grids) != len(contents):
        patches = " + ".join(f"{rows} × {columns}" for rows, columns in grids)
        raise ArgumentError(
            "page.grid",
            "the patches of all pictures, rows × columns, must be as many as the tokens that equal image_token, of "
            f"squares without grid; got {len(contents)} images of {patches}, and {len(places)} tokens {shown(token)}.",
        )
    rest = iter(places)
    parts = [tuple(islice(rest, math.prod(size))) for size in grids]
    for number, (size, part) in enumerate(zip(grids, parts, strict=True)):
        for place, each in zip(part, _names(size, 0, number, len(grids)), strict=True):
            text[place] = each
    photos = [Photo(*each, tuple(text)) for each in zip(contents, grids, parts, strict=True)]
    sides = (tokens, text) if in_source else (text, source_tokens)
    return Pictured(*sides, photos, None if token is None or given_skip is None else skip)


def _names(grid: tuple[int, int], skip: int, number: int, count: int) -> list[str]:
    """Return the names of the `skip` tokens and the patches of a picture, the one with index `number` of `count`.

    With several pictures each name begins with the number of its picture, from 1.
    """
    names = patch_names(grid, skip)
    return names if count == 1 else [f"{number + 1}:{each}" for each in names]


def _grids(grid: Any, count: int, patches: int | None = None) -> list[tuple[int, int]]:
    """Return rows and columns of the patches of each picture, from a pair, a list of them, or `image_grid_thw`.

    A pair is that of each picture. A model merges squares of an `image_grid_thw` to `patches` tokens; None accepts
    pairs alone. Raises ArgumentError, code `page.grid`, for anything else.
    """
    rows = grid.tolist() if hasattr(grid, "tolist") else grid
    rows = list(rows) if isinstance(rows, list | tuple) else [rows]
    rows = [rows] * count if rows and as_int(rows[0]) is not None else rows
    sizes = [as_ints(each) if isinstance(each, list | tuple) else None for each in rows]
    found = [each for each in sizes if each is not None and min(each, default=0) > 0]
    lengths = {len(each) for each in found}
    thw = patches is not None and lengths == {3} and all(each[0] == 1 for each in found)
    if len(found) != count or len(rows) != count or not (thw or lengths == {2}):
        raise ArgumentError(
            "page.grid",
            f"grid must be the rows and columns of patches, such as (14, 14), or a list of {count} of them, "
            f"or, with image_token, the processor's image_grid_thw; got {shown(grid)}.",
        )
    side = math.isqrt(sum(map(math.prod, found)) // max(1, patches or 0)) if thw else 1
    return [(each[-2] // side, each[-1] // side) for each in found]


def _content(image: Any) -> bytes:
    """Return bytes as they are, the content of a file, or a PNG of pixels; ArgumentError, `page.image`, for the rest.

    Pixels are of Pillow, or uint8 or floats from 0 to 1, with colours first or last. A file is a PNG or a JPEG.
    """
    if isinstance(image, str | os.PathLike):
        try:
            image = Path(image).read_bytes()
        except OSError as error:
            raise ArgumentError(
                "page.image", f"image {shown(str(image))} cannot be read: {error.strerror}."
            ) from error
    if isinstance(image, bytes):
        if image.startswith((PNG, JPEG)) and len(image) <= MOST_BYTES:
            return image
        raise ArgumentError(
            "page.image",
            f"each of images must be a PNG or a JPEG of up to {format_bytes(MOST_BYTES)}; got "
            f"{format_bytes(len(image))} that begin with {shown(image[:4])}.",
        )
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
            return _content(png(pixels))
        got = f"{pixels.dtype} of shape {tuple(pixels.shape)}"
    raise ArgumentError(
        "page.image",
        "image must be a path, a picture of Pillow, or pixels of shape (height, width, 3) or (3, height, "
        f"width), as bytes or as floats from 0 to 1; got {got}.",
    )


def of_pictures(runs: Sequence[Run], pictured: Pictured) -> tuple[list[Run], Pictured]:
    """Return runs with the layers of their texts, and those of a vision tower for each picture, and all pictures.

    Layers of other tokens are left out, unless no layer is left. Without pictures both are returned as they are.
    """
    if not pictured.photos:
        return list(runs), pictured
    found, photos, left_out = [], list(pictured.photos), 0
    for run in runs:
        lengths = [None if text is None else len(text.tokens) for text in (run.text, run.source)]
        layers: list[Layer] = []
        for layer in run.layers:
            weights = layer.weights
            sizes = weights.query_len, weights.kv_len
            try:
                offsets(layer.name, *sizes, *lengths, cross=weights.cross)
                layers.append(layer)
            except ShapeError:
                views = _of_tower(weights, pictured)
                photos, left_out = photos + views, left_out + (not views)
                for row, view in enumerate(views):
                    picture = Run("", (), read_text("tokens", view.text), sample=row)
                    call = row if len(views) > 1 else None
                    layers.append(layer._replace(call=call, picture=picture))
        found.append(replace(run, layers=layers or run.layers))
    return found, pictured._replace(photos=tuple(dict.fromkeys(photos)), left_out=left_out)


def _of_tower(weights: AttentionMatrix | Summary, pictured: Pictured) -> list[Photo]:
    """Return the pictures with the patches of a layer of a vision tower, row by row; [] for another layer.

    Its batch is the pictures. A patch of the text is one of its patches, or a square of them.
    """
    views, count = [], len(pictured.photos)
    for number, photo in enumerate(pictured.photos):
        skip = weights.kv_len if pictured.skip is None else pictured.skip
        patches = weights.kv_len - skip
        side = max(1, math.isqrt(max(0, patches) // math.prod(photo.grid)))
        grid = side * photo.grid[0], side * photo.grid[1]
        sizes = weights.batch, weights.query_len, math.prod(grid)
        if sizes != (count, weights.kv_len, patches):
            return []
        text = tuple(_names(grid, skip, number, count))
        views.append(Photo(photo.content, grid, tuple(range(skip, len(text))), text))
    return views


def with_photos(payload: Payload, pictured: Pictured) -> Payload:
    """Return a payload with the pictures whose patches are keys of a layer; without pictures the same payload.

    Raises:
        ArgumentError: code `page.grid`, if no layer attends to the patches.
    """
    if not pictured.photos:
        return payload
    texts = payload.data["texts"]
    layers = sorted(payload.data["layers"], key=lambda layer: layer["keys"])
    keys = {each["key"]["text"]: each["keys"] for each in layers}
    contents = list(dict.fromkeys(each.content for each in pictured.photos))
    entries = [
        {**each._asdict(), "content": contents.index(each.content), "text": place}
        for each in pictured.photos
        for place, length in keys.items()
        if place is not None and texts[place] == each.text and length > max(each.places)
    ]
    if not entries:
        raise ArgumentError(
            "page.grid",
            f"the {len(pictured.photos[0].text)} tokens that images= are in must be keys of a layer; got layers of "
            f"{', '.join(dict.fromkeys(str(each['keys']) for each in layers))}.",
        )
    arrays = {
        f"photo{number}": torch.frombuffer(bytearray(each), dtype=torch.uint8)
        for number, each in enumerate(contents)
    }
    data = {**payload.data, "photos": entries}
    return replace(payload, data=data, arrays={**payload.arrays, **arrays})
