"""What was seen, as a file: safetensors, with a header of JSON that says what the tensors are.

The header stands in the metadata of the file under the key `clearhead`:

    {"version": 1, "content": …}

and the content is built of JSON's own values, of `{"tensor": name, "shape": […]}` for a tensor, of
`{"list": […]}`, and of `{"is": kind, …}` for an object of a known kind with all of its fields.
A tensor of the file that is larger than the shape is meant up to that shape: what grows, such as
the keys of a cache, is written once. Nothing else is read: no code, and no kind that is not known.

A file is of the lowest version that has all that is in it: whoever reads that one can read it, and
whoever cannot says so.
"""

import dataclasses
import errno
import json
import os
import reprlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import torch
from torch import Tensor

from clearhead.attention.biases import Alibi, DenseBias, Relative
from clearhead.attention.problem import Problem
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
from clearhead.matrix.head_numbers import Roles
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.summary import Summary, TopK

VERSIONS = (1, 2)
"""In version 2 there may be the tokens beside what was seen."""

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

UNFIT = (
    ClearheadError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What fails in different ways where a file says what cannot be."""

OF_MATRIX = ("query", "key", "mask", "bias", "scale", "softcap", "sinks")


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
    pack = _Pack()
    header = json.dumps({"version": version, "content": pack.value(content)})
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
            Whatever is in a file, there is no other error.
    """
    _safetensors()
    from safetensors import SafetensorError, safe_open

    place = Path(path).expanduser()
    if place.exists() and not place.is_file():  # a pipe would be waited for
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
        return _value(header["content"], tensors)
    except FileError as error:
        raise FileError(error.code, f"{place}: {error.message}") from error
    except RecursionError as error:
        raise FileError("file.content", f"{place}: the header is nested too deeply.") from error


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
            pairs = given["map"]
            if all(isinstance(each, list) and len(each) == 2 for each in pairs):
                return {str(key): _value(each, tensors) for key, each in pairs}
        if "is" in given:
            return _object(given, tensors)
    raise FileError("file.content", f"the header holds something unknown: {given!r:.80}")


def _read_tensor(name: Any, shape: Any, tensors: Mapping[str, Tensor]) -> Tensor:
    tensor = tensors.get(name) if isinstance(name, str) else None
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
    for key, expected in _types(kind).items():
        if not _is_of(fields[key], expected):
            raise FileError(
                "file.content",
                f"{key} of a {name} must be {_in_words(expected)}; the file gives "
                f"{type(fields[key]).__name__}.",
            )
    try:
        made = kind(**fields)
        if isinstance(made, Summary):
            _check_sizes(made)
        if isinstance(made, AttentionMatrix):
            _try_out(made.problem)
    except FileError:
        raise
    except UNFIT as error:
        raise FileError("file.content", f"a {name} of the file cannot be: {error}") from error
    return made


def _types(kind: Any) -> dict[str, Any]:
    """What each field is declared as. A matrix looks at its arguments itself."""
    if kind is AttentionMatrix:
        return {}
    if issubclass(kind, tuple):
        return kind.__annotations__
    return {field.name: field.type for field in dataclasses.fields(kind)}


def _is_of(value: Any, expected: Any) -> bool:
    if get_origin(expected) is Literal:
        return isinstance(value, str) and value in get_args(expected)
    allowed = get_args(expected) or (expected,)
    return type(value) in allowed or (not isinstance(value, bool) and isinstance(value, allowed))


def _in_words(expected: Any) -> str:
    if get_origin(expected) is Literal:
        return " or ".join(map(repr, get_args(expected)))
    allowed = get_args(expected) or (expected,)
    return " or ".join("None" if each is type(None) else each.__name__ for each in allowed)


def _try_out(problem: Problem) -> None:
    """Ask a mask for its first pair and for its runs, which fails if it holds other numbers than
    it should."""
    if problem.mask is None:
        return
    sizes = problem.query_len, problem.kv_len
    if min(sizes) and problem.batch:
        visible = problem.visible(slice(0, 1), slice(0, 1))
        if visible is None or visible.dtype != torch.bool:
            raise FileError("file.content", f"{problem.mask.describe()} holds what is no bool.")
    problem.mask.spans(*sizes, problem.device, {})


def _names(kind: Any) -> tuple[str, ...]:
    if kind is AttentionMatrix:
        return OF_MATRIX
    if issubclass(kind, tuple):
        return kind._fields  # pyright: ignore[reportAttributeAccessIssue]
    return tuple(field.name for field in dataclasses.fields(kind))


def _check_sizes(summary: Summary) -> None:
    """Refuse a summary whose tensors are not of one and the same matrix."""
    rows = summary.entropy.shape
    if not 1 <= len(rows) <= 3:
        raise FileError("file.content", f"entropy must have 1 to 3 dimensions; it has {len(rows)}.")
    leading = rows[:-1]
    for name in ("logsumexp", "entropy", "max", "distance", "first", "previous"):
        _check_tensor(name, getattr(summary, name), rows)
    kv_len = summary.received.shape[-1:]
    batch = leading[: max(0, len(leading) - 1)]
    if summary.received.shape[:-1] != leading:
        # Heads in groups: fewer of them, but in the same batch.
        _check_tensor("received", summary.received, (*batch, *summary.received.shape[-2:]))
    if summary.top_k is not None:
        weights, keys = summary.top_k
        k = weights.shape[-1:]
        _check_tensor("top_k.weights", weights, (*rows, *k))
        _check_tensor("top_k.keys", keys, (*rows, *k), torch.int64)
        if keys.numel() and not -1 <= int(keys.min()) <= int(keys.max()) < kv_len[0]:
            raise FileError(
                "file.content", f"top_k.keys must be from -1 on and below kv_len={kv_len[0]}."
            )
    for name in ("context", "mass", "pooled"):
        tensor = getattr(summary, name)
        if tensor is None:
            continue
        want = (
            (*leading, *tensor.shape[-2:])
            if name == "pooled"
            else (*rows, *tensor.shape[len(rows) :])
        )
        _check_tensor(name, tensor, want)
    if summary.roles is not None:
        for field in dataclasses.fields(Roles):
            score = getattr(summary.roles, field.name)
            if score is not None:
                _check_tensor(f"roles.{field.name}", score, leading)
    if summary.real is not None:
        _check_tensor("real", summary.real, (*(batch or (1,)), rows[-1]), torch.bool)


def _check_tensor(
    name: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None
) -> None:
    """Refuse another shape, and another dtype; None stands for any of numbers with a point."""
    if tensor.shape != torch.Size(shape):
        raise FileError(
            "file.content", f"{name} must have shape {list(shape)}; it has {list(tensor.shape)}."
        )
    if tensor.dtype != dtype if dtype is not None else not tensor.dtype.is_floating_point:
        kind = "a floating dtype" if dtype is None else f"{dtype}"
        raise FileError("file.content", f"{name} must be of {kind}; it is of {tensor.dtype}.")
