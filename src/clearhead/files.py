"""What was seen, as a file: safetensors, with a header of JSON that says what the tensors are.

The header stands in the metadata of the file under the key `clearhead`:

    {"version": 1, "content": …}

and the content is built of JSON's own values, of `{"tensor": name, "shape": […]}` for a tensor, of
`{"list": […]}`, and of `{"is": kind, …}` for an object of a known kind with all of its fields.
A tensor of the file that is larger than the shape is meant up to that shape: what grows, such as
the keys of a cache, is written once. Nothing else is read: no code, and no kind that is not known.
"""

import dataclasses
import errno
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead.biases import Alibi, DenseBias, Relative
from clearhead.errors import ClearheadError, FileError, UnsupportedError, missing_extra
from clearhead.masks.base import And, Not, Or
from clearhead.masks.causal import Causal
from clearhead.masks.dense import Dense
from clearhead.masks.documents import Documents
from clearhead.masks.full import Full
from clearhead.masks.padding import PaddedTo, Valid
from clearhead.masks.per_row import PerRow
from clearhead.masks.prefix import Prefix
from clearhead.masks.sliding_window import SlidingWindow
from clearhead.matrix import AttentionMatrix
from clearhead.summary import Roles, Summary, TopK

VERSION = 1
KEY = "clearhead"

KINDS: dict[str, type] = {
    "alibi": Alibi,
    "and": And,
    "causal": Causal,
    "dense": Dense,
    "dense_bias": DenseBias,
    "documents": Documents,
    "full": Full,
    "matrix": AttentionMatrix,
    "not": Not,
    "or": Or,
    "padded_to": PaddedTo,
    "per_row": PerRow,
    "prefix": Prefix,
    "relative": Relative,
    "roles": Roles,
    "sliding_window": SlidingWindow,
    "summary": Summary,
    "top_k": TopK,
    "valid": Valid,
}
NAMES = {kind: name for name, kind in KINDS.items()}

OF_MATRIX = ("query", "key", "mask", "bias", "scale", "softcap", "sinks")


