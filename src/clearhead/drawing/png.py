"""PNG files (ISO/IEC 15948) from pixels, without an image library."""

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead._common.memory import bytes_of
from clearhead.drawing.colours import Colour


def png(pixels: Tensor, colours: Sequence[Colour] = (), opacities: bytes = b"") -> bytes:
    r"""Return a picture as the bytes of a PNG file.

    Args:
        pixels: uint8, (height, width, 3) of red, green and blue; or (height, width), places in `colours`.
        colours: the table of colours.
        opacities: of the first of them, 0 to 255; the others are opaque.

    Example:
        >>> png(torch.zeros(2, 3, dtype=torch.uint8), [(0, 0, 0)])[:4]
        b'\x89PNG'
    """
    height, width = pixels.shape[:2]
    # Each line begins with how it was filtered: not at all.
    lines = torch.cat([pixels.new_zeros(height, 1), pixels.flatten(1)], dim=1)
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    chunks = [
        (b"IHDR", size + bytes([8, 3 if colours else 2, 0, 0, 0])),
        (b"PLTE", b"".join(bytes(each) for each in colours)),
        (b"tRNS", opacities),
        (b"IDAT", zlib.compress(bytes_of(lines), 9 if colours else 6)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")
        for name, data in chunks
        if data or name == b"IEND"
    )
