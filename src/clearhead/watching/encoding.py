"""Objects as JSON and tensors, and back, without running code; unknown kinds are refused.

JSON's own values stand for themselves, `{"tensor": name, "shape": […]}` for a tensor, `{"list": […]}`
and `{"map": {key: value, …}}` for several values, and `{"is": kind, …}` for an object of a known
kind with all of its fields that are not None. A tensor of the file that is larger than the shape is meant up to that
shape: what grows, such as the keys of a KV cache, is written once.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import torch
from torch import Tensor

from clearhead._common.kinds import Filed
from clearhead._text import shown
from clearhead.attention.problem import Problem
from clearhead.errors import FileError, UnsupportedError
from clearhead.masks.causal import Causal
from clearhead.matrix.head_numbers import RoleCounts, Roles, numbers_of_heads
from clearhead.matrix.head_results import Contexts
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.summary import Summary, TopK
from clearhead.matrix.totals import Totals
from clearhead.sharding.matrix_part import MatrixPart
from clearhead.watching.missing import Missing

KEPT: dict[str, type] = {
    "matrix": AttentionMatrix, "summary": Summary, "total": Totals, "contexts": Contexts,
}  # fmt: skip
"""The kind of a call in a file, by what a watch keeps."""


@dataclass(eq=False)
class Record:
    """The record of a watch, as a file holds it.

    Attributes:
        model: the name of its class.
        keep: what was kept of each call.
        calls: those of each module.
        runs: the number of runs of the model, if modules attended several times in each.
        numbers: those of the modules in the model, if not all were kept.
        missing: the parts that were not seen.
        tokens, source_tokens: the texts.
    """

    model: str
    keep: Literal["matrix", "summary", "total", "contexts"]
    calls: dict[str, Any]
    runs: int | None = None
    numbers: list[int] | None = None
    missing: list[Missing] | None = None
    tokens: list[str] | list[int] | None = None
    source_tokens: list[str] | list[int] | None = None

    def check(self) -> None:
        """Check that the fields of a record from a file are consistent.

        Raises:
            FileError: code `file.content`.
        """
        kind = KEPT[self.keep]
        for name, calls in self.calls.items():
            if not _is_of(calls, list[kind]) or not calls:
                raise _content(f"it must hold a {kind.__name__} for every call of {shown(name)}.")
            if any(isinstance(call, Summary) and call.roles is None for call in calls):
                raise _content(f"it has a summary of {shown(name)} without roles.")
        if self.numbers is not None and not _are_numbers(self.numbers, len(self.calls)):
            raise _content(f"it must have a number for each layer; it gives {shown(self.numbers)}.")
        if not 0 <= (self.runs or 0) < 1 << 63:
            raise _content(f"runs must be a count; the file gives {shown(self.runs)}.")


KINDS: dict[str, type] = {
    **Filed.KINDS,
    "contexts": Contexts,
    "matrix": AttentionMatrix,
    "missing": Missing,
    "record": Record,
    "role_counts": RoleCounts,
    "roles": Roles,
    "summary": Summary,
    "top_k": TopK,
    "totals": Totals,
}
"""Everything that a file can hold; masks and biases say themselves what they are called."""

NAMES = {kind: name for name, kind in KINDS.items()}

OF_MATRIX: dict[str, Any] = {
    "query": Tensor, "key": Tensor, "mask": Any, "bias": Any, "scale": float, "softcap": Any,
    "sinks": Any, "cross": bool, "real_queries": Any, "value": Any, "context": Any, "heads": Any,
}  # fmt: skip
"""The fields of a matrix, with the types of those that are never None; the matrix checks the others."""

PLAIN = (bool, int, float, str, type(None))


class Encoder:
    """Encodes objects as JSON and collects their tensors, without storing shared memory twice.

    Example:
        >>> encoder = Encoder()
        >>> encoder.encode({"rows": torch.zeros(2, 3), "scale": None})
        {'map': {'rows': {'tensor': '0', 'shape': [2, 3]}, 'scale': None}}
        >>> decode(encoder.encode([ch.causal()]), {})[0].describe()
        'causal()'
    """

    def __init__(self) -> None:
        self._largest: dict[tuple[Any, ...], tuple[str, Tensor]] = {}

    def tensors(self) -> dict[str, Tensor]:
        """Return the collected tensors by their names, "0" and on; the tensors themselves, not copies."""
        return dict(self._largest.values())

    def encode(self, value: object) -> Any:
        """Return a value as JSON, and collect its tensors; sequences become lists, fields that are None are left out.

        Raises:
            UnsupportedError: code `file.kind`, for an object of another kind.
        """
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, Tensor):
            return self._tensor(value)
        kind = NAMES.get(type(value))
        if kind is not None:
            fields = {name: each for name, each in _values(value).items() if each is not None}
            return {"is": kind, **{name: self.encode(each) for name, each in fields.items()}}
        if isinstance(value, Mapping):
            return {"map": {str(key): self.encode(each) for key, each in value.items()}}
        if isinstance(value, Sequence):
            return {"list": [self.encode(each) for each in value]}
        raise UnsupportedError(
            "file.kind",
            f"a file can hold {', '.join(sorted(kind.__name__ for kind in NAMES))}; got "
            f"{type(value).__name__}.",
        )

    def _tensor(self, tensor: Tensor) -> dict[str, Any]:
        """Return the JSON of a tensor, {"tensor": name, "shape": sizes}, and collect it.

        Views of one start, with the same strides and dtype, may share an entry.
        """
        where: tuple[Any, ...] = (
            tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.stride(),
            tensor.dtype, tensor.device,
        )  # fmt: skip
        name, largest = self._largest.get(where, (str(len(self._largest)), tensor))
        if not _goes_into(tensor, largest) and not _goes_into(largest, tensor):
            # Neither is part of the other: an entry of its own.
            where = (*where, tuple(tensor.shape))
            name, largest = self._largest.get(where, (str(len(self._largest)), tensor))
        self._largest[where] = (name, largest if _goes_into(tensor, largest) else tensor)
        return {"tensor": name, "shape": list(tensor.shape)}


def _goes_into(small: Tensor, large: Tensor) -> bool:
    """Return True if no dimension of `small` is larger than that of `large`, which has as many."""
    return all(a <= b for a, b in zip(small.shape, large.shape, strict=True))


def _fields(kind: Any) -> Mapping[str, Any]:
    """Return the fields of a class that is written to files, with their types."""
    if kind is AttentionMatrix:
        return OF_MATRIX
    if dataclasses.is_dataclass(kind):
        return {field.name: field.type for field in dataclasses.fields(kind)}
    return kind.__annotations__


def _values(thing: Any) -> dict[str, Any]:
    """Return the fields of an object by name, as written to a file; of a matrix also those of its problem."""
    fields = _fields(type(thing))
    if not isinstance(thing, AttentionMatrix):
        return {name: getattr(thing, name) for name in fields}
    problem = thing.problem
    own: dict[str, Any] = {"value": thing.value, "context": thing.context}
    own["heads"] = None if thing.heads is None else numbers_of_heads(thing)
    every = {name: getattr(problem, name) for name in fields if name not in own}
    return every | own | {name: problem.restore(every[name]) for name in ("query", "key")}


def decode(json: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value that a JSON value and its tensors encode.

    Args:
        json: what `Encoder.encode` returned.
        tensors: by their names.

    Raises:
        FileError: code `file.content`, for anything unknown, and for sizes or types that cannot be.
    """
    if isinstance(json, PLAIN):
        return json
    if isinstance(json, dict):
        if json.keys() == {"tensor", "shape"}:
            return _decode_tensor(json["tensor"], json["shape"], tensors)
        if json.keys() == {"list"} and isinstance(json["list"], list):
            return [decode(each, tensors) for each in json["list"]]
        if json.keys() == {"map"} and isinstance(json["map"], dict):
            return {key: decode(each, tensors) for key, each in json["map"].items()}
        if "is" in json:
            return _decode_object(json, tensors)
    raise _content(f"the header holds something unknown: {shown(json)}")


