"""The launches of both kernels of Triton for a problem."""

import os
from importlib import import_module
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.attention.biases import Bias, DenseBias, SumOfBiases
from clearhead.attention.distance_biases import Alibi, Relative
from clearhead.attention.kernels._nonfinite import long_rows
from clearhead.attention.problem import Problem
from clearhead.masks.tiles import portions
from clearhead.matrix.summary import TopK

WIDEST = 256
"""The widest head: a row of query, key and context is held whole."""

QUERIES = 64
"""Queries of a tile. Nobody has tuned it on a device yet."""

TILE_BYTES = 1 << 14
"""The most of a tile of keys, and of values: with them and what the compiler adds a program stays within the 99 kB
that the smallest device since compute capability 8.0 shares out."""


def is_interpreted() -> bool:
    """Return True if Triton runs its kernels on the CPU, which it reads when it is imported."""
    return os.environ.get("TRITON_INTERPRET") == "1"


class Added(NamedTuple):
    """The parts of a bias, each at most once."""

    dense: Tensor | None = None
    slopes: Tensor | None = None
    table: Tensor | None = None


def parts_of(bias: Bias | None) -> Added | None:
    """The parts of a bias; None for one of another kind, or with two parts of one kind."""
    if isinstance(bias, SumOfBiases):
        left, right = parts_of(bias.left), parts_of(bias.right)
        if (
            left is None
            or right is None
            or any(a is not None is not b for a, b in zip(left, right, strict=True))
        ):
            return None
        return Added(*(a if b is None else b for a, b in zip(left, right, strict=True)))
    if isinstance(bias, DenseBias):
        return Added(dense=bias.tensor)
    if isinstance(bias, Alibi):
        return Added(slopes=bias.slopes)
    if isinstance(bias, Relative):
        return Added(table=bias.values)
    return Added() if bias is None else None


