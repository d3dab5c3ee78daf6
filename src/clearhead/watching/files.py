"""The record of a watch as a file: safetensors, with a header of JSON that describes the tensors.

The header stands in the metadata of the file under the key `clearhead`: `{"version": 1, "content":
…}`, with the content as `encoding` has it.
"""

import ctypes
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from clearhead._common.lazy import importing
from clearhead._common.writing import place_of, replacing
from clearhead._text import format_bytes, shown
from clearhead.errors import FileError, UnsupportedError, because_of
from clearhead.watching.encoding import Encoder, Record, decode

VERSION = 1

KEY = "clearhead"

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
"""The names of dtypes in a file of safetensors."""

MOST_CLAIMED = 1 << 20
"""Elements that the shape of an empty tensor may claim; of others, the bytes of the file."""


def write(path: str | os.PathLike[str], content: object) -> Path:
    """Write matrices, summaries and plain values to a file, whole or not at all; return its path.

    Args:
        path: where to.
        content: what to write.

    Raises:
        MissingExtraError: if safetensors is not installed.
        FileError: code `file.unwritable`, if the place cannot be written to.
        UnsupportedError: code `file.kind`, for something of a kind or dtype that files do not know.
        ArgumentTypeError: code `path.type`, for what is no path.
    """
    _safetensors()  # which reads it
    encoder = Encoder()
    encoded = encoder.encode(content)
    header = json.dumps({"version": VERSION, "content": encoded})
    with replacing(path) as (name, target), open(name, "wb") as file:
        _write_safetensors(file, encoder.tensors(), {KEY: header})
    return target


def _write_safetensors(
    file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write the format of safetensors to an open file, tensor by tensor, without a copy of them all.

    The library's own writer moves a file of another mode into the place, with its own leftovers. Raises
    UnsupportedError, code `file.kind`, for a dtype that is not in `DTYPES`.
    """
    head: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    # Wide elements first, so that each lies at a multiple of its size.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
    for name, tensor in ordered:
        if tensor.dtype not in DTYPES:
            raise UnsupportedError("file.kind", f"a file holds no tensor of {tensor.dtype}.")
        start, end = end, end + tensor.nbytes
        kind, shape = DTYPES[tensor.dtype], list(tensor.shape)
        head[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(head, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    file.write(len(encoded).to_bytes(8, "little") + encoded)
    for _, tensor in ordered:
        here = tensor.detach().cpu().contiguous()
        if here.nbytes:
            file.write((ctypes.c_ubyte * here.nbytes).from_address(here.data_ptr()))


def read(path: str | os.PathLike[str]) -> Any:
    """Return the content of a file that `write` wrote.

    Raises:
        MissingExtraError: if safetensors is not installed.
        ArgumentTypeError: code `path.type`, for no path.
        FileError: codes `file.unreadable`, for no file, or one that is cut short or not safetensors;
            `file.foreign`, for tensors of others; `file.version`, for another version; `file.content`,
            for an unknown or unfit header.
    """
    place = place_of(path, "file.unreadable", "read")
    metadata, tensors = _read_whole(place, _safetensors())
    if KEY not in metadata:
        raise FileError("file.foreign", f"{place} has tensors, but was not written by clearhead.")
    try:
        header = json.loads(metadata[KEY])
    except (ValueError, RecursionError) as error:
        raise FileError("file.content", f"the header of {place} is no JSON: {error}") from error
    version = header.get("version") if isinstance(header, dict) else None
    if type(version) is not int or version != VERSION:
        raise FileError(
            "file.version",
            f"{place} must be of version {VERSION}, which this clearhead reads; it is of "
            f"version {shown(version)}.",
        )
    try:
        if header.keys() != {"version", "content"}:
            raise FileError("file.content", f"the header holds {', '.join(header)}.")
        return decode(header["content"], tensors)
    except FileError as error:
        raise FileError(error.code, f"{place}: {error.message}") from error
    except RecursionError as error:
        raise FileError("file.content", f"{place}: the header is nested too deeply.") from error


def _read_whole(place: Path, safetensors: Any) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the tensors of a file by name, both from the same version of it.

    FileError: `file.unreadable` for no file or another format, `file.content` for shapes larger than the file.
    """
    from safetensors import SafetensorError

    try:
        if place.exists() and not place.is_file():  # a pipe would block
            raise ValueError("it is no file")
        content = place.read_bytes()
        tensors = safetensors.load(content)
    except (OSError, ValueError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"{place} could not be read as a file of safetensors: {reason}"
        raise because_of(error, FileError("file.unreadable", message)) from error
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    metadata = json.loads(header).get("__metadata__") or {}
    held = sum(each.nbytes for each in tensors.values())
    for name, tensor in tensors.items():
        claimed = math.prod(max(1, size) for size in tensor.shape)
        if claimed > max(held, MOST_CLAIMED):
            raise FileError(
                "file.content",
                f"{place}: tensor {shown(name)} claims {list(tensor.shape)}, and the file holds "
                f"{format_bytes(held)}.",
            )
    return metadata, tensors


def read_seen(path: str | os.PathLike[str]) -> Record:
    """Return the record of a watch that `Seen.save` wrote.

    Raises:
        MissingExtraError, ArgumentTypeError, FileError: as `read`; code `file.content` also for another content.
    """
    record = read(path)
    if not isinstance(record, Record):
        raise FileError("file.content", f"{path} does not hold what a watch has seen.")
    return record


def _safetensors() -> Any:
    """Return the module safetensors.torch, or raise a MissingExtraError if it is not installed."""
    with importing(
        "safetensors", "safetensors.torch", extra="files", purpose="a file of what was seen"
    ):
        import safetensors.torch
    return safetensors.torch
