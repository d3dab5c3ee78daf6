"""Two summaries made one, exactly: that of chunks of a text, or of samples of a batch."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from clearhead._text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError, DeviceError, DtypeError, ShapeError
from clearhead.matrix.head_numbers import check_same_heads, check_same_roles, pooled_roles
from clearhead.matrix.indexing import bins
from clearhead.matrix.summary import ROWS, Summary, each_tensor


def merged(one: Summary, other: Summary, along: str) -> Summary:
    """The summary of both; arguments and errors are those of `Summary.merge`."""
    _check_merge(one, other, along)
    real = None
    if one.real is not None or other.real is not None:
        real = torch.cat([_real(one), _real(other)], dim=0 if along == "batch" else 1)
    if along == "batch":
        bare = replace(one, real=None), replace(other, real=None)
        return replace(_each_pair(*bare, lambda *two: torch.cat(two)), real=real)
    rows = one.entropy.ndim - 1
    joined = {
        name: _each_pair(
            getattr(one, name), getattr(other, name), lambda *two: torch.cat(two, dim=rows)
        )
        for name in ROWS
    }
    received = other.received.clone()
    received[..., : one.kv_len] += one.received
    roles = one.roles
    if roles is not None and other.roles is not None:
        roles = pooled_roles(roles, other.roles)
    return Summary(
        **joined,
        received=received,
        pooled=_joined_maps(one, other),
        roles=roles,
        real=real,
        cross=one.cross,
        heads=one.heads,
    )


def _each_pair(one: Any, two: Any, change: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """Two values of the same fields made one, tensor by tensor."""
    tensors = iter(tensors_of(two))
    return each_tensor(one, lambda tensor: change(tensor, next(tensors)))


def tensors_of(kept: Any) -> list[Tensor]:
    """Every tensor of a summary, or of one of its fields, in one order."""
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    each_tensor(kept, keep)
    return found


def _real(summary: Summary) -> Tensor:
    """Return which queries are real tokens, bool, (batch, query_len)."""
    if summary.real is not None:
        return summary.real
    device = summary.entropy.device
    return torch.ones(summary.batch, summary.query_len, dtype=torch.bool, device=device)


def _joined_maps(one: Summary, two: Summary) -> Tensor | None:
    """The map of the queries of both: rows below rows, and columns for the keys that one has not."""
    if one.pooled is None or two.pooled is None:
        return None
    wider = two.pooled.shape[-1] - one.pooled.shape[-1]
    return torch.cat([torch.nn.functional.pad(one.pooled, (0, wider)), two.pooled], dim=-2)


def _check_merge(one: Summary, two: object, along: str) -> None:
    """Raise an error if two summaries cannot be merged along this axis."""
    if not isinstance(two, Summary):
        raise ArgumentTypeError("merge.type", f"merge takes a Summary; got {type(two).__name__}.")
    if along not in ("queries", "batch"):
        raise ArgumentError(
            "merge.along", f'along must be "queries" or "batch"; got {shown(along)}.'
        )
    if along == "queries" and two.kv_len != one.kv_len + two.query_len:
        raise ShapeError(
            "merge.shape",
            f"the queries of other must come next: after {one.kv_len} keys its {two.query_len} queries "
            f"need kv_len={one.kv_len + two.query_len}; got {two.kv_len}.",
        )
    if along == "batch" and one.ndim != 4:
        raise ShapeError("merge.shape", f"along the batch, both must have one; this is {one!r}.")
    check_same_heads(one, two)
    if one.roles is not None and two.roles is not None:
        check_same_roles(one.roles, two.roles)
    for name in (each.name for each in fields(one) if each.name != "real"):
        mine, theirs = tensors_of(getattr(one, name)), tensors_of(getattr(two, name))
        if bool(mine) != bool(theirs):
            raise ArgumentError(
                "merge.fields",
                f"both summaries must have {name}, or neither; "
                f"{'this one' if mine else 'the other'} has it alone.",
            )
        for tensor, other in zip(mine, theirs, strict=True):
            _check_beside(name, tensor, other, along, one.entropy.ndim - 1)
    if along == "queries" and one.pooled is not None and two.pooled is not None:
        _check_maps(one, two)


def _without(tensor: Tensor, axis: int) -> torch.Size:
    """Return the shape of a tensor without one axis."""
    return tensor.shape[:axis] + tensor.shape[axis + 1 :]


def _check_beside(name: str, tensor: Tensor, other: Tensor, along: str, rows: int) -> None:
    """Refuse two tensors of a field that cannot be put together."""
    if tensor.dtype != other.dtype:
        raise DtypeError(
            "merge.dtype",
            f"{name} must have one dtype in both; got {tensor.dtype} and {other.dtype}.",
        )
    if tensor.device != other.device:
        raise DeviceError(
            "merge.device",
            f"{name} must be on one device in both; it is on {tensor.device} and {other.device}.",
        )
    if along == "batch":
        same = tensor.shape[1:] == other.shape[1:]
    elif name in ROWS:
        same = _without(tensor, rows) == _without(other, rows)
    else:
        end = -{"received": 1, "pooled": 2}.get(name, 0) or None
        same = tensor.shape[:end] == other.shape[:end]
    if not same:
        raise ShapeError(
            "merge.shape",
            f"{name} must agree in both but for the axis of the {along}; got "
            f"{tuple(tensor.shape)} and {tuple(other.shape)}.",
        )


def _check_maps(one: Summary, two: Summary) -> None:
    """Refuse maps whose bins are not those of the map of the queries of both."""
    assert one.pooled is not None
    assert two.pooled is not None
    device = one.pooled.device
    (rows, columns), (more, wider) = one.pooled.shape[-2:], two.pooled.shape[-2:]
    found = [bins(one.query_len, rows, device), rows + bins(two.query_len, more, device)]
    together = bins(one.query_len + two.query_len, rows + more, device)
    seen = bins(two.kv_len, wider, device)[: one.kv_len]
    if not torch.equal(torch.cat(found), together) or not torch.equal(
        seen, bins(one.kv_len, columns, device)
    ):
        raise ShapeError(
            "merge.shape",
            "pooled maps are merged where all cells are of one size; got "
            f"{rows} × {columns} for {one.query_len} × {one.kv_len} tokens and {more} × {wider} for "
            f"{two.query_len} × {two.kv_len}.",
        )
