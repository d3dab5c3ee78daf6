"""What is kept of a call of attention: copies in O(tokens) memory, or a summary.

A model writes to its masks and caches after the call, so nothing of it is kept itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from clearhead.attention.biases import Alibi, Bias, DenseBias, Relative
from clearhead.attention.problem import Problem
from clearhead.errors import WatchError
from clearhead.masks.base import And, Mask, Not, Or
from clearhead.masks.causal import Causal, causal
from clearhead.masks.coerce import and_masks
from clearhead.masks.dense import Dense, dense
from clearhead.masks.full import Full
from clearhead.masks.padding import PaddedTo, Valid, padding
from clearhead.matrix.matrix import AttentionMatrix, matrix_of
from clearhead.matrix.roles import summary_with_roles
from clearhead.matrix.summary import Summary
from clearhead.watching.mask_recovery import hides_only, read_mask

TOP_K = 8
POOL = 64
"""How many of the largest weights a summary keeps of each query, and how many rows and columns of
the map, where there are as many keys and queries."""

RECENT = 4
"""How many masks are remembered while a model runs: layers of different kinds take turns."""

Read = TypeVar("Read", Mask, Tensor)


class Copies:
    """Copies of the masks and biases of a model. Layers that share one share its copy."""

    def __init__(self) -> None:
        self._masks: list[tuple[Tensor, Mask]] = []
        self._biases: list[tuple[Tensor, Tensor]] = []

    def of(self, problem: Problem) -> Problem:
        """The problem with copies in the place of what the model may write to, query and key
        excepted. A mask or bias that says no more than a description becomes one."""
        mask, bias, sinks = problem.mask, problem.bias, problem.sinks
        if isinstance(bias, DenseBias) and hides_only(bias.tensor):
            shape = (*bias.tensor.shape[:3], problem.kv_len)
            mask, bias = and_masks(mask, dense((bias.tensor == 0).expand(shape))), None
        mask = None if mask is None else self._mask(mask)
        return problem._replace(
            mask=None if isinstance(mask, Full) else mask,
            bias=None if bias is None else self._bias(bias),
            sinks=None if sinks is None else sinks.detach().clone(),
        )

    def clear(self) -> None:
        """Forget what was remembered for the layers to come."""
        self._masks.clear()
        self._biases.clear()

    def _mask(self, mask: Mask) -> Mask:
        if isinstance(mask, And):
            left, right = self._mask(mask.left), self._mask(mask.right)
            hiding = [each for each in (left, right) if not isinstance(each, Full)]
            return left & right if len(hiding) == 2 else (hiding or [left])[0]
        if isinstance(mask, Or):
            return self._mask(mask.left) | self._mask(mask.right)
        if isinstance(mask, Not):
            return replace(mask, mask=self._mask(mask.mask))
        if isinstance(mask, Dense):
            tensor = _small(mask.tensor)
            return _remembered(self._masks, tensor, _as_mask)
        return mask  # its tensors are its own

    def _bias(self, bias: Bias) -> Bias:
        if isinstance(bias, DenseBias):
            tensor = _small(bias.tensor.detach())
            return DenseBias(_remembered(self._biases, tensor, lambda copy: copy))
        if isinstance(bias, Alibi):
            return replace(bias, slopes=bias.slopes.detach().clone())
        if isinstance(bias, Relative):
            return replace(bias, values=bias.values.detach().clone())
        return bias


def _as_mask(tensor: Tensor) -> Mask:
    described = read_mask(tensor)
    return dense(tensor) if described is None else described


def _remembered(
    known: list[tuple[Tensor, Read]], tensor: Tensor, read: Callable[[Tensor], Read]
) -> Read:
    """What a copy of the tensor was read as, which is done once for equal tensors."""
    for copy, reading in known:
        alike = (copy.dtype, copy.device) == (tensor.dtype, tensor.device)
        if alike and not tensor.is_meta and torch.equal(copy, tensor):
            return reading
    copy = tensor.clone()
    known.insert(0, (copy, read(copy)))
    del known[RECENT:]
    return known[0][1]


def _small(tensor: Tensor) -> Tensor:
    """(batch, num_heads, query_len, kv_len) with 1 where a size came about by expanding."""
    for axis in range(3):
        if tensor.shape[axis] > 1 and tensor.stride(axis) == 0:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def key_heads(heads: Sequence[int], num_heads: int, num_kv_heads: int, name: str) -> list[int]:
    """The key heads that go with some query heads: each once, where each is used by as many of
    them, one after the other; else one for each.

    Raises:
        WatchError: code `watch.heads`, for a head that the module of this name does not have.

    Example:
        >>> key_heads([0, 1, 4, 5], 8, 2, "attention"), key_heads([0, 1, 4], 8, 2, "attention")
        ([0, 1], [0, 0, 1])
    """
    if max(heads) >= num_heads:
        raise WatchError(
            "watch.heads",
            f"heads={list(heads)} were asked for; {name or 'the model'} has num_heads={num_heads}.",
        )
    group = num_heads // num_kv_heads
    every = [head // group for head in heads]
    once = list(dict.fromkeys(every))
    return (
        once if [head for head in once for _ in range(len(every) // len(once))] == every else every
    )


def of_heads(problem: Problem, heads: Sequence[int], name: str) -> Problem:
    """The problem of some query heads only, with the key heads that they use.

    Raises:
        WatchError: code `watch.heads`, for a head that the module of this name does not have.
    """
    used = key_heads(heads, problem.num_heads, problem.num_kv_heads, name)
    picked = torch.tensor(heads, device=problem.device)
    key = problem.key[:, torch.tensor(used, device=problem.device)]
    return problem._replace(
        query=problem.query[:, picked],
        key=key,
        value=key,
        mask=_mask_of_heads(problem, picked),
        bias=_bias_of_heads(problem, picked),
        sinks=None if problem.sinks is None else problem.sinks[picked],
    )


def _mask_of_heads(problem: Problem, heads: Tensor) -> Mask | None:
    # Only a tensor tells heads apart, so that the tensor of a part of them is no larger.
    if problem.mask is None or problem.mask.heads is None:
        return problem.mask
    visible = problem.visible()
    assert visible is not None
    return dense(_small(visible)[:, heads])


def _bias_of_heads(problem: Problem, heads: Tensor) -> Bias | None:
    bias = problem.bias
    if isinstance(bias, Alibi):
        return Alibi(bias.slopes.to(heads.device)[heads], follows=False)
    block = bias.tensor if isinstance(bias, DenseBias) else problem.bias_block()
    if block is None or block.shape[1] == 1:
        return bias
    return DenseBias(block[:, heads])


def summarised(problem: Problem, tokens: Tensor | None) -> Summary:
    """The summary of a call, with the roles of its heads; tokens are (batch, kv_len) ids, if known."""
    matrix = matrix_of(problem)
    query_len, kv_len = problem.query_len, problem.kv_len
    some = min(query_len, kv_len) > 0
    return summary_with_roles(
        matrix,
        tokens,
        top_k=min(TOP_K, kv_len) if some else None,
        pool=(min(POOL, query_len), min(POOL, kv_len)) if some else None,
    )


class Keys:
    """Keys that grow, as those in a cache do: earlier calls look at the beginning of them."""

    def __init__(self, key: Tensor) -> None:
        self._room = key.clone()
        self.length = key.shape[2]

    def first(self, count: int) -> Tensor:
        """The first keys, (batch, num_kv_heads, count, head_dim)."""
        return self._room[:, :, :count]

    def grow(self, key: Tensor) -> bool:
        """Take in the keys that `key` has beyond these; False if it does not begin with these."""
        count, own = key.shape[2], self.first(self.length)
        if count < self.length or (key.dtype, key.device) != (own.dtype, own.device):
            return False
        if key.is_meta or not torch.equal(key[:, :, : self.length], own):
            return False
        if count > self._room.shape[2]:
            # Twice as much, so that a thousand steps copy a few times only.
            room = key.new_empty(*key.shape[:2], 2 * count, key.shape[3])
            room[:, :, : self.length] = own
            self._room = room
        self._room[:, :, self.length : count] = key[:, :, self.length :]
        self.length = max(self.length, count)
        return True

    def trim(self) -> None:
        """Give back the room that was not needed."""
        if self._room.shape[2] > self.length:
            self._room = self.first(self.length).clone(memory_format=torch.contiguous_format)


@dataclass
class Call:
    """One call of a module, whose key is the beginning of keys that it shares with others."""

    problem: Problem
    """Its query, mask and the like; the key in it has no tokens."""
    keys: Keys
    kv_len: int
    made: AttentionMatrix | None = field(default=None)

    @property
    def query_len(self) -> int:
        return self.problem.query_len

    def matrix(self) -> AttentionMatrix:
        if self.made is None:
            key = self.keys.first(self.kv_len)
            self.made = matrix_of(self.problem._replace(key=key, value=key))
        return self.made


class Matrices:
    """The calls of one module, as matrices. A call whose key begins with that of the call before
    shares its memory."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._stitched: tuple[int, AttentionMatrix | None] = (0, None)

    def add(self, problem: Problem) -> None:
        """Keep a call whose mask and bias are copies."""
        query, key = problem.query.detach().clone(), problem.key.detach()
        last = self._calls[-1] if self._calls else None
        alike = last is not None and _sizes(last.keys.first(0)) == _sizes(key)
        keys = last.keys if last is not None and alike and last.keys.grow(key) else Keys(key)
        none = key[:, :, :0].clone()
        kept = problem._replace(query=query, key=none, value=none)
        self._calls.append(Call(kept, keys, key.shape[2]))

    def close(self) -> None:
        """No more calls will come."""
        for call in self._calls:
            call.keys.trim()

    def __len__(self) -> int:
        return len(self._calls)

    def all(self) -> tuple[AttentionMatrix, ...]:
        """The matrix of every call, in order."""
        return tuple(call.matrix() for call in self._calls)

    def whole(self) -> AttentionMatrix | None:
        """The one matrix that the calls are rows of, or None if they are not."""
        if len(self._calls) == 1:
            return self._calls[0].matrix()
        # More calls may have come since.
        if self._stitched[0] != len(self._calls):
            self._stitched = (len(self._calls), _stitched(self._calls))
        return self._stitched[1]


