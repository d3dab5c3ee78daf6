"""Reading the weights of CTranslate2 (https://github.com/OpenNMT/CTranslate2), which hold no code."""

import math
import struct
from pathlib import Path

import torch
from torch import Tensor

from clearhead._common.text import shown
from clearhead.errors import FileError

VERSION = 6
DTYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
"""By their numbers in the format."""


def read_ctranslate2(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a `model.bin` by their names, aliases included.

    Whatever the file says of its sizes is held to the bytes that it has.

    Raises:
        FileError: code `samples.file`, for another format, a tensor of another size than its shape, or an end too soon.
        OSError: if the file cannot be read.
    """
    content = _Content(file)
    version = content.number("I")
    if version != VERSION:
        raise content.error(f"its version is {version}")
    # The name of the specification, and its revision.
    content.text()
    content.number("I")
    tensors = dict(content.tensor() for _ in range(content.number("I")))
    for _ in range(content.number("I")):
        alias, name = content.text(), content.text()
        if name not in tensors:
            raise content.error(f"{shown(alias)} stands for {shown(name)}, which it lacks")
        tensors[alias] = tensors[name]
    return tensors


class _Content:
    def __init__(self, file: Path) -> None:
        self.file = file
        self.left = memoryview(file.read_bytes())

    def error(self, reason: str) -> FileError:
        return FileError(
            "samples.file",
            f"{self.file.name} must be a model of CTranslate2 in version {VERSION}; {reason}.",
        )

    def take(self, size: int) -> memoryview:
        if size > len(self.left):
            raise self.error(f"it ends {size - len(self.left)} bytes too soon")
        taken, self.left = self.left[:size], self.left[size:]
        return taken

    def number(self, kind: str) -> int:
        return struct.unpack(f"<{kind}", self.take(struct.calcsize(kind)))[0]

    def text(self) -> str:
        return bytes(self.take(self.number("H"))).rstrip(b"\0").decode(errors="replace")

    def tensor(self) -> tuple[str, Tensor]:
        name = self.text()
        shape = [self.number("I") for _ in range(self.number("B"))]
        kind, size = self.number("B"), self.number("I")
        if kind >= len(DTYPES) or not size or math.prod(shape) * DTYPES[kind].itemsize != size:
            raise self.error(f"{shown(name)} of {shown(shape)} in type {kind} has {size} bytes")
        data = torch.frombuffer(bytearray(self.take(size)), dtype=torch.uint8)
        return name, data.view(DTYPES[kind]).reshape(shape)
