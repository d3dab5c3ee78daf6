"""Mutants of what ranks send each other, and of how the contexts of the keys of each rank are merged."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead import stages
from clearhead.checking.hypotheses.recipe import RIGHT, Setting, right_visible
from clearhead.checking.hypotheses.stage_edit import StageEdit
from clearhead.checking.ranks.placement import placement


def _own_again(
    inner: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, at: Setting
) -> Tensor:
    """A rank's own keys and values in the place of those of every other."""
    here, found = placement(at.kv_len, at.contract), []
    for positions in here.positions:
        spare = max(here.counts) - len(positions)
        again = (
            torch.nn.functional.pad(each[..., positions, :], (0, 0, 0, spare))[..., here.local, :]
            for each in (key, value)
        )
        found.append(inner(query, *again, at)[..., positions, :])
    return torch.cat(found, -2)[..., here.row, :]


def _blockwise(merge: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """The contexts of the keys of each rank, merged in another way: from (ranks, …, dim) of contexts,
    and (ranks, …, 1) of logsumexps and of what has a key at all."""

    def around(
        inner: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, at: Setting
    ) -> Tensor:
        here, seen = placement(at.kv_len, at.contract), right_visible(at)
        turned, keys = RIGHT.rotate(query, RIGHT.group(key, at), at)
        raw = stages.scores(turned, keys)
        scores = RIGHT.prepare(raw, seen, RIGHT.scale(at), at, RIGHT)
        contexts: list[Tensor] = []
        sums: list[Tensor] = []
        some: list[Tensor] = []
        for rank in range(here.world):
            mine = (here.owner == rank).expand(at.query_len, -1)
            mask = mine if at.mask is None else mine & at.mask
            contexts.append(inner(query, key, value, at._replace(mask=mask)).nan_to_num(0.0))
            sums.append(scores.masked_fill(~mine, -torch.inf).logsumexp(-1, keepdim=True))
            some.append((seen & mine).any(-1, keepdim=True).expand(sums[-1].shape))
        return merge(torch.stack(contexts), torch.stack(sums), torch.stack(some))

    return around


def _mean(contexts: Tensor, sums: Tensor, some: Tensor) -> Tensor:
    return contexts.mean(0)


def _mean_of_some(contexts: Tensor, sums: Tensor, some: Tensor) -> Tensor:
    return contexts.sum(0) / some.sum(0).clamp(min=1)


def _sum(contexts: Tensor, sums: Tensor, some: Tensor) -> Tensor:
    return contexts.sum(0)


def _last(contexts: Tensor, sums: Tensor, some: Tensor) -> Tensor:
    return contexts[-1]


def _by_sums(contexts: Tensor, sums: Tensor, some: Tensor) -> Tensor:
    """The logsumexps themselves as weights, without exp."""
    weights = sums.nan_to_num(0.0, neginf=0.0)
    return (contexts * weights).sum(0) / weights.sum(0)


def _partial_in(dtype: torch.dtype) -> Callable[..., Tensor]:
    """Partial contexts rounded before they are merged."""

    def merge(contexts: Tensor, sums: Tensor, some: Tensor) -> Tensor:
        return (contexts.to(dtype).double() * sums.softmax(0)).sum(0)

    return _blockwise(merge)


def _sent_in(dtype: torch.dtype) -> Callable[..., Tensor]:
    """Keys and values of other ranks rounded, as they are sent."""

    def around(
        inner: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, at: Setting
    ) -> Tensor:
        here, found = placement(at.kv_len, at.contract), []
        for positions in here.positions:
            rounded = [each.to(dtype).double() for each in (key, value)]
            for each, exact in zip(rounded, (key, value), strict=True):
                each[..., positions, :] = exact[..., positions, :]
            found.append(inner(query, *rounded, at)[..., positions, :])
        return torch.cat(found, -2)[..., here.row, :]

    return around


def _all_in(dtype: torch.dtype) -> Callable[..., Any]:
    """Keys and values rounded, the rank's own with them."""

    def arrange(query: Tensor, key: Tensor, value: Tensor, at: Setting) -> Any:
        return query, key.to(dtype).double(), value.to(dtype).double()

    return arrange


MERGED: Sequence[StageEdit] = [
    StageEdit("ranks.exchange", "again", {"around": _own_again}),
    *(
        StageEdit("ranks.merge", way, {"around": _blockwise(merge)})
        for way, merge in [
            ("mean", _mean),
            ("mean", _mean_of_some),
            ("sum", _sum),
            ("last", _last),
            ("logsumexp", _by_sums),
        ]
    ),
    *(
        StageEdit("ranks.precision", way, changes, values={"dtype": name})
        for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16"))
        for way, changes in (
            ("sent", {"around": _sent_in(dtype)}),
            ("sent", {"arrange": _all_in(dtype)}),
            ("merged", {"around": _partial_in(dtype)}),
        )
    ),
]
