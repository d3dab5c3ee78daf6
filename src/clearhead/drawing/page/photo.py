"""Pictures whose patches are tokens of a page."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead._common.checks import as_int, as_ints
from clearhead._common.lazy import importing
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
    listed, whole = images if isinstance(images, list | tuple) else [images], token is None
    contents = [_content(each) for each in listed]
    sizes = _sizes(grid, len(contents), whole=whole) if whole or grid is not None else None
    in_source = source_tokens is not None or (whole and tokens is not None)
    if whole:
        text = patch_names((0, 0), skip) + [""] * sum(map(math.prod, sizes or ()))
        places, runs = list(range(skip, len(text))), []
    else:
        name, given = ("source_tokens", source_tokens) if in_source else ("tokens", tokens)
        text = list(read_text(name, given, options.get("sample", 0)).tokens)
        numbers = image_numbers(text, token if isinstance(token, str) else f"#{token}").tolist()
        places = [at for at, number in enumerate(numbers) if number >= 0]
        runs = [[at for at in places if numbers[at] == each] for each in range(1 + max(numbers))]
    in_pixels = not whole and sizes is not None and len(sizes[0]) == 2
    in_pixels = in_pixels and sum(map(math.prod, sizes or ())) > 9 * len(places) > 0
    if (sizes is None or in_pixels) and len(runs) != len(contents):
        raise ArgumentError(
            "page.grid",
            f"without grid the patches of each picture are a run of tokens; got {len(contents)} pictures and "
            f"{len(runs)} runs. Pass grid=[(rows, columns)] of each, or the processor's image_grid_thw.",
        )
    if sizes is None:
        grids = _fitting(contents, list(map(len, runs)))
    elif in_pixels:
        contents, grids, places = _tiled(contents, sizes, runs)
    else:
        grids = _merged(sizes, len(places))
    if not places or sum(map(math.prod, grids)) != len(places):
        patches = " + ".join(f"{rows} × {columns}" for rows, columns in grids)
        raise ArgumentError(
            "page.grid",
            "the patches of all pictures, rows × columns, must be as many as the tokens that equal image_token, or the "
            f"pixels of image_sizes fit one layout of tiles; got {patches}, and {len(places)} tokens {shown(token)}.",
        )
    rest = iter(places)
    parts = [tuple(islice(rest, math.prod(size))) for size in grids]
    for number, (size, part) in enumerate(zip(grids, parts, strict=True)):
        for place, each in zip(part, _names(size, 0, number, len(grids)), strict=True):
            text[place] = each
    photos = [Photo(*each, tuple(text)) for each in zip(contents, grids, parts, strict=True)]
    sides = (tokens, text) if in_source else (text, source_tokens)
    return Pictured(*sides, photos, None if whole or given_skip is None else skip)


def _names(grid: tuple[int, int], skip: int, number: int, count: int) -> list[str]:
    """Return the names of the `skip` tokens and the patches of a picture, the one with index `number` of `count`.

    With several pictures each name begins with the number of its picture, from 1.
    """
    names = patch_names(grid, skip)
    return names if count == 1 else [f"{number + 1}:{each}" for each in names]


def _sizes(grid: Any, count: int, *, whole: bool) -> list[tuple[int, ...]]:
    """Return the sizes of a grid for each picture: two of its patches, or, if not `whole`, three of `image_grid_thw`.

    A pair is that of each picture; it may be of pixels. Raises ArgumentError, code `page.grid`, for anything else.
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
            f"grid must be the rows and columns of patches, such as (14, 14), or a list of {count} of them, "
            f"or, with image_token, the processor's image_grid_thw or image_sizes; got {shown(grid)}.",
        )
    return found


def _merged(sizes: Sequence[tuple[int, ...]], count: int) -> list[tuple[int, int]]:
    """Return rows and columns of the patches: pairs of sizes as they are, `image_grid_thw` merged to `count` tokens.

    A model merges squares of patches into one token.
    """
    side = math.isqrt(sum(map(math.prod, sizes)) // max(1, count)) if len(sizes[0]) == 3 else 1
    return [(each[-2] // side, each[-1] // side) for each in sizes]


def _fitting(contents: Sequence[bytes], lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return rows and columns of the patches of each picture; the lengths are the numbers of its patches, in order.

    They are a square, or sides that round to those of the picture. Raises ArgumentError, code `page.grid`, if several
    or no sizes fit.
    """
    grids = []
    for length, content in zip(lengths, contents, strict=True):
        high, wide = _sides(content)
        pairs = [(rows, length // rows) for rows in range(1, length + 1) if length % rows == 0]
        # High times columns and wide times rows are equal, but for the rounding of both to whole patches.
        fits = [
            (rows, columns)
            for rows, columns in pairs
            if rows == columns or -high - wide < high * columns - wide * rows < high + wide
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


def _tiled(
    contents: Sequence[bytes], sizes: Sequence[tuple[int, ...]], runs: Sequence[list[int]]
) -> tuple[list[bytes], list[tuple[int, int]], list[int]]:
    """Return two views of each picture, their rows and columns, and the places of patches, for `image_sizes`.

    A model that cuts pictures into tiles of side × side patches reads the whole as one of them, and then the tiles as
    one grid, without the padding around the picture, and a token at the end of each row. If several or no tiles fit,
    the arguments are returned, with the places in order.
    """
    views, grids, kept = [], [], []
    for content, (high, wide), run in zip(contents, sizes, runs, strict=True):
        fits: set[tuple[int, int, int]] = set()
        for side, down, across in product(range(1, math.isqrt(len(run)) + 1), *2 * [range(1, 7)]):
            rows, columns = side * down, side * across
            if wide * rows > high * columns:
                rows -= (rows - int(round(high * columns / wide, 7))) // 2 * 2
            else:
                columns -= (columns - int(round(wide * rows / high, 7))) // 2 * 2
            if side**2 + rows * (columns + 1) == len(run):
                fits.add((side, rows, columns))
        if len(fits) != 1:
            return list(contents), _merged(sizes, 0), [at for run in runs for at in run]
        ((side, rows, columns),) = fits
        views += [content] * 2
        grids += [(side, side), (rows, columns)]
        kept += run[: side**2]
        kept += [e for at, e in enumerate(run[side**2 :], 1) if at % (columns + 1)]
    return views, grids, kept


def _sides(content: bytes) -> tuple[int, int]:
    """Return height and width of a PNG or a JPEG, in pixels; MissingExtraError for a JPEG without Pillow."""
    if content.startswith(PNG):
        return int.from_bytes(content[20:24], "big"), int.from_bytes(content[16:20], "big")
    with importing("PIL", extra="samples", purpose="reading the size of a JPEG"):
        from PIL import Image, ImageOps
    with Image.open(BytesIO(content)) as opened:
        # A phone records how the picture is turned, which a browser reads too.
        wide, high = ImageOps.exif_transpose(opened).size
    return high, wide


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
