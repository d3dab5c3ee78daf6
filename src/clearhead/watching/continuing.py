"""The rule that decides whether a call of a module continues the call before it.

A call of self-attention continues the call before where its earlier keys, all but those of its own queries, are the
last keys of that call in every row of the batch, as in a KV cache and behind a window. A call of cross-attention
continues the call before where it has the same keys. Keys are compared by their fingerprints.
"""

import torch
from torch import Tensor

from clearhead.attention.problem import Problem

PORTION = 1 << 18
"""The number of entries of keys that are multiplied at a time, unless a head has more."""


class Continuations:
    """The links between the calls of each module, found call by call."""

    def __init__(self) -> None:
        self.prints: dict[str, Tensor] = {}
        """The fingerprints of the keys of the last call of each module, (batch, kv_len)."""

    def of(self, name: str, problem: Problem, value: Tensor | None = None) -> int | None:
        """Return the number of keys of the call before of the same module that come before those of a call.

        None if the call does not continue that one. It does if its keys before its queries (in cross-attention all
        keys) are the last ones of that call. Stores the fingerprints of its keys, and of the value if given, for the
        next call. Meta tensors have no link.

        Example:
            >>> from clearhead.attention.problem import make_problem
            >>> key, links = torch.randn(2, 1, 5, 3), Continuations()
            >>> links.of("", make_problem(key[:, :, :4], key[:, :, :4], key[:, :, :4])) is None
            True
            >>> links.of("", make_problem(key[:, :, 4:], key[:, :, 1:], key[:, :, 1:]))
            1
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
        start = known.shape[1] - count
        return start if torch.equal(known[:, start:], prints[:, :count]) else None


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
    # Products are as large as keys.
    heads = max(1, PORTION // max(1, key[:, 0].numel()))
    for some, factor in zip(key.detach().split(heads, 1), factors.split(heads), strict=True):
        found += (some.contiguous().view(wide) * factor[:, None]).sum(dim=(1, 3))
    return found