def write(path: str | os.PathLike[str], content: object) -> Path:
    """Write matrices, summaries and plain values to a file, whole or not at all.

    Raises:
        MissingExtraError: if safetensors is not installed.
        FileError: code `file.unwritable`, if the place cannot be written to.
        UnsupportedError: code `file.kind`, for something of a kind that files do not know.
    """
    safetensors = _safetensors()
    pack = _Pack()
    header = json.dumps({"version": VERSION, "content": pack.value(content)})
    with replacing(path) as (name, target):
        safetensors.save_file(pack.tensors(), name, metadata={KEY: header})
    return target


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[tuple[str, Path]]:
    """A file to write to, which takes its place when all went well, and else is gone.

    Yields:
        The name to write to, and the place that it will have.

    Raises:
        FileError: code `file.unwritable`, if the place cannot be written to.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(f"{folder}/page.html") as (name, target):
        ...         written = Path(name).write_text("whole")
        ...     target.read_text()
        'whole'
    """
    target = Path(path).expanduser()
    try:
        # Beside its place, so that it can be moved there in one step.
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        os.close(handle)
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        yield name, target
        # mkstemp lets nobody else read it, which is more than was asked for.
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        if os.path.exists(name):
            os.unlink(name)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a place that cannot be written to, before something is worked out for it.

    Raises:
        FileError: code `file.unwritable`.

    Example:
        >>> check_writable("nowhere/page.html")
        Traceback (most recent call last):
        ...
        clearhead.errors.FileError: [file.unwritable] nowhere/page.html could not be written: No such file or directory
    """
    target = Path(path).expanduser()
    reason = 0
    if not target.parent.is_dir():
        reason = errno.ENOENT
    elif target.is_dir():
        reason = errno.EISDIR
    elif not os.access(target.parent, os.W_OK):
        reason = errno.EACCES
    if reason:
        raise _unwritable(target, OSError(reason, os.strerror(reason)))


def read(path: str | os.PathLike[str]) -> Any:
    """The content of a file that `write` wrote.

    Raises:
        MissingExtraError: if safetensors is not installed.
        FileError: codes `file.unreadable`, for no file, or one cut short; `file.foreign`, for one
            that is not of clearhead; `file.version`, for one of a later version; `file.content`,
            for a header with something unknown, or with sizes that are not those of the tensors.
    """
    _safetensors()
    from safetensors import SafetensorError, safe_open

    place = Path(path).expanduser()
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
    except ValueError as error:
        raise FileError("file.content", f"the header of {place} is no JSON: {error}") from error
    version = header.get("version") if isinstance(header, dict) else None
    if version != VERSION:
        raise FileError(
            "file.version",
            f"{place} must be of version {VERSION}, which this clearhead reads; it is of "
            f"version {version!r}.",
        )
    try:
        if header.keys() != {"version", "content"}:
            raise FileError("file.content", f"the header holds {', '.join(header)}.")
        return _value(header["content"], tensors)
    except FileError as error:
        raise FileError(error.code, f"{place}: {error.message}") from error


def _unwritable(target: Path, error: OSError) -> FileError:
    return FileError("file.unwritable", f"{target} could not be written: {error.strerror or error}")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "safetensors":
            raise
        raise missing_extra("safetensors", "files", "a file of what was seen") from error
    return safetensors.torch


class _Pack:
    """Turns objects into JSON and collects their tensors, each part of memory once."""

    def __init__(self) -> None:
        self._largest: dict[tuple[Any, ...], tuple[str, Tensor]] = {}

    def tensors(self) -> dict[str, Tensor]:
        return {
            name: tensor.detach().cpu().contiguous().clone()
            for name, tensor in self._largest.values()
        }

    def value(self, given: object) -> Any:
        if given is None or isinstance(given, bool | int | float | str):
            return given
        if isinstance(given, Tensor):
            return self._tensor(given)
        kind = NAMES.get(type(given))
        if kind is not None:
            fields = {name: self.value(value) for name, value in _fields(given).items()}
            return {"is": kind, **fields}
        if isinstance(given, Mapping):
            return {"map": [[str(key), self.value(value)] for key, value in given.items()]}
        if isinstance(given, Sequence):
            return {"list": [self.value(each) for each in given]}
        raise UnsupportedError(
            "file.kind",
            f"a file can hold {', '.join(sorted(kind.__name__ for kind in NAMES))}; got "
            f"{type(given).__name__}.",
        )

    def _tensor(self, tensor: Tensor) -> dict[str, Any]:
        storage = tensor.untyped_storage()
        where = (storage.data_ptr(), tensor.storage_offset(), tensor.stride(), tensor.dtype)
        known = self._largest.get((*where, tensor.device))
        if known is None or not _goes_into(tensor, known[1]):
            if known is not None and not _goes_into(known[1], tensor):
                # Neither is part of the other: an entry of its own.
                where = (*where, tuple(tensor.shape))
                known = self._largest.get((*where, tensor.device))
            name = known[0] if known else str(len(self._largest))
            self._largest[(*where, tensor.device)] = known = (name, tensor)
        return {"tensor": known[0], "shape": list(tensor.shape)}


def _goes_into(small: Tensor, large: Tensor) -> bool:
    return all(a <= b for a, b in zip(small.shape, large.shape, strict=True))


def _fields(given: Any) -> dict[str, Any]:
    """What an object of a known kind is made of."""
    if isinstance(given, AttentionMatrix):
        problem = given.problem
        of_user = {name: problem.restore(getattr(problem, name)) for name in ("query", "key")}
        return {name: of_user.get(name, getattr(problem, name)) for name in OF_MATRIX}
    if isinstance(given, tuple):
        return given._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    return {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}


def _value(given: Any, tensors: Mapping[str, Tensor]) -> Any:
    if given is None or isinstance(given, bool | int | float | str):
        return given
    if isinstance(given, dict):
        if given.keys() == {"tensor", "shape"}:
            return _read_tensor(given["tensor"], given["shape"], tensors)
        if given.keys() == {"list"} and isinstance(given["list"], list):
            return [_value(each, tensors) for each in given["list"]]
        if given.keys() == {"map"} and isinstance(given["map"], list):
            return {str(key): _value(each, tensors) for key, each in given["map"]}
        if "is" in given:
            return _object(given, tensors)
    raise FileError("file.content", f"the header holds something unknown: {given!r:.80}")


def _read_tensor(name: Any, shape: Any, tensors: Mapping[str, Tensor]) -> Tensor:
    tensor = tensors.get(name)
    if tensor is None:
        raise FileError(
            "file.content", f"the header speaks of a tensor {name!r} that is not there."
        )
    sizes = tuple(tensor.shape)
    fits = isinstance(shape, list) and len(shape) == len(sizes)
    if not fits or not all(
        type(a) is int and 0 <= a <= b for a, b in zip(shape, sizes, strict=True)
    ):
        raise FileError(
            "file.content",
            f"tensor {name!r} must have at least the shape {shape}; it has {list(sizes)}.",
        )
    return tensor[tuple(slice(0, size) for size in shape)]


def _object(given: dict[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    name = given["is"]
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise FileError("file.content", f"there is no kind {name!r}; known are {', '.join(KINDS)}.")
    fields = {key: _value(value, tensors) for key, value in given.items() if key != "is"}
    known = _names(kind)
    if fields.keys() != set(known):
        raise FileError(
            "file.content",
            f"a {name} has the fields {', '.join(known) or 'none'}; the file gives "
            f"{', '.join(fields) or 'none'}.",
        )
    try:
        made = kind(**fields)
        if isinstance(made, Summary):
            _check_sizes(made)
    except FileError:
        raise
    except (ClearheadError, TypeError, ValueError, AttributeError) as error:
        raise FileError("file.content", f"a {name} of the file cannot be: {error}") from error
    return made


def _names(kind: Any) -> tuple[str, ...]:
    if kind is AttentionMatrix:
        return OF_MATRIX
    if issubclass(kind, tuple):
        return kind._fields  # pyright: ignore[reportAttributeAccessIssue]
    return tuple(field.name for field in dataclasses.fields(kind))


def _check_sizes(summary: Summary) -> None:
    """Refuse a summary whose tensors are not of one and the same matrix."""
    rows = summary.entropy.shape
    leading = rows[:-1]
    for name in ("logsumexp", "max", "distance", "first", "previous"):
        _check_shape(name, getattr(summary, name), rows)
    kv_len = summary.received.shape[-1:]
    batch = leading[: max(0, len(leading) - 1)]
    if summary.received.shape[:-1] != leading:
        # Heads in groups: fewer of them, but in the same batch.
        _check_shape("received", summary.received, (*batch, *summary.received.shape[-2:]))
    if summary.top_k is not None:
        k = summary.top_k.weights.shape[-1:]
        _check_shape("top_k.weights", summary.top_k.weights, (*rows, *k))
        _check_shape("top_k.keys", summary.top_k.keys, (*rows, *k))
        if summary.top_k.keys.numel() and int(summary.top_k.keys.max()) >= kv_len[0]:
            raise FileError("file.content", f"top_k.keys must be below kv_len={kv_len[0]}.")
    for name in ("context", "mass", "pooled"):
        tensor = getattr(summary, name)
        if tensor is None:
            continue
        want = (
            (*leading, *tensor.shape[-2:])
            if name == "pooled"
            else (*rows, *tensor.shape[len(rows) :])
        )
        _check_shape(name, tensor, want)


def _check_shape(name: str, tensor: Tensor, shape: Sequence[int]) -> None:
    if not isinstance(tensor, Tensor) or tensor.shape != torch.Size(shape):
        found = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise FileError("file.content", f"{name} must have shape {list(shape)}; it has {found}.")