def _decode_tensor(name: Any, shape: Any, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the tensor of this name, cut to its shape, a view.

    FileError if it is missing, has other dimensions, or is smaller than the shape.
    """
    tensor = tensors.get(name) if isinstance(name, str) else None
    if tensor is None:
        raise _content(f"the header speaks of a tensor {shown(name)} that is not there.")
    fits = _is_of(shape, list[int]) and len(shape) == tensor.ndim
    if not fits or not all(0 <= a <= b for a, b in zip(shape, tensor.shape, strict=True)):
        held = list(tensor.shape)
        raise _content(f"tensor {shown(name)} must have at least the shape {shape}; it has {held}.")
    return tensor[tuple(slice(0, size) for size in shape)]


def _decode_object(json: dict[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    """Return the object that a JSON object describes; missing fields are None.

    Raises FileError, code `file.content`, for an unknown kind or field, a wrong type, or an object that cannot be.
    """
    name = json["is"]
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise _content(f"there is no kind {shown(name)}; known are {', '.join(sorted(KINDS))}.")
    values = {key: decode(value, tensors) for key, value in json.items() if key != "is"}
    fields = _fields(kind)
    if values.keys() - fields.keys():
        known, given = (", ".join(each) or "none" for each in (fields, values))
        raise _content(f"a {name} has the fields {known}; the file gives {given}.")
    values: dict[str, Any] = dict.fromkeys(fields) | values
    heads = values.get("heads")
    if isinstance(heads, list):
        values["heads"] = tuple(heads)
    for key, expected in fields.items():
        if not _is_of(values[key], expected):
            given = type(values[key]).__name__
            raise _content(f"{key} of a {name} must be {_name(expected)}; the file gives {given}.")
    try:
        own = {n: values.pop(n) for n in ("context", "heads")} if kind is AttentionMatrix else {}
        made = kind(**values)
        if heads is not None and not _are_numbers(heads, made.num_heads):
            raise _content(f"it must have a number for each head; it gives {shown(heads)}.")
        if isinstance(made, Record):
            made.check()
        elif isinstance(made, AttentionMatrix):
            _check_mask(made.problem)
            if heads is not None:
                part = MatrixPart(heads=torch.tensor(heads, device=made.problem.device))
                made = AttentionMatrix._of(made.problem.replace(part=part), made._value)
            made._context = own["context"]
        elif kind in KEPT.values():
            repr(made)  # which reads its sizes
    except FileError:
        raise
    except Exception as error:  # a mask of numbers that cannot be fails in ways of its own
        raise _content(f"a {name} of the file cannot be: {error}") from error
    return made


def _is_of(value: Any, expected: Any) -> bool:
    """Return True if a value is of the expected type: Any, a Literal of strings, list, dict, union or class.

    A bool is no int. The values of a dict are not checked.
    """
    origin, allowed = get_origin(expected), get_args(expected)
    if expected is Any:
        return True
    if origin is Literal:
        return isinstance(value, str) and value in allowed
    if origin in (list, dict):
        listed = isinstance(value, origin)
        return listed and (origin is dict or all(_is_of(each, allowed[0]) for each in value))
    if origin is tuple:
        return isinstance(value, tuple)
    if allowed:
        return any(_is_of(value, each) for each in allowed)
    # True is an int to Python.
    return isinstance(value, expected) and (expected is bool or not isinstance(value, bool))


def _name(expected: Any) -> str:
    """Return the name of a type for a message; other annotations as text."""
    return expected.__name__ if isinstance(expected, type) else str(expected)


def _are_numbers(given: Any, count: int) -> bool:
    """Return True if `given` is a list of `count` distinct numbers, each 0 to 2⁶³ − 1."""
    whole = _is_of(given, list[int]) and all(0 <= each < 1 << 63 for each in given)
    return whole and len(set(given)) == len(given) == count


def _content(message: str) -> FileError:
    """Return the FileError, code `file.content`, with this message."""
    return FileError("file.content", message)


def _check_mask(problem: Problem) -> None:
    """Check the numbers in a mask from a file, by evaluating its first pair, if there is one, and its spans.

    FileError if a pair is no bool. Errors of the mask itself propagate. A problem without a mask or with a plain causal
    one is not checked.
    """
    mask = problem.mask
    if mask is None or (isinstance(mask, Causal) and mask.offset is None):  # it has no numbers
        return
    if problem.query_len and problem.kv_len and problem.batch:
        visible = problem.visible(slice(0, 1), slice(0, 1))
        if visible is None or visible.dtype != torch.bool:
            raise _content(f"{mask.describe()} holds what is no bool.")
    mask.spans(problem.extent)