class Summaries:
    """The calls of one module, as summaries."""

    def __init__(self) -> None:
        self._calls: list[Summary] = []

    def add(self, summary: Summary) -> None:
        """Keep a call."""
        self._calls.append(summary)

    def close(self) -> None:
        """No more calls will come."""

    def __len__(self) -> int:
        return len(self._calls)

    def all(self) -> tuple[Summary, ...]:
        """The summary of every call, in order."""
        return tuple(self._calls)

    def whole(self) -> Summary | None:
        """The summary, if there was one call."""
        return self._calls[0] if len(self._calls) == 1 else None


def _sizes(key: Tensor) -> tuple[int, int, int]:
    return key.shape[0], key.shape[1], key.shape[3]


def _stitched(calls: Sequence[Call]) -> AttentionMatrix | None:
    """The calls of a growing sequence as one: each brings as many keys as it has queries, and its
    mask is causal, as far as these are no padding."""
    first, last = calls[0], calls[-1]
    steps = zip(calls[1:], calls[:-1], strict=True)
    if first.kv_len < first.query_len or any(
        call.kv_len != before.kv_len + call.query_len for call, before in steps
    ):
        return None
    if any(call.keys is not last.keys or call.problem.bias is not None for call in calls):
        return None
    if not all(_alike(call.problem, last.problem) for call in calls):
        return None
    valid = _real_keys(last)
    for call in calls:
        real = _real_keys(call)
        if valid is None or real is None:
            return None
        if not torch.equal(*torch.broadcast_tensors(real, valid[:, : call.kv_len])):
            return None
    assert valid is not None
    mask = causal()
    if not valid.all():
        mask = mask & padding(valid if len(valid) > 1 else valid[0])
    key = last.keys.first(last.kv_len)
    query = torch.cat([call.problem.query for call in calls], dim=2)
    return matrix_of(last.problem._replace(query=query, key=key, value=key, mask=mask))


def _alike(problem: Problem, other: Problem) -> bool:
    """Whether weights come about in the same way, the mask aside."""
    if (problem.scale, problem.softcap) != (other.scale, other.softcap):
        return False
    if problem.sinks is None or other.sinks is None:
        return problem.sinks is other.sinks
    return torch.equal(problem.sinks, other.sinks)


def _real_keys(call: Call) -> Tensor | None:
    """Which keys are no padding, (batch or 1, kv_len); None if the mask is not causal."""
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
    """The masks that all must show a key."""
    if isinstance(mask, And):
        return _parts(mask.left) + _parts(mask.right)
    return [] if mask is None else [mask]
