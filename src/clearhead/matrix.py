"""The tokens × tokens matrix of attention weights, as an object that is never in memory.

With P = softmax(scale · Q Kᵀ + mask), `P @ X` is a call of attention with X as the value, its
logsumexp comes with one, and given the logsumexp any part of P costs the dot products of that part.
"""

import math
import os
import reprlib
from collections.abc import Sequence
from types import EllipsisType

import torch
from torch import Tensor

from clearhead import stages
from clearhead.biases import Bias
from clearhead.errors import ArgumentTypeError, SelectionError, ShapeError, TooLargeError
from clearhead.kernels import eager, fused
from clearhead.masks.base import Mask
from clearhead.planning import choose
from clearhead.problem import Problem, pose
from clearhead.shapes import whole
from clearhead.words import bytes_in_words

Index = int | slice | EllipsisType | Sequence[int] | Tensor

PORTION = 1 << 21
"""How many weights are worked on at a time."""


class AttentionMatrix:
    """The attention weights of every query over every key, worked out where somebody looks.

    Nothing of size query_len × kv_len is computed or stored until a part is asked for, and then
    only that part. Weights are those before dropout.

    Args:
        query: (batch, num_heads, query_len, head_dim), or fewer leading dimensions.
        key: (batch, num_kv_heads, kv_len, head_dim), with as many dimensions.
        mask, bias, scale, softcap, sinks: as in `attend`.

    Raises:
        ClearheadError: for input that `attend` refuses.

    Example:
        >>> import torch, clearhead as ch
        >>> query = key = torch.randn(1, 2, 100_000, 4)
        >>> weights = ch.AttentionMatrix(query, key, mask=ch.causal())
        >>> weights
        AttentionMatrix [batch=1, num_heads=2, query_len=100000, kv_len=100000] mask=causal()
        >>> weights[..., 2, :4].shape
        torch.Size([1, 2, 4])
        >>> float(weights[0, 0, 2, 3])  # the future
        0.0
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        bias: Bias | Tensor | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        # There is no value yet; the key stands in for it, with the right length and heads.
        self.problem: Problem = pose(
            query, key, key, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks
        )
        self._logsumexp: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """(batch, num_heads, query_len, kv_len), with as many dimensions as the query."""
        problem = self.problem
        sizes = (problem.batch, problem.num_heads, problem.query_len, problem.kv_len)
        return torch.Size(sizes[4 - problem.dims :])

    @property
    def ndim(self) -> int:
        """How many dimensions the matrix has: those of the query."""
        return self.problem.dims

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights: float32 for 16-bit inputs, else that of the query."""
        return stages.accumulated(self.problem.query[:0]).dtype

    @property
    def device(self) -> torch.device:
        """Where the query is, and every result."""
        return self.problem.device

    @property
    def nbytes(self) -> int:
        """What the whole matrix would take, in bytes."""
        return self.shape.numel() * self.dtype.itemsize

    @property
    def logsumexp(self) -> Tensor:
        """log Σ exp of each query's masked scores, (batch, num_heads, query_len), in nats.

        −∞ for a query that may attend to nothing; sinks are not counted. Worked out once, in
        O(tokens) memory.
        """
        return self._restore(self._total()[..., None])[..., 0]

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Tensor:
        """Exact weights of some queries and keys, by the rules of tensors.

        Ints, slices and `...` work as usual. Each axis may also take a list or a tensor of ints;
        several of them mean a rectangle: every one of the queries with every one of the keys.

        Raises:
            SelectionError: for an index out of range or of another kind.
            TooLargeError: if the part asked for would not fit in memory.
        """
        given = index if isinstance(index, tuple) else (index,)
        axes = _complete(given, self.shape)
        picked = [_read_index(each, size, axis) for axis, (each, size) in enumerate(axes)]
        leading: list[tuple[Tensor | slice, bool]] = [(slice(None), False)] * (4 - len(picked))
        batch, heads, queries, keys = leading + picked
        part = self._part(batch[0], heads[0], queries[0], keys[0])
        # An int drops its axis; a leading axis that the user never had goes as well.
        drop = [axis for axis, (_, single) in enumerate((batch, heads, queries, keys)) if single]
        drop += range(4 - len(picked))
        for axis in sorted(drop, reverse=True):
            part = part.squeeze(axis)
        return part

    def __matmul__(self, value: Tensor) -> Tensor:
        """The context: weights times values, by a kernel that never forms the weights.

        Args:
            value: (batch, num_kv_heads or num_heads, kv_len, width), or (kv_len, width) for all
                samples and heads, or (kv_len,).

        Returns:
            (batch, num_heads, query_len, width), or without the width for a value of one dimension.
        """
        if not isinstance(value, Tensor):
            raise ArgumentTypeError(
                "value.type", f"value must be a torch.Tensor; got {type(value).__name__}."
            )
        problem = self.problem
        if value.ndim == 1:
            return (self @ value[:, None])[..., 0]
        if value.ndim == 2:
            value = value.expand(problem.batch, problem.num_kv_heads, *value.shape)
        elif value.ndim == problem.dims:
            value = value[(None,) * (4 - problem.dims)]
        else:
            raise ShapeError(
                "shape.dimensions",
                f"value must have {problem.dims} dimensions like the query, or 2 or 1; got shape "
                f"{tuple(value.shape)}.",
            )
        key = problem.key
        if value.shape[1] == problem.num_heads:
            key = stages.repeated_heads(key, problem.num_heads)
        posed = pose(
            problem.query,
            key,
            value,
            mask=problem.mask,
            bias=problem.bias,
            scale=problem.scale,
            softcap=problem.softcap,
            sinks=problem.sinks,
        )
        return self._restore(choose(posed).attend(posed))

    def dense(self) -> Tensor:
        """The whole matrix as a tensor, if it fits.

        Raises:
            TooLargeError: code `matrix.too-large`, with the size in bytes, if it would not fit in
                the memory that is free.

        Example:
            >>> import torch, clearhead as ch
            >>> ch.AttentionMatrix(torch.eye(2), torch.eye(2), scale=1.0).dense()
            tensor([[0.7311, 0.2689],
                    [0.2689, 0.7311]])
        """
        return self[...]

    def __repr__(self) -> str:
        problem = self.problem
        names = ("batch", "num_heads", "query_len", "kv_len")[4 - problem.dims :]
        sizes = ", ".join(f"{name}={size}" for name, size in zip(names, self.shape, strict=True))
        mask = "" if problem.mask is None else f" mask={problem.mask.describe()}"
        return f"AttentionMatrix [{sizes}]{mask}"

    def _restore(self, tensor: Tensor) -> Tensor:
        return self.problem.restore(tensor)

    def _total(self) -> Tensor:
        if self._logsumexp is not None and not (torch.is_grad_enabled() and self._trained()):
            return self._logsumexp
        total = fused.logsumexp(self.problem)
        total = eager.logsumexp(self.problem) if total is None else total
        # What hangs on a graph is not kept: a graph can be walked once, and takes memory.
        if not total.requires_grad:
            self._logsumexp = total
        return total

    def _trained(self) -> bool:
        problem = self.problem
        bias = problem.bias is not None and problem.bias.requires_grad
        return problem.query.requires_grad or problem.key.requires_grad or bias

    def _part(
        self,
        batch: Tensor | slice,
        heads: Tensor | slice,
        queries: Tensor | slice,
        keys: Tensor | slice,
    ) -> Tensor:
        problem = self.problem
        rows = _as_indices(queries, problem.query_len, self.device)
        columns = _as_indices(keys, problem.kv_len, self.device)
        samples = _as_indices(batch, problem.batch, self.device)
        chosen_heads = _as_indices(heads, problem.num_heads, self.device)
        sizes = [t.shape[0] for t in (samples, chosen_heads, rows, columns)]
        self._check_fits(sizes)
        # Masks and biases are worked out for all of their samples and heads.
        wide = max(sizes[0] * sizes[1], 1)
        if problem.mask is not None:
            wide = max(wide, math.prod(problem.mask.leading))
        if problem.bias is not None:
            wide = max(wide, problem.num_heads)
        portion = max(1, PORTION // (wide * max(1, problem.kv_len)))
        # With the sums of all queries at hand, a narrow part need not go over every key.
        narrow = sizes[3] < problem.kv_len and (
            self._logsumexp is not None or sizes[2] > max(portion, problem.query_len // 8)
        )
        parts = []
        if narrow:
            total = self._total()[samples][:, chosen_heads]
            if problem.bias is None:
                portion = max(1, PORTION // (wide * max(1, sizes[3])))
            for some in rows.split(portion):
                scores = self._masked_scores(samples, chosen_heads, some, columns)
                parts.append(self._weights_from(scores, total[:, :, some], chosen_heads))
        else:
            every = torch.arange(problem.kv_len, device=self.device)
            for some in rows.split(portion):
                scores = self._masked_scores(samples, chosen_heads, some, every)
                sinks = None if problem.sinks is None else problem.sinks[chosen_heads]
                parts.append(_take(stages.weights(scores, sinks), 3, columns))
        return torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]

    def _masked_scores(
        self, samples: Tensor, heads: Tensor, rows: Tensor, columns: Tensor
    ) -> Tensor:
        """The masked scores of a rectangle, (samples, heads, rows, columns)."""
        problem = self.problem
        group = problem.num_heads // problem.num_kv_heads
        query = _take(_take(_take(problem.query, 0, samples), 1, heads), 2, rows)
        key = _take(_take(_take(problem.key, 0, samples), 1, heads // group), 2, columns)
        visible = None
        if problem.mask is not None:
            visible = problem.mask.visible(
                rows.view(1, 1, -1, 1), columns.view(1, 1, 1, -1), problem.query_len, problem.kv_len
            )
            if visible.shape[0] > 1:
                visible = _take(visible, 0, samples)
            if visible.shape[1] > 1:
                visible = _take(visible, 1, heads)
        scores = stages.scores(query, key)
        capped = stages.capped_scores(stages.scaled_scores(scores, problem.scale), problem.softcap)
        bias = self._bias(samples, heads, rows, columns)
        return stages.masked_scores(capped, bias, visible)

    def _bias(self, samples: Tensor, heads: Tensor, rows: Tensor, columns: Tensor) -> Tensor | None:
        """The bias of a rectangle, which is made for runs of queries and of keys."""
        problem = self.problem
        if problem.bias is None:
            return None
        first, stop = (int(columns.min()), int(columns.max()) + 1) if columns.numel() else (0, 0)
        blocks = []
        for run in _runs(rows) or [slice(0, 0)]:
            block = problem.bias.block(
                run, slice(first, stop), problem.query_len, problem.kv_len, self.device
            )
            if block.shape[0] > 1:
                block = _take(block, 0, samples)
            if block.shape[1] > 1:
                block = _take(block, 1, heads)
            block = block.expand(-1, -1, run.stop - run.start, stop - first)
            blocks.append(_take(block, 3, columns - first))
        return torch.cat(blocks, dim=2) if len(blocks) > 1 else blocks[0]

    def _weights_from(self, scores: Tensor, total: Tensor, heads: Tensor) -> Tensor:
        """Weights of a rectangle from its scores and the logsumexp of its queries."""
        if self.problem.sinks is not None:
            sinks = stages.accumulated(self.problem.sinks)[heads]
            total = torch.logaddexp(total, sinks[:, None].expand_as(total))
        hidden = scores == -torch.inf
        total = total.masked_fill(total == -torch.inf, 0.0)
        return torch.exp(scores - total[..., None]).masked_fill(hidden, 0.0)

    def _check_fits(self, sizes: list[int]) -> None:
        wanted = self.dtype.itemsize
        for size in sizes:
            wanted *= size
        free = _free_bytes(self.device)
        # Beside the result, the portions of it are held once more while they are put together.
        if 2 * wanted > free:
            raise TooLargeError(
                "matrix.too-large",
                f"{' × '.join(map(str, sizes))} weights take {bytes_in_words(wanted)}, and twice that "
                f"while they are put together; {bytes_in_words(free)} are free on {self.device}. "
                "Index the rows, keys or heads that you need.",
            )


def _complete(given: tuple[Index, ...], shape: torch.Size) -> list[tuple[Index, int]]:
    """One index per axis, with `...` and what is left out spelled as whole slices."""
    dots = [i for i, each in enumerate(given) if each is Ellipsis]
    count = len(given) - len(dots)
    if len(dots) > 1 or count > len(shape):
        raise SelectionError(
            "matrix.index",
            f"a matrix of {len(shape)} dimensions takes up to {len(shape)} indices and one `...`; "
            f"got {len(given)}.",
        )
    missing = [slice(None)] * (len(shape) - count)
    at = dots[0] if dots else len(given)
    full = [*given[:at], *missing, *given[at + 1 :]]
    return list(zip(full, shape, strict=True))


def _read_index(index: Index, size: int, axis: int) -> tuple[Tensor | slice, bool]:
    """The index as a slice or a tensor, and whether it was a single int."""
    if isinstance(index, slice):
        return index, False
    tensor = index if isinstance(index, Tensor) else _ints(index, size, axis)
    dtype = tensor.dtype
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool or tensor.ndim > 1:
        raise SelectionError(
            "matrix.index",
            f"axis {axis} takes an int, a slice or one dimension of ints; got {dtype} of "
            f"shape {tuple(tensor.shape)}.",
        )
    single = tensor.ndim == 0
    tensor = tensor.reshape(-1).to(torch.int64)
    if tensor.numel():
        _check_range(int(tensor.min()), int(tensor.max()), size, axis)
    return tensor.remainder(size) if size else tensor, single


def _ints(index: object, size: int, axis: int) -> Tensor:
    """A whole number as a tensor of no dimension, or several as one of one dimension."""
    number = whole(index)
    if number is not None:
        _check_range(number, number, size, axis)
        return torch.tensor(number)
    if isinstance(index, Sequence) and not isinstance(index, str | bytes):
        numbers = [each for number in index if (each := whole(number)) is not None]
        if len(numbers) == len(index):
            _check_range(min(numbers, default=0), max(numbers, default=-1), size, axis)
            return torch.tensor(numbers, dtype=torch.int64)
    raise SelectionError(
        "matrix.index",
        f"axis {axis} takes an int, a slice or a list of ints; got {reprlib.repr(index)}.",
    )


def _check_range(low: int, high: int, size: int, axis: int) -> None:
    if low < -size or high >= size:
        raise SelectionError(
            "matrix.range",
            f"index {low if low < -size else high} is out of range for axis {axis}, "
            f"which has {size}.",
        )


def _as_indices(index: Tensor | slice, size: int, device: torch.device) -> Tensor:
    if isinstance(index, slice):
        try:
            start, stop, step = index.indices(size)
        except (TypeError, ValueError) as error:
            raise SelectionError("matrix.index", f"{index} is not a slice of ints.") from error
        count = len(range(start, stop, step))
        return torch.arange(count, device=device) * step + start
    return index.to(device)


def _take(tensor: Tensor, axis: int, indices: Tensor) -> Tensor:
    """The indices along an axis; the tensor itself, without a copy, if they are all in order."""
    size = tensor.shape[axis]
    if indices.shape[0] == size and bool((indices == torch.arange(size).to(indices)).all()):
        return tensor
    return tensor.index_select(axis, indices)


def _runs(rows: Tensor) -> list[slice]:
    """Neighbouring rows as slices."""
    runs: list[slice] = []
    for row in rows.tolist():
        if runs and runs[-1].stop == row:
            runs[-1] = slice(runs[-1].start, row + 1)
        else:
            runs.append(slice(row, row + 1))
    return runs


def _free_bytes(device: torch.device) -> int:
    """Memory that is free on the device, in bytes, as far as the system tells."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
