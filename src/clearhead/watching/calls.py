"""The calls of one module, stitched to one matrix where they are its rows."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from clearhead._common.text import shown
from clearhead.attention.problem import Problem
from clearhead.masks.algebra import And
from clearhead.masks.base import Mask
from clearhead.masks.causal import Causal, causal
from clearhead.masks.padding import PaddedTo, Valid, padding
from clearhead.matrix.matrix import AttentionMatrix, matrix_of
from clearhead.matrix.summary import Summary

Kept = TypeVar("Kept")
"""`AttentionMatrix`, `Summary`, or the result of a function."""


class Keys:
    """Keys that grow, as in a KV cache: earlier calls see the beginning of them."""

    def __init__(self, key: Tensor) -> None:
        self._room = key.clone()
        self.length = key.shape[2]

    def first(self, count: int) -> Tensor:
        """Return the first keys, (batch, num_kv_heads, count, head_dim)."""
        return self._room[:, :, :count]

    def grow(self, key: Tensor) -> bool:
        """Append the keys that `key` has beyond these; returns False if it begins with others."""
        count, own = key.shape[2], self.first(self.length)
        if count < self.length or key[:, :, :0].shape != own[:, :, :0].shape:
            return False
        if (key.dtype, key.device) != (own.dtype, own.device):
            return False
        if key.is_meta or not torch.equal(key[:, :, : self.length], own):
            return False
        if count > self._room.shape[2]:
            # Twice as many, so that a thousand steps copy a few times only.
            room = key.new_empty(*key.shape[:2], 2 * count, key.shape[3])
            room[:, :, : self.length] = own
            self._room = room
        self._room[:, :, self.length : count] = key[:, :, self.length :]
        self.length = max(self.length, count)
        return True

    def trim(self) -> None:
        """Free the room that was not needed."""
        if self._room.shape[2] > self.length:
            self._room = self.first(self.length).clone(memory_format=torch.contiguous_format)


@dataclass
class Call:
    """One call of a module, whose key is the beginning of keys that other calls share."""

    problem: Problem
    """The call without its keys: the key in it has no tokens."""
    keys: Keys
    kv_len: int
    made: AttentionMatrix | None = None

    @property
    def query_len(self) -> int:
        return self.problem.query_len

    def matrix(self) -> AttentionMatrix:
        if self.made is None:
            key = self.keys.first(self.kv_len)
            self.made = matrix_of(self.problem.replace(key=key, value=key))
        return self.made


class Calls(ABC, Generic[Kept]):
    """The calls of one module, and the one that they are parts of, if they are."""

    @abstractmethod
    def add(self, call: Any) -> None:
        """Keep a call."""

    @abstractmethod
    def all(self) -> tuple[Kept, ...]:
        """Return every call, in order."""

    @abstractmethod
    def several(self) -> str:
        """Return why the calls are not parts of one object, in words; "" where they are."""

    @abstractmethod
    def whole(self) -> Kept:
        """Return the one object that the calls are parts of, where there is one."""

    def close(self) -> None:
        """Free the room for more calls."""

    def describe(self) -> str:
        """Return the one object, or the first call and why there is none, in a line."""
        reason, calls = self.several(), self.all()
        if reason:
            return f"{_line(calls[0])}  and {len(calls) - 1} more ({reason})"
        return _line(self.whole()) + (f", {len(calls)} calls" if len(calls) > 1 else "")

    def parts(self) -> tuple[Kept, ...]:
        """Return the whole alone, or every call where there is none."""
        return self.all() if self.several() else (self.whole(),)


class Matrices(Calls[AttentionMatrix]):
    """The calls of one module, as matrices. A call whose key begins with that of the call before
    shares its memory."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._stitched: tuple[int, AttentionMatrix | str] = (0, "")

    def add(self, call: Problem) -> None:
        """Keep a call whose mask and bias are copies."""
        query, key = call.query.detach().clone(), call.key.detach()
        keys = self._calls[-1].keys if self._calls else None
        if keys is None or not keys.grow(key):
            keys = Keys(key)
        none = key[:, :, :0].clone()
        kept = call.replace(query=query, key=none, value=none)
        self._calls.append(Call(kept, keys, key.shape[2]))

    def close(self) -> None:
        for call in self._calls:
            call.keys.trim()

    def all(self) -> tuple[AttentionMatrix, ...]:
        return tuple(call.matrix() for call in self._calls)

    def several(self) -> str:
        stitched = self._stitch()
        return stitched if isinstance(stitched, str) else ""

    def whole(self) -> AttentionMatrix:
        stitched = self._stitch()
        assert not isinstance(stitched, str)
        return stitched

    def _stitch(self) -> AttentionMatrix | str:
        # More calls may have come since.
        if self._stitched[0] != len(self._calls):
            self._stitched = (len(self._calls), stitch(self._calls))
        return self._stitched[1]


