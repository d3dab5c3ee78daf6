"""The record of a watch as a file: safetensors, with a header of JSON that describes the tensors.

The header stands in the metadata of the file under the key `clearhead`: `{"version": 1, "content":
…}`, with the content as `encoding` has it. A file is of the lowest version that has all that is in
it, so that every reader of that version can read it, and every other says so.
"""

import json
import os
import reprlib
from pathlib import Path
from typing import Any

from clearhead._common.writing import replacing
from clearhead.errors import ArgumentTypeError, FileError, missing_extra
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.summary import Summary
from clearhead.watching.encoding import Encoder, decode
from clearhead.watching.token_ids import listed

VERSIONS = (1, 2, 3)
"""In version 2 there may be the tokens beside what was seen, and in version 3 how many queries a role
is the mean of."""

KEY = "clearhead"

TEXTS = frozenset({"tokens", "source_tokens"})
"""The texts that a file may hold beside the calls."""


def write(path: str | os.PathLike[str], content: object, *, version: int = 1) -> Path:
    """Write matrices, summaries and plain values to a file, whole or not at all.

    Args:
        path: where to.
        content: what to write.
        version: the lowest version that has all that is in the content.

    Raises:
        MissingExtraError: if safetensors is not installed.
        FileError: code `file.unwritable`, if the place cannot be written to.
        UnsupportedError: code `file.kind`, for something of a kind that files do not know.
    """
    safetensors = _safetensors()
    encoder = Encoder()
    encoded = encoder.encode(content)
    header = json.dumps({"version": max(version, encoder.version), "content": encoded})
    with replacing(path) as (name, target):
        safetensors.save_file(encoder.tensors(), name, metadata={KEY: header})
    return target


def read(path: str | os.PathLike[str]) -> Any:
    """Return the content of a file that `write` wrote.

    Raises:
        MissingExtraError: if safetensors is not installed.
        FileError: codes `file.unreadable`, for no file, or one cut short; `file.foreign`, for one
            that is not of clearhead; `file.version`, for one of a later version; `file.content`,
            for a header with something unknown, or with sizes that are not those of the tensors.
            Whatever is in a file, it raises no other error.
    """
    _safetensors()
    from safetensors import SafetensorError, safe_open

    place = Path(path).expanduser()
    if place.exists() and not place.is_file():  # a pipe would block
        raise FileError("file.unreadable", f"{place} could not be read: it is no file.")
    try:
        with safe_open(place, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(
            "file.unreadable", f"{place} could not be read as a file of safetensors: {reason}"
        ) from error
    if KEY not in metadata:
        raise FileError("file.foreign", f"{place} has tensors, but was not written by clearhead.")
    try:
        header = json.loads(metadata[KEY])
    except (ValueError, RecursionError) as error:
        raise FileError("file.content", f"the header of {place} is no JSON: {error}") from error
    version = header.get("version") if isinstance(header, dict) else None
    if type(version) is not int or version not in VERSIONS:
        known = " or ".join(map(str, VERSIONS))
        raise FileError(
            "file.version",
            f"{place} must be of version {known}, which this clearhead reads; it is of "
            f"version {reprlib.repr(version)}.",
        )
    try:
        if header.keys() != {"version", "content"}:
            raise FileError("file.content", f"the header holds {', '.join(header)}.")
        return decode(header["content"], tensors)
    except FileError as error:
        raise FileError(error.code, f"{place}: {error.message}") from error
    except RecursionError as error:
        raise FileError("file.content", f"{place}: the header is nested too deeply.") from error


def write_seen(path: str | os.PathLike[str], record: dict[str, Any]) -> Path:
    """Write the record of a watch, with the fields that `read_seen` has; texts may be None.

    Raises:
        MissingExtraError, FileError, UnsupportedError: as `write`.
    """
    named = any(record[name] is not None for name in TEXTS)
    kept = {name: field for name, field in record.items() if named or name not in TEXTS}
    return write(path, {"seen": kept}, version=1 + named)


def read_seen(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the record of a watch that `Seen.save` wrote: "model", "keep", "calls", which are the
    calls of each module, and those of TEXTS that the file has.

    Raises:
        MissingExtraError, FileError: as `read`; code `file.content` also for another content.
    """
    content = read(path)
    seen = content.get("seen") if isinstance(content, dict) and len(content) == 1 else None
    if not isinstance(seen, dict) or seen.keys() - TEXTS != {"model", "keep", "calls"}:
        raise FileError("file.content", f"{path} does not hold what a watch has seen.")
    keep, modules = seen["keep"], seen["calls"]
    if keep not in ("matrix", "summary") or not isinstance(modules, dict):
        raise FileError("file.content", f"{path} keeps {keep!r}, which is not known.")
    kind = AttentionMatrix if keep == "matrix" else Summary
    for name, calls in modules.items():
        if not isinstance(calls, list) or not calls or not all(isinstance(c, kind) for c in calls):
            raise FileError(
                "file.content", f"{path} must hold a {kind.__name__} for every call of {name!r}."
            )
        if any(isinstance(call, Summary) and call.roles is None for call in calls):
            raise FileError("file.content", f"{path} has a summary of {name!r} without roles.")
    texts = {}
    for name in TEXTS & seen.keys():
        try:
            texts[name] = None if seen[name] is None else listed(name, seen[name])
        except ArgumentTypeError as error:
            raise FileError("file.content", f"{path}: {error.message}") from error
    return seen | texts | {"model": str(seen["model"])}


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "safetensors":
            raise
        raise missing_extra("safetensors", "files", "a file of what was seen") from error
    return safetensors.torch
