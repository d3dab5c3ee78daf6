"""The rule that decides whether a call of a module continues the call before it.

A call of self-attention continues the call before where its earlier keys, all but those of its own queries, are keys
of that call: the last ones, as in a KV cache and behind a window, or the first ones, where a cache was cut. A beam
search takes rows of the call before in any order, so rows are compared one by one. A call of cross-attention continues
the call before where it has the same keys. Keys are compared by their fingerprints.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.attention.problem import Problem


class Continuation(NamedTuple):
    """The link of a call to the call before it: the keys that both have.

    Attributes:
        rows: the sample of the call before that each sample continues, int64, (batch,).
        start: the place in the call before of the first key of this call.
        shared: the number of keys that both have.
        is_last: True if these are the last keys of the call before.
    """

    rows: Tensor
    start: int
    shared: int
    is_last: bool

    def past(self, of_before: Tensor) -> Tensor:
        """Return the part of a tensor of the call before, (batch, keys), that belongs to the shared keys."""
        return of_before[self.rows, self.start : self.start + self.shared]


class Continuations:
    """The links between the calls of each module, found call by call."""

    def __init__(self) -> None:
        self.prints: dict[str, Tensor] = {}
        """The fingerprints of the keys of the last call of each module, (batch, kv_len)."""

    def of(self, name: str, problem: Problem, value: Tensor | None = None) -> Continuation | None:
        """Return the link of a call to the call before of the same module; None if it does not continue it.

        Example:
            >>> from clearhead.attention.problem import make_problem
            >>> key, links = torch.randn(2, 1, 5, 3), Continuations()
            >>> links.of("", make_problem(key[:, :, :4], key[:, :, :4], key[:, :, :4])) is None
            True
            >>> link = links.of("", make_problem(key[:, :, 4:], key, key))
            >>> link.rows.tolist(), link.start, link.shared
            ([0, 1], 0, 4)
        """
        known = self.prints.pop(name, None)
        if problem.key.is_meta:
            return None
        prints = fingerprints(problem.key)
        if value is not None:
            prints = prints + 3 * fingerprints(value)
        self.prints[name] = prints
        count = problem.kv_len - (0 if problem.cross else problem.query_len)
        if known is None or known.device != prints.device or not 0 < count <= known.shape[1]:
            return None
        last = known.shape[1] - count
        for start in dict.fromkeys((last, 0)):
            rows = _rows_of(known[:, start : start + count], prints[:, :count])
            if rows is not None:
                return Continuation(rows, start, count, start == last)
        return None


def _rows_of(known: Tensor, again: Tensor) -> Tensor | None:
    """Return, for each row of `again`, the index of an equal row of `known`; None if a row has no equal."""
    own = torch.arange(len(again), device=again.device)
    if torch.equal(known, again):
        return own
    same = (again[:, None] == known).all(dim=-1)
    if not bool(same.any(dim=1).all()):
        return None
    rows = same.to(torch.uint8).argmax(dim=1)
    return torch.where(same.diagonal(), own, rows) if len(known) == len(again) else rows


def fingerprints(key: Tensor) -> Tensor:
    """Return a checksum of each key, (batch, kv_len), int64; different keys have different ones, up to collisions.

    It is a weighted sum of the key's bits read as integers. Integer sums do not depend on the order of summation.

    Example:
        >>> fingerprints(torch.tensor([[[[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]]]))[0, ::2]
        tensor([0, 0])
    """
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    size = key.shape[3] * key.dtype.itemsize
    wide = torch.int64 if size % 8 == 0 else kinds[key.dtype.itemsize]
    count = size // wide.itemsize
    places = torch.arange(1, key.shape[1] * count + 1, device=key.device)
    factors = (places * 0x9E3779B97F4A7C1 | 1).view(key.shape[1], count)
    found = key.new_zeros(key.shape[0], key.shape[2], dtype=torch.int64)
    for head, factor in zip(
        key.detach().unbind(1), factors, strict=True
    ):  # products are as large as keys
        found += (head.contiguous().view(wide) * factor).sum(dim=-1)
    return found