class Results(Calls[Kept]):
    """The calls of one module, each turned into a summary or another result; nothing stitches them."""

    def __init__(self) -> None:
        self._calls: list[Kept] = []

    def add(self, call: Kept) -> None:
        self._calls.append(call)

    def all(self) -> tuple[Kept, ...]:
        return tuple(self._calls)

    def several(self) -> str:
        kind = "summary" if isinstance(self._calls[0], Summary) else "result"
        return f"a {kind} is of one call" if len(self._calls) > 1 else ""

    def whole(self) -> Kept:
        return self._calls[0]


def _line(kept: object) -> str:
    """A matrix, a summary or a result in a line; of a tensor its kind and its shape."""
    if isinstance(kept, Tensor):
        return f"{type(kept).__name__} {list(kept.shape)}"
    whole = isinstance(kept, AttentionMatrix | Summary)
    return repr(kept) if whole else " ".join(shown(kept).split())


def stitch(calls: Sequence[Call]) -> AttentionMatrix | str:
    """Return the one matrix that the calls are rows of, or why they are not.

    They are if each has the keys of the call before and one more for each of its queries, and if
    its mask is causal, with the same padding.
    """
    if len(calls) == 1:
        return calls[0].matrix()
    before, valid, length = calls[0], None, max(0, calls[0].kv_len - calls[0].query_len)
    for number, call in enumerate(calls):
        real, reason = _real_keys(call), ""
        if call.kv_len != length + call.query_len:
            reason = f"query_len={call.query_len} and kv_len={call.kv_len}, after {length} keys"
        elif call.keys is not before.keys:
            reason = "keys that do not begin with those of the call before"
        elif call.problem.bias is not None:
            reason = "a bias"
        elif not _alike(call.problem, before.problem):
            reason = "another scale, softcap or sinks than the call before"
        elif real is None:
            reason = "no causal mask, with or without padding"
        elif valid is not None and not _equal(valid, real[:, :length]):
            reason = "other padding than the call before"
        if reason:
            return f"call {number} has {reason}"
        before, valid, length = call, real, call.kv_len
    assert valid is not None
    mask = causal()
    if not valid.all():
        mask = mask & padding(valid if len(valid) > 1 else valid[0])
    key = before.keys.first(length)
    query = torch.cat([call.problem.query for call in calls], dim=2)
    return matrix_of(before.problem.replace(query=query, key=key, value=key, mask=mask))


def _equal(tensor: Tensor, other: Tensor) -> bool:
    return torch.equal(*torch.broadcast_tensors(tensor, other))


def _alike(problem: Problem, other: Problem) -> bool:
    """Return True for problems with equal options, the mask aside."""
    if (problem.scale, problem.softcap) != (other.scale, other.softcap):
        return False
    if problem.sinks is None or other.sinks is None:
        return problem.sinks is other.sinks
    return torch.equal(problem.sinks, other.sinks)


def _real_keys(call: Call) -> Tensor | None:
    """True for the keys that are not padded, (batch or 1, kv_len); None for a mask that is not
    causal."""
    device = call.problem.device
    places = torch.arange(call.kv_len, device=device).view(1, 1, 1, -1)
    valid = torch.ones(1, call.kv_len, dtype=torch.bool, device=device)
    follows = call.query_len == 1  # the last token, which has no future
    for part in _parts(call.problem.mask):
        if isinstance(part, Causal):
            offset = None if part.offset is None else part.offset.value
            if offset is not None and offset != call.kv_len - call.query_len:
                return None
            follows = True
        elif isinstance(part, Valid | PaddedTo):
            seen = part.visible(torch.zeros_like(places), places, call.query_len, call.kv_len)
            valid = valid & seen[:, 0, 0]
        else:
            return None
    return valid if follows else None


def _parts(mask: Mask | None) -> list[Mask]:
    """The masks that are joined by &."""
    if isinstance(mask, And):
        return _parts(mask.left) + _parts(mask.right)
    return [] if mask is None else [mask]
