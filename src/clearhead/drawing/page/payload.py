r"""The payload of a page as bytes: a JSON head and named arrays of numbers, rounded to one or two bytes.

    b"clearhead\npage" | uint32, length of the head | the head, deflated | the arrays, each deflated

The head says where each array begins, counted from its own end. Numbers are little-endian. Every
part begins at a multiple of three bytes, so that a page can hold the whole as one text of base64
and undo each part by itself, when it is looked at. The same bytes are what a server sends and a
notebook hands to its widget.
"""

import json
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead._common.memory import bytes_of
from clearhead._text import shown
from clearhead.errors import DtypeError

MAGIC = b"clearhead\npage"
VERSION = 1

DTYPES = {
    torch.uint8: "uint8",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.int32: "int32",
    torch.float32: "float32",
}
LEVEL = 6
"""Of zlib: 9 takes three times as long for a hundredth less."""

SAMPLE = 1 << 13
"""Bytes that say whether an array is noise and runs, as rounded weights mostly are. A search for what came before
takes eight times as long then, and makes a tenth more bytes of it; of a pattern that comes again it makes far less."""


class Deflated(NamedTuple):
    """An array that was deflated early, because its size had to be known."""

    content: bytes
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Payload:
    """The data of a page.

    Attributes:
        kind: which view draws it, and which script and style: "heads", "trace" or "sentence".
        title: what the page is called.
        data: what the view needs next to the arrays: JSON's own values.
        arrays: named tensors of uint8, uint16, uint32, int32 or float32, deflated or not.

    Example:
        >>> import torch
        >>> payload = Payload("heads", "a page", {"tokens": ["it"]}, {"map": torch.zeros(2, 2)})
        >>> payload.to_bytes()[:9]
        b'clearhead'
    """

    kind: str
    title: str
    data: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Tensor | Deflated] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the container, as the front end reads it.

        Raises:
            DtypeError: code `page.dtype`, for an array of another dtype.
        """
        for name, array in self.arrays.items():
            if isinstance(array, Tensor) and array.dtype not in DTYPES:
                known = ", ".join(DTYPES.values())
                raise DtypeError(
                    "page.dtype", f"array {shown(name)} must be one of {known}; got {array.dtype}."
                )
        with ThreadPoolExecutor() as pool:  # zlib works outside of the interpreter's lock
            packed = list(pool.map(deflated, self.arrays.values()))
        places: dict[str, dict[str, Any]] = {}
        # Counted from the end of the head, whose length depends on these very numbers.
        start = 0
        for name, part in zip(self.arrays, packed, strict=True):
            size = len(part.content)
            places[name] = {"dtype": part.dtype, "shape": part.shape, "start": start, "bytes": size}
            start += len(_padded(part.content))
        content = {
            "version": VERSION,
            "kind": self.kind,
            "title": self.title,
            "data": dict(self.data),
            "arrays": places,
        }
        # In ASCII, so that half a surrogate pair, which tokens may hold, is no special case.
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
        head = zlib.compress(text.encode("ascii"), LEVEL)
        parts = [MAGIC + len(head).to_bytes(4, "little"), head, *(part.content for part in packed)]
        return b"".join(map(_padded, parts))


def deflated(array: Tensor | Deflated) -> Deflated:
    """Return the numbers of a tensor, deflated; what is deflated already is returned unchanged.

    Example:
        >>> import torch
        >>> len(deflated(torch.zeros(1000)).content) < 40
        True
    """
    if isinstance(array, Deflated):
        return array
    content = bytes_of(array)
    end = content[-SAMPLE:]
    noise = array.dtype is torch.uint8 and len(_runs(end)) < len(zlib.compress(end, 1))
    packed = _runs(content) if noise else zlib.compress(content, LEVEL)
    return Deflated(packed, DTYPES[array.dtype], tuple(array.shape))


def _runs(content: bytes) -> bytes:
    """Return bytes deflated by run lengths and Huffman coding, without searching for earlier matches."""
    deflate = zlib.compressobj(LEVEL, strategy=zlib.Z_RLE)
    return deflate.compress(content) + deflate.flush()


def _padded(part: bytes) -> bytes:
    """Return the bytes padded with zeros to a multiple of three."""
    return part + bytes(-len(part) % 3)


BYTE, WORD = 253, 65533
"""Most steps of a byte, and of two: one code is for what is hidden, and one for what is no number."""


class Rounded(NamedTuple):
    """Rounded numbers: their codes, and how a page reads them.

    Attributes:
        codes: uint8 or uint16; 0 is hidden, levels + 2 is no number, else
            top · ((code − 1) / levels) ** power.
        about: `levels`, `power` and, for each entry of the first axis, `top`: the largest number.
    """

    codes: Tensor
    about: dict[str, Any]


def rounded(
    values: Tensor, levels: int = BYTE, *, power: float = 2, hidden: Tensor | None = None
) -> Rounded:
    """Return non-negative numbers rounded to `levels` steps between 0 and the largest of each entry of the first axis.

    NaN and infinity get a code of their own; numbers below 0 count as 0. The root of a number moves by half a step at
    most: 1/(2 levels) of the largest one's root. With power 2 a number w below the top t is so kept to ±√(w·t)/levels,
    or ±t/(4 levels²) near 0.

    Args:
        values: (any, …), float; not changed.
        levels: the number of steps; a byte holds BYTE, two hold WORD.
        power: of the root that is taken; 1 is none.
        hidden: bool, of the shape of the values: which get code 0, and so differ from 0; None is none.

    Example:
        >>> import torch
        >>> codes, about = rounded(torch.tensor([[0.0, 0.25, 1.0]]), 100)
        >>> codes, about
        (tensor([[  1,  51, 101]], dtype=torch.uint8), {'levels': 100, 'power': 2, 'top': [1.0]})
    """
    values = values.float()
    # A sum that rounds to just below 0 is 0; infinity has no place on a scale.
    broken = None if values.sum().isfinite() else ~values.isfinite()
    values = (values if broken is None else values.masked_fill(broken, 0.0)).clamp(min=0.0)
    top = values.flatten(1).amax(dim=1) if values.numel() else values.new_zeros(len(values))
    scale = top.clamp(min=torch.finfo(torch.float32).tiny)
    values.div_(scale.view(-1, *[1] * (values.ndim - 1)))
    if power != 1:
        values = values.sqrt_() if power == 2 else values.pow_(1 / power)
    codes = values.mul_(levels).round_().add_(1)
    if broken is not None:
        codes.masked_fill_(broken, levels + 2)
    if hidden is not None:
        codes.masked_fill_(hidden, 0)
    codes = codes.to(torch.uint8) if levels <= BYTE else codes.int().to(torch.uint16)
    return Rounded(codes, {"levels": levels, "power": power, "top": top.tolist()})
