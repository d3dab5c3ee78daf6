"""The record of a call of attention: copies in O(tokens) memory, or a summary.

A model writes to its masks and KV caches after the call, so none of its tensors is kept itself.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from clearhead._common.checks import as_place
from clearhead._text import raised_words, shown
from clearhead.attention.biases import Bias, DenseBias
from clearhead.attention.distance_biases import Alibi, Relative
from clearhead.attention.problem import Problem
from clearhead.errors import WatchError
from clearhead.layers.caches.fixed import Held
from clearhead.masks.algebra import And, Not, Or
from clearhead.masks.base import Mask
from clearhead.masks.causal import Causal
from clearhead.masks.dense import Dense, and_masks, dense
from clearhead.masks.full import Full
from clearhead.matrix.matrix import AttentionMatrix, matrix_of
from clearhead.matrix.parts import some_heads, unbroadcast
from clearhead.matrix.real_queries import queries_of_keys, real_queries
from clearhead.matrix.roles import summary_with_roles
from clearhead.matrix.summary import Summary
from clearhead.matrix.totals import Totals, totals_of
from clearhead.sharding.matrix_part import MatrixPart
from clearhead.watching.hooks import tap
from clearhead.watching.hooks.running import is_cross
from clearhead.watching.mask_recovery import read_bias, read_mask

TOP_K = 8
POOL = 64
"""The largest weights of each query in a summary, and the rows and columns of its map, as far as
there are as many keys and queries."""

RECENT = 4
"""The masks that are memoised while a model runs: layers of different kinds take turns."""

Described = TypeVar("Described", Mask, Tensor)

Result = TypeVar("Result")


class Copies:
    """Copies of the masks and biases of a model, made once for layers that share them.

    With `graphs` the copies of biases and sinks keep their graphs.
    """

    def __init__(self, *, graphs: bool = False) -> None:
        self._read: Callable[[Tensor], Tensor] = (lambda t: t) if graphs else Tensor.detach
        self._masks: list[tuple[Tensor, Mask]] = []
        self._biases: list[tuple[Tensor, Tensor]] = []
        self._before: tuple[str, Problem] | None = None

    def of_call(self, problem: Problem, name: str) -> Problem:
        """Return a problem with copies, as `of`, and with what `of_texts` adds for the module of this name.

        Of cross-attention the queries that are padding are those of the self-attention before it in the same layer,
        which is stored for that.
        """
        problem = self.of(of_texts(problem, name))
        if not problem.cross:
            self._before = name, _of_padding(problem)
        elif problem.real_queries is None and self._before is not None:
            before, own = self._before
            if _in_one_layer(before, name) and own.query.shape[::2] == problem.query.shape[::2]:
                return problem.replace(real_queries=real_queries(own))
        return problem

    def of(self, problem: Problem) -> Problem:
        """Return a problem with copies of the tensors that the model may write to, except query, key and value.

        A tensor that says no more than a description becomes one; unused slots of a static cache are cut off. Copies of
        masks and biases are stored, for equal ones.
        """
        mask, bias, sinks = problem.mask, problem.bias, problem.sinks
        real = problem.real_queries
        if isinstance(bias, DenseBias):
            visible, rest = read_bias(bias.tensor)
            if visible is not None:
                shape = (*visible.shape[:3], problem.kv_len)
                mask = and_masks(mask, dense(visible.expand(shape)))
            bias = None if rest is None else bias if rest is bias.tensor else DenseBias(rest)
        if mask is not None:
            problem, mask = _without_room(problem, mask)
            mask = self._mask(mask, problem.kv_len)
        return problem.replace(
            mask=None if isinstance(mask, Full) else mask,
            bias=None if bias is None else self._bias(bias),
            sinks=None if sinks is None else self._read(sinks).clone(),
            real_queries=None if real is None else real.clone(),
        )

    def clear(self) -> None:
        """Forget the copies of masks and biases, and the last self-attention."""
        self._masks.clear()
        self._biases.clear()
        self._before = None

    def _mask(self, mask: Mask, kv_len: int) -> Mask:
        """Return a mask with copies of its tensors, as a description where a tensor is a known pattern.

        A tensor without a column for each of `kv_len` keys stays dense. And, Or and Not are rebuilt; And without parts
        that hide nothing. Other masks are returned themselves.
        """
        if isinstance(mask, And):
            left, right = self._mask(mask.left, kv_len), self._mask(mask.right, kv_len)
            hiding = [each for each in (left, right) if not isinstance(each, Full)]
            return left & right if len(hiding) == 2 else (hiding or [left])[0]
        if isinstance(mask, Or):
            return self._mask(mask.left, kv_len) | self._mask(mask.right, kv_len)
        if isinstance(mask, Not):
            return replace(mask, mask=self._mask(mask.mask, kv_len))
        if isinstance(mask, Dense):
            tensor = unbroadcast(mask.tensor)
            # One column for all keys is no description of a single key.
            read = _as_mask if tensor.shape[3] == kv_len else dense
            return _memoised(self._masks, tensor, read)
        return mask  # its tensors are its own

    def _bias(self, bias: Bias) -> Bias:
        """Return a bias with copies of its tensors, detached unless graphs are kept.

        Equal dense ones without a graph share a copy, other kinds are unchanged.
        """
        if isinstance(bias, DenseBias):
            tensor = unbroadcast(self._read(bias.tensor))
            if tensor.requires_grad:
                return DenseBias(tensor.clone())
            return DenseBias(_memoised(self._biases, tensor, lambda copy: copy))
        if isinstance(bias, Alibi):
            return replace(bias, slopes=self._read(bias.slopes).clone())
        if isinstance(bias, Relative):
            return replace(bias, values=self._read(bias.values).clone())
        return bias


def _of_padding(problem: Problem) -> Problem:
    """Return a problem of the same shapes without its values, which still tells which queries are real.

    Its key is True where a key is not zero, if the mask or bias need it.
    """
    query, key, value = (
        each.new_empty(()).expand(each.shape)
        for each in (problem.query, problem.key, problem.value)
    )
    if problem.bias is not None or not isinstance(problem.mask, Causal | None):
        key = problem.key.ne(0).any(dim=3, keepdim=True).any(dim=1, keepdim=True)
    return problem.replace(query=query, key=key, value=value)


def _without_room(problem: Problem, mask: Mask) -> tuple[Problem, Mask]:
    """Return a problem and a mask without the unused slots of a static cache, after the last token.

    A mask that holds a `Held` comes back dense, also from a full cache. Otherwise slots are zero keys that no query
    sees; without such both are unchanged. The problem's own mask and bias keep their columns.
    """
    query_len, kv_len = problem.query_len, problem.kv_len
    held = _held(mask)
    if held is not None:
        # The length that it goes by is the cache's own, which writes to it.
        used = int(held.length)
        rows, columns = slice(0, query_len), slice(0, used)
        key, value = problem.key[:, :, :used], problem.value[:, :, :used]
        cut = dense(mask.block(rows, columns, problem.extent))
        return problem.replace(key=key, value=value), cut
    if problem.cross or problem.key.is_meta or not 0 < query_len < kv_len:
        return problem, mask
    if isinstance(mask, Dense):
        if mask.tensor.shape[-1] != kv_len or mask.tensor[..., -1].any():
            return problem, mask
        seen = mask.tensor.reshape(-1, kv_len).any(dim=0)
        used = int(seen.nonzero()[-1]) + 1 if bool(seen.any()) else 0
        cut = dense(mask.tensor[..., :used])
    else:
        spans = mask.spans(problem.extent) if isinstance(mask, Causal) else None
        used = kv_len if spans is None else int(spans.stop.max())
        cut = mask
    if used < query_len or used == kv_len or problem.key[:, :, used:].any():
        return problem, mask
    key, value = problem.key[:, :, :used], problem.value[:, :, :used]
    return problem.replace(key=key, value=value), cut


def _held(mask: Mask) -> Held | None:
    """Return the part of a mask that counts the keys in a cache of fixed length; None if there is none."""
    if isinstance(mask, And):
        return next(
            (each for each in map(_held, (mask.left, mask.right)) if each is not None), None
        )
    return mask if isinstance(mask, Held) else None


def _as_mask(tensor: Tensor) -> Mask:
    """Return the description of a bool tensor, or a dense mask if it is no known pattern."""
    described = read_mask(tensor)
    return dense(tensor) if described is None else described


def _memoised(
    known: list[tuple[Tensor, Described]], tensor: Tensor, read: Callable[[Tensor], Described]
) -> Described:
    """Return the description of a copy of the tensor; equal tensors share both.

    `known` is changed: the new pair is put first, and all but the `RECENT` latest are dropped. `read` gets the copy
    and returns its description.
    """
    for copy, described in known:
        alike = (copy.dtype, copy.device) == (tensor.dtype, tensor.device)
        if alike and not tensor.is_meta and torch.equal(copy, tensor):
            return described
    copy = tensor.clone()
    known.insert(0, (copy, read(copy)))
    del known[RECENT:]
    return known[0][1]


def _in_one_layer(path: str, other: str) -> bool:
    """Return True if two modules, or modules that they are parts of, belong to the same numbered layer.

    An example is "layers.0.self_attn" and "layers.0.cross_attn".
    """
    mine, theirs = path.split("."), other.split(".")
    shared = 0
    while mine[shared : shared + 1] == theirs[shared : shared + 1] != []:
        shared += 1
    numbered = any(part.isdigit() for part in mine[:shared])
    return numbered and shared >= len(theirs) - 2


def of_texts(problem: Problem, name: str) -> Problem:
    """Return the problem of a module's call with what is known of its texts added; unchanged for most calls.

    It is marked as cross-attention if the module attends to another text. If the module appends keys that are no
    tokens, it is too, and the real queries are added, because the keys do not show which queries are padding.
    """
    if is_cross(name):
        return problem.replace(cross=True)
    more = tap.appended()
    if not more:
        return problem
    # The last query is not on the last key, and no key behind the tokens has a place in the text.
    return problem.replace(cross=True, real_queries=queries_of_keys(problem, more))


def head_numbers(heads: Sequence[int], num_heads: int, name: str) -> tuple[int, ...]:
    """Return the numbers of heads, counted from 0; negative ones count from the last.

    Raises:
        WatchError: code `watch.heads`, for a head that the module of this name does not have, and one that is
            there twice.

    Example:
        >>> head_numbers([0, -1], 8, "attention")
        (0, 7)
    """
    found = [as_place(each, num_heads) for each in heads]
    known = tuple(each for each in found if each is not None)
    if len(set(known)) < len(heads):
        raise WatchError(
            "watch.heads",
            f"heads={list(heads)} were asked for; {name or 'the model'} has num_heads={num_heads}.",
        )
    return known


def kept_heads(problem: Problem, heads: Sequence[int], name: str) -> Problem:
    """Return the problem of the heads that are kept, which has their numbers in the layer.

    Raises:
        WatchError: code `watch.heads`, for a head that the module of this name does not have.
    """
    part = MatrixPart() if problem.part is None else problem.part
    picked = part.head_numbers(torch.tensor(heads, device=problem.device))
    return of_heads(problem, heads, name).replace(part=part._replace(heads=picked))


def of_heads(problem: Problem, heads: Sequence[int], name: str) -> Problem:
    """Return the problem of some query heads only, with the key heads and the values that they use.

    Raises:
        WatchError: code `watch.heads`, for a head that the module of this name does not have.
    """
    return some_heads(problem, head_numbers(heads, problem.num_heads, name))


@torch.no_grad()
def reduced(
    problem: Problem,
    value: Tensor | None,
    name: str,
    function: Callable[[str, AttentionMatrix], Result],
    tokens: Tensor | None = None,
) -> Result:
    """Return the result of `function(name, matrix)` for the matrix of a call.

    The matrix has its value, and the token ids of its keys, unless they are None. The function must not keep the
    matrix. Gradients are off; a function that turns them on gets the graph of the call, if that was read with one.

    Raises:
        WatchError: code `watch.function`, if it raises, or if it keeps the matrix: the model may
            write to query and key after the call.
    """
    matrix = matrix_of(problem, value, tokens)
    kept = weakref.ref(matrix)
    try:
        result = function(name, matrix)
    except Exception as error:
        raise WatchError(
            "watch.function", f"keep= raised for {shown(name)}: {raised_words(error)}"
        ) from error
    del matrix
    if kept() is not None:
        raise WatchError(
            "watch.function",
            "keep= must return numbers of the matrix, which is gone when the call runs; it was kept. "
            'keep="matrix" keeps matrices.',
        )
    return result


def totalled(problem: Problem, tokens: Tensor | None, first: Tensor | None = None) -> Totals:
    """Return the totals of a call, one row for each kept head; arguments as for `summarised`."""
    return totals_of(summary_with_roles(matrix_of(problem), tokens, first))


def with_mean_of(
    context: Tensor, totals: Totals, problem: Problem, heads: Sequence[int] | None
) -> Totals:
    """Return a copy of the totals of a call with the mean of its context over its real queries, float64, on the CPU.

    Args:
        context: of all heads, (batch, num_heads, query_len, value_head_dim).
        totals: of the heads that are kept.
        problem: the call, of these heads.
        heads: their numbers; None for all.
    """
    context = (context if heads is None else context[:, heads]).detach().double()
    real = matrix_of(problem).real
    if real is not None:
        context = context.where(real[:, None, :, None], 0.0)
    mean = context.sum(dim=(0, 2)) / max(1, totals.queries)
    return replace(totals, context=mean.cpu())


def summarised(problem: Problem, tokens: Tensor | None, first: Tensor | None = None) -> Summary:
    """Return the summary of a call, which replaces its query and key in the record.

    It has the `TOP_K` largest weights and a map of `POOL` cells a side, but not for a call without queries or keys.

    Args:
        problem: the call.
        tokens: ids of its keys, (batch, kv_len), or None if they are not known.
        first: the key that is the first token of each sample, as `summary_with_roles` has it; None for the
            first that is seen.
    """
    query_len, kv_len = problem.query_len, problem.kv_len
    if min(query_len, kv_len) == 0:
        return summary_with_roles(matrix_of(problem), tokens, first)
    pool = (min(POOL, query_len), min(POOL, kv_len))
    return summary_with_roles(
        matrix_of(problem), tokens, first, top_k=min(TOP_K, kv_len), pool=pool
    )