class Launches:
    """The arguments of both kernels for a problem."""

    def __init__(self, problem: Problem) -> None:
        query, key = problem.query, problem.key
        self.problem = problem
        self.bad_query = _marks(long_rows(query, problem.factor))
        self.bad_key = _marks(long_rows(key))
        spans = problem.spans
        self.start, self.stop, self.pieces = self.bad_key, self.bad_key, 1
        self.runs_batch = 0
        if spans is not None:
            self.start, self.stop = (
                each.to(problem.device, torch.int32).contiguous()
                for each in (spans.start, spans.stop)
            )
            self.pieces = spans.pieces
            self.runs_batch = problem.query_len * spans.pieces if spans.start.shape[0] > 1 else 0
        added = parts_of(problem.bias)
        assert added is not None
        dense, slopes, table = added
        if slopes is not None:
            slopes = slopes.to(problem.device).expand(problem.num_heads).contiguous()
        if table is not None:
            table = table.to(problem.device).contiguous()
        self.lanes = _lanes(query.shape[3])
        self.options: dict[str, Any] = {
            "block_queries": QUERIES,
            "lanes": self.lanes,
            "masked": problem.mask is not None,
            "pieces": self.pieces,
            "precision": _precision(),
            "upcast": is_interpreted() and query.dtype != torch.float32,
            "capped": problem.softcap is not None,
            "has_dense": dense is not None,
            "has_alibi": slopes is not None,
            "has_table": table is not None,
        }

        table_head = table.stride(0) if table is not None and table.shape[0] > 1 else 0
        nothing = self.bad_key
        self.given: dict[str, Any] = {
            "bad_query": self.bad_query,
            "bad_key": self.bad_key,
            "start": self.start,
            "stop": self.stop,
            "dense": nothing if dense is None else dense,
            "slopes": nothing if slopes is None else slopes,
            "table": nothing if table is None else table,
            **_strides("query", query),
            **_strides("key", key),
            **_strides("dense", dense, ("batch", "head", "row", "key")),
            "table_head": table_head,
            "runs_batch": self.runs_batch,
            "heads": problem.num_heads,
            "group": problem.num_heads // problem.num_kv_heads,
            "query_len": problem.query_len,
            "kv_len": problem.kv_len,
            "head_dim": query.shape[3],
            "scale": problem.scale,
            "softcap": problem.softcap or 1.0,
            "reach": 0 if table is None else table.shape[1] // 2,
        }

    def rows(
        self,
        *,
        near: int,
        wanted: list[Tensor],
        k: int,
        value: Tensor | None,
        context: Tensor | None,
    ) -> tuple[Tensor, TopK | None]:
        """The numbers of each query, (8, batch, num_heads, query_len), as the kernel lists them, and the k largest
        weights; the context is written to its place.

        Args:
            near: the reach of one of the numbers, in tokens.
            wanted: up to two keys of each query, int64, (query_len,).
            k: how many of the largest weights; 0 for none.
            value, context: (batch, num_kv_heads or num_heads, kv_len, width), and what it becomes.
        """
        problem = self.problem
        numbers = torch.empty(8, *problem.query.shape[:3], device=problem.device)
        keys = problem.rows.new_full((2, problem.query_len), -1)
        for number, each in enumerate(wanted):
            keys[number] = each
        found = self._rows(value, context, near=near, wanted=keys.int(), numbers=numbers, top=k)
        return numbers, None if found is None else _in_order(*found, numbers[3], numbers[2])

    def values(self, value: Tensor, result: Tensor, *, is_member: bool = False) -> None:
        """Weights times values, (batch or 1, heads or 1, kv_len, width), to `result`; members are 0 or 1."""
        for some in portions(value.shape[3], WIDEST):
            part = torch.empty_like(result[..., some], memory_format=torch.contiguous_format)
            self._rows(value[..., some], part, is_member=is_member)
            result[..., some] = part

    def _rows(
        self,
        value: Tensor | None,
        result: Tensor | None,
        *,
        near: int = 0,
        wanted: Tensor | None = None,
        numbers: Tensor | None = None,
        top: int = 0,
        is_member: bool = False,
    ) -> tuple[Tensor, Tensor] | None:
        problem, nothing = self.problem, self.bad_key
        slots = 1 << (top - 1).bit_length() if top else 1
        shape = (*problem.query.shape[:3], top)
        scores = torch.empty(shape, device=problem.device)
        keys = torch.empty(shape, dtype=torch.int32, device=problem.device)
        width, value_group, bad_value = 1, 1, nothing
        row_bytes = self.lanes * problem.query.itemsize
        if value is not None:
            width, value_group = value.shape[3], problem.num_heads // value.shape[1]
            row_bytes = max(row_bytes, _lanes(width) * value.itemsize)
            largest = torch.linalg.vector_norm(value, torch.inf, dim=3)
            bad_value = _marks(~(largest < torch.inf)).expand(problem.batch, -1, -1).contiguous()
        sinks = problem.sinks
        kernel = import_module("clearhead.matrix.triton_kernels.rows").rows
        grid = (problem.batch * problem.num_heads, -(-problem.query_len // QUERIES))
        kernel[grid](
            query=problem.query,
            keys=problem.key,
            value=nothing if value is None else value,
            bad_value=bad_value,
            sinks=nothing if sinks is None else sinks,
            wanted=nothing if wanted is None else wanted,
            numbers=nothing if numbers is None else numbers,
            top_scores=scores,
            top_keys=keys,
            context=nothing if result is None else result,
            **_strides("value", value),
            value_group=value_group,
            value_dim=width,
            near=near,
            value_lanes=_lanes(width),
            slots=slots,
            top=top,
            has_sinks=sinks is not None,
            has_numbers=numbers is not None,
            has_context=value is not None,
            is_member=is_member,
            **self.given,
            **self.options,
            **tile_of(row_bytes),
        )
        return (scores, keys) if top else None

    def columns(self, largest: Tensor, maximum: Tensor) -> Tensor:
        """What each key receives, (batch, num_kv_heads, kv_len)."""
        problem = self.problem
        received = torch.empty(problem.key.shape[:3], device=problem.device)
        tile = tile_of(self.lanes * problem.query.itemsize)
        first, last = self.tiles_of_queries(tile["block_keys"])
        kernel = import_module("clearhead.matrix.triton_kernels.columns").columns
        kernel[(problem.batch * problem.num_kv_heads, first.shape[1])](
            query=problem.query,
            keys=problem.key,
            tiles_from=first,
            tiles_to=last,
            largest=largest,
            maximum=maximum,
            received=received,
            tiles_batch=first.shape[1] if self.runs_batch else 0,
            **self.given,
            **self.options,
            **tile,
        )
        return received

    def tiles_of_queries(self, keys: int) -> tuple[Tensor, Tensor]:
        """The tiles of queries that may see a tile of so many keys, from the first to the one after the last, int32,
        (batch or 1, tiles of keys)."""
        problem, spans = self.problem, self.problem.spans
        rows, columns = -(-problem.query_len // QUERIES), -(-problem.kv_len // keys)
        if spans is None:
            first = torch.zeros(1, columns, dtype=torch.int32, device=problem.device)
            return first, first + rows
        start, stop, kv_len = self.start, self.stop, problem.kv_len
        used = stop > start
        low, high = start.where(used, kv_len).amin(-1), stop.where(used, 0).amax(-1)
        short = rows * QUERIES - problem.query_len
        low = F.pad(low, (0, short), value=kv_len).unflatten(1, (rows, QUERIES)).amin(-1)
        high = F.pad(high, (0, short), value=0).unflatten(1, (rows, QUERIES)).amax(-1)
        edges = torch.arange(0, columns * keys, keys, dtype=torch.int32, device=problem.device)
        sees = (low[..., None] < edges + keys) & (high[..., None] > edges)
        number = torch.arange(rows, dtype=torch.int32, device=problem.device)[:, None]
        first = number.where(sees, rows).amin(1)
        return first.contiguous(), (number + 1).where(sees, 0).amax(1).contiguous()


def tile_of(row_bytes: int) -> dict[str, int]:
    """The keys of a tile and how it is worked on, for rows of keys or values of so many bytes."""
    return {
        "block_keys": min(64, TILE_BYTES // row_bytes),
        "num_warps": 4 if row_bytes <= 256 else 8,
        "num_stages": 2 if row_bytes <= 512 else 1,
    }


def _lanes(width: int) -> int:
    """The power of two that a row is loaded as; products want 16."""
    return max(16, 1 << (width - 1).bit_length())


def _in_order(scores: Tensor, keys: Tensor, best: Tensor, maximum: Tensor) -> TopK:
    """The kept scores as weights, from the largest on."""
    scores, order = scores.sort(dim=-1, descending=True)
    keys = keys.long().gather(-1, order)
    weights = (scores - best[..., None]).exp() * maximum[..., None]
    weights = weights.where(keys >= 0, 0.0)
    return TopK(weights, keys.masked_fill(weights == 0, -1))


def _marks(bad: Tensor) -> Tensor:
    """1 for what counts as not finite, in bytes."""
    return bad.contiguous().view(torch.uint8)


def _strides(
    name: str, tensor: Tensor | None, axes: tuple[str, ...] = ("batch", "head", "row", "lane")
) -> dict[str, int]:
    """The strides of a tensor of four axes by name; 0 for an axis of one, which serves all."""
    if tensor is None:
        return {f"{name}_{axis}": 0 for axis in axes}
    sizes = zip(axes, tensor.shape, tensor.stride(), strict=True)
    return {f"{name}_{axis}": step if size > 1 else 0 for axis, size, step in sizes}


def _precision() -> str:
    """How a product of float32 is computed: in full, unless PyTorch was told otherwise."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
