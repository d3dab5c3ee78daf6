"""The tokens × tokens matrix of attention weights, as an object that is never in memory.

With P = softmax(scale · Q Kᵀ + mask), `P @ X` is a call of attention with X as the value, its
logsumexp comes with one, and given the logsumexp any part of P costs the dot products of that part.
"""

import math
import os
import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.checks import as_int, check_length, check_tensor
from clearhead._common.lazy import drawing
from clearhead._common.text import format_bytes
from clearhead.attention.biases import Bias
from clearhead.attention.kernels import blockwise, eager, fused
from clearhead.attention.planning import choose
from clearhead.attention.problem import Problem, check_fit, make_problem, under_autocast
from clearhead.errors import (
    ArgumentError,
    ArgumentTypeError,
    SelectionError,
    ShapeError,
    TooLargeError,
)
from clearhead.masks.base import Mask
from clearhead.matrix.indexing import Index, as_indices, complete, read_index, read_pairs, take
from clearhead.matrix.parts import masked_scores, pairs, weights_from
from clearhead.matrix.reductions import (
    Context,
    Distance,
    Entropy,
    Largest,
    LogSumExp,
    Mass,
    Maximum,
    Near,
    OfKey,
    PerQuery,
    Pooled,
    Received,
    bins,
)
from clearhead.matrix.summary import NEAR, Summary, TopK
from clearhead.matrix.sweep import Progress, sweep
from clearhead.matrix.transposed import Transposed

_Gathered = PerQuery | Pooled | Received

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
        self._hold(
            make_problem(
                query, key, key, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks
            )
        )

    @classmethod
    def _of(cls, problem: Problem) -> "AttentionMatrix":
        """The matrix of a problem that has been validated."""
        matrix = cls.__new__(cls)
        matrix._hold(problem)
        return matrix

    def _hold(self, problem: Problem) -> None:
        self.problem = problem
        # Computed once. What is handed out of these is a copy, which the caller may write to.
        self._logsumexp: Tensor | None = None
        self._entropy: Tensor | None = None
        self._near: dict[int, Tensor] = {}

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
        return stages.upcast(self.problem.query[:0]).dtype

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

        −∞ for a query that may attend to nothing; sinks are not counted. Computed once, in O(tokens)
        memory; each call returns a copy.
        """
        return self._restore(self._total()[..., None])[..., 0].clone()

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Tensor:
        """Exact weights of some queries and keys, by the rules of tensors.

        Ints, slices and `...` work as usual. Each axis may also take a list or a tensor of ints;
        several of them mean a rectangle: every one of the queries with every one of the keys.

        Raises:
            SelectionError: for an index out of range or of another kind.
            TooLargeError: if the part asked for would not fit in memory.
        """
        given = index if isinstance(index, tuple) else (index,)
        axes = complete(given, self.shape)
        picked = [read_index(each, size, axis) for axis, (each, size) in enumerate(axes)]
        leading: list[tuple[Tensor | slice, bool]] = [(slice(None), False)] * (4 - len(picked))
        batch, heads, queries, keys = leading + picked
        part = self._part(batch[0], heads[0], queries[0], keys[0])
        # An int drops its axis; a leading axis that the user never had goes as well.
        drop = [axis for axis, (_, single) in enumerate((batch, heads, queries, keys)) if single]
        drop += range(4 - len(picked))
        for axis in sorted(drop, reverse=True):
            part = part.squeeze(axis)
        return part

    def at(
        self,
        query_index: int | Sequence[int] | Tensor,
        key_index: int | Sequence[int] | Tensor,
    ) -> Tensor:
        """The weights of chosen pairs: query and key of the same place belong together.

        Costs one dot product a pair, and once the logsumexp.

        Args:
            query_index: ints of shape (pairs,), or (batch, pairs) for other pairs in each sample.
            key_index: likewise; the two broadcast against each other.

        Returns:
            (batch, num_heads, pairs), without the last axis for two single ints.

        Raises:
            SelectionError: codes `matrix.index`, `matrix.range` and `matrix.pairs`, for what is no
                int, out of range or of shapes that do not go together.

        Example:
            >>> import torch, clearhead as ch
            >>> query = key = torch.zeros(1, 2, 100_000, 4)
            >>> weights = ch.AttentionMatrix(query, key, mask=ch.causal())
            >>> weights.at([3, 9, 9], [3, 0, 99])
            tensor([[[0.2500, 0.1000, 0.0000],
                     [0.2500, 0.1000, 0.0000]]])
        """
        problem = self.problem
        sizes = (problem.batch, problem.query_len, problem.kv_len)
        queries, keys, single = read_pairs(query_index, key_index, sizes)
        queries, keys = queries.to(self.device), keys.to(self.device)
        total = self._total()
        portion = max(1, PORTION // max(1, problem.query[:, :, :1].numel()))
        parts = [
            pairs(problem, some, others, total)
            for some, others in zip(
                queries.split(portion, dim=1), keys.split(portion, dim=1), strict=True
            )
        ]
        weights = torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]
        weights = weights[..., 0] if single else weights
        return self._restore(weights)

    def diagonal(self, offset: int = 0) -> Tensor:
        """The weights of one diagonal, as `torch.diagonal` takes it: key = query + offset.

        With as many keys as queries, offset −1 is the token before. With more keys, as behind a
        cache, the last query sits on the last key, and the token before is
        offset = kv_len − query_len − 1.

        Returns:
            (batch, num_heads, length of the diagonal).

        Raises:
            ArgumentTypeError: code `diagonal.type`, for an offset that is no whole number.

        Example:
            >>> import torch, clearhead as ch
            >>> query = key = torch.zeros(4, 2)
            >>> ch.AttentionMatrix(query, key, mask=ch.causal()).diagonal(offset=-1)
            tensor([0.5000, 0.3333, 0.2500])
        """
        steps = as_int(offset)
        if steps is None:
            raise ArgumentTypeError(
                "diagonal.type", f"offset must be a whole number; got {type(offset).__name__}."
            )
        problem = self.problem
        steps = max(-problem.query_len, min(steps, problem.kv_len))  # beyond them is nothing
        first = max(0, -steps)
        count = max(0, min(problem.query_len - first, problem.kv_len - max(0, steps)))
        queries = torch.arange(first, first + count)
        return self.at(queries, queries + steps)

    def __matmul__(self, value: Tensor) -> Tensor:
        """The context: weights times values, by a kernel that never forms the weights.

        Args:
            value: (batch, num_kv_heads or num_heads, kv_len, width), or (kv_len, width) for all
                samples and heads, or (kv_len,).

        Returns:
            (batch, num_heads, query_len, width), or without the width for a value of one dimension.
        """
        if isinstance(value, Tensor) and value.ndim == 1:
            return (self @ value[:, None])[..., 0]
        posed = self._with_value(value, "2 or 1")
        return self._restore(choose(posed).attend(posed))

    @property
    def mT(self) -> Transposed:  # noqa: N802 (as of a tensor)
        """The transposed matrix, for products: `A.mT @ x` is what the keys get of x."""
        return Transposed(self.problem)

    def entropy(self) -> Tensor:
        """How spread the attention of each query is: −Σ weight · ln weight, in nats.

        0 is one key only, ln(n) is n keys alike. What a sink takes is not counted.

        Returns:
            (batch, num_heads, query_len).

        Example:
            >>> import torch, clearhead as ch
            >>> query = key = torch.zeros(3, 2)
            >>> ch.AttentionMatrix(query, key, mask=ch.causal()).entropy()
            tensor([0.0000, 0.6931, 1.0986])
        """
        if self._entropy is None:
            self._entropy = self._gather(Entropy(self.problem))
        return self._entropy.clone()

    def max(self) -> Tensor:
        """The largest weight of each query; 0 for one that may attend to nothing.

        Returns:
            (batch, num_heads, query_len).

        Example:
            >>> import torch, clearhead as ch
            >>> ch.AttentionMatrix(torch.zeros(2, 4), torch.zeros(5, 4)).max()
            tensor([0.2000, 0.2000])
        """
        return self._gather(Maximum(self.problem))

    def top_k(self, k: int) -> TopK:
        """The k largest weights of each query, from the largest on, and their keys.

        Of equal weights any may come. A key is −1 where the weight is 0.

        Args:
            k: how many, 1 to kv_len.

        Returns:
            A pair `weights, keys`, both (batch, num_heads, query_len, k).

        Raises:
            ArgumentError: code `top-k.value`, for a k out of range.

        Example:
            >>> import torch, clearhead as ch
            >>> weights, keys = ch.AttentionMatrix(torch.eye(3), torch.eye(3)).top_k(1)
            >>> weights.flatten(), keys.flatten()
            (tensor([0.4711, 0.4711, 0.4711]), tensor([0, 1, 2]))
        """
        largest = self._largest(k)
        sweep(self.problem, [largest])
        return self._restored(largest)

    def received(self) -> Tensor:
        """What each key gets from all queries together: the sum of its column.

        Query heads that share a key head are summed, so that over all keys of a head it is
        query_len times the size of its group, less what sinks take.

        Returns:
            (batch, num_kv_heads, kv_len).

        Example:
            >>> import torch, clearhead as ch
            >>> query = key = torch.zeros(3, 2)
            >>> ch.AttentionMatrix(query, key, mask=ch.causal()).received()
            tensor([1.8333, 0.8333, 0.3333])
        """
        return self._gather(Received(self.problem))

    def distance(self) -> Tensor:
        """How far away each query looks: Σ weight · |query position − key position|, in tokens.

        The last query sits on the last key, as everywhere.

        Returns:
            (batch, num_heads, query_len).

        Example:
            >>> import torch, clearhead as ch
            >>> query = key = torch.zeros(3, 2)
            >>> ch.AttentionMatrix(query, key, mask=ch.causal()).distance()
            tensor([0.0000, 0.5000, 1.0000])
        """
        return self._gather(Distance(self.problem))

    def near(self, tokens: int = NEAR) -> Tensor:
        """The weight of each query on the keys at most so many tokens away, itself included.

        The last query sits on the last key, as everywhere.

        Args:
            tokens: how far a key may be on either side, 0 or more.

        Returns:
            (batch, num_heads, query_len).

        Raises:
            ArgumentError, ArgumentTypeError: codes `length.negative` and `length.type`.

        Example:
            >>> import torch, clearhead as ch
            >>> ch.AttentionMatrix(torch.zeros(4, 2), torch.zeros(4, 2)).near(1)
            tensor([0.5000, 0.7500, 0.7500, 0.5000])
        """
        tokens = check_length("tokens", tokens)
        if tokens not in self._near:
            self._near[tokens] = self._gather(Near(self.problem, tokens))
        return self._near[tokens].clone()

    def mass(self, segments: Tensor) -> Tensor:
        """The weight that each query puts on sets of keys.

        Args:
            segments: (kv_len,) or (batch, kv_len). Bool: the keys of one set. Ints: the number of
                the set that each key belongs to, from 0; −1 for none.

        Returns:
            (batch, num_heads, query_len) for bool, and with one more axis, of as many sets as
            there are, for ints.

        Raises:
            ArgumentTypeError: code `segments.type`, for what is no tensor.
            ShapeError: code `segments.shape`.
            ArgumentError: code `segments.value`, for other numbers, or a set for every number up
                to a largest that is beyond kv_len.

        Example:
            >>> import torch, clearhead as ch
            >>> weights = ch.AttentionMatrix(torch.zeros(1, 2), torch.zeros(4, 2))
            >>> weights.mass(torch.tensor([0, 0, 0, 1]))
            tensor([[0.7500, 0.2500]])
        """
        member, single = self._members(segments)
        mass = Mass(self.problem, member)
        sweep(self.problem, [mass])
        return self._of_sets(mass, single)

    def pool(
        self,
        rows: int,
        columns: int,
        *,
        queries: slice | None = None,
        keys: slice | None = None,
    ) -> Tensor:
        """The matrix as a small map: weights summed over rectangles of queries × keys.

        The queries fall into as many bins as there are rows, in order and as equal as can be, and
        the keys likewise. The sum of the map is that of the weights: query_len for the whole
        matrix, if every query sees something and there are no sinks.

        Args:
            rows: bins of queries, 1 to as many as there are queries.
            columns: bins of keys, likewise.
            queries: only these; a zoom works out these queries alone.
            keys: only these.

        Returns:
            (batch, num_heads, rows, columns).

        Raises:
            ArgumentError: code `pool.size`, for a number of bins out of range.
            SelectionError: code `matrix.index`, for what is no slice.

        Example:
            >>> import torch, clearhead as ch
            >>> query = key = torch.zeros(4, 2)
            >>> ch.AttentionMatrix(query, key, mask=ch.causal()).pool(2, 2)
            tensor([[2.0000, 0.0000],
                    [1.1667, 0.8333]])
        """
        problem = self.problem
        picked_rows = self._slice(queries, problem.query_len)
        picked_keys = self._slice(keys, problem.kv_len)
        _check_pool(rows, columns, len(picked_rows), len(picked_keys))
        if queries is None and keys is None:
            return self._gather(Pooled(problem, rows, columns))
        row_bins = bins(len(picked_rows), rows, self.device)
        column_bins = bins(len(picked_keys), columns, self.device)
        leading = (problem.batch, problem.num_heads)
        pooled = torch.zeros(*leading, rows, columns, dtype=torch.float64, device=self.device)
        portion = max(1, PORTION // max(1, math.prod(leading) * problem.kv_len))
        everything = slice(None)
        with torch.no_grad():
            for some, places in zip(
                picked_rows.split(portion), row_bins.split(portion), strict=True
            ):
                part = self._part(everything, everything, some, picked_keys).double()
                sums = part.new_zeros(*leading, rows, len(picked_keys)).index_add_(2, places, part)
                pooled.index_add_(3, column_bins, sums)
        return self._restore(pooled.to(self.dtype))

    def summary(
        self,
        *,
        value: Tensor | None = None,
        top_k: int | None = None,
        pool: tuple[int, int] | None = None,
        segments: Tensor | None = None,
        progress: Progress | None = None,
    ) -> Summary:
        """All of the statistics, and the context, in one pass over the weights.

        It takes a little more than twice the time of one call of attention, and O(tokens) memory.

        Args:
            value: (batch, num_kv_heads, kv_len, value_head_dim), for the context.
            top_k: how many of the largest weights of each query, as in `top_k`.
            pool: rows and columns of the map, as in `pool`.
            segments: sets of keys, as in `mass`.
            progress: called as the work goes on with the share that is done, 0 to 1.

        Raises:
            ArgumentTypeError: codes `pool.type` and `progress.type`.
            ClearheadError: for a value that `attend` refuses, and as the single methods do.

        Example:
            >>> import torch, clearhead as ch
            >>> query, key, value = torch.randn(3, 1, 2, 5, 4).unbind()
            >>> weights = ch.AttentionMatrix(query, key, mask=ch.causal())
            >>> summary = weights.summary(value=value, top_k=2, pool=(5, 5))
            >>> summary
            Summary [batch=1, num_heads=2, query_len=5, kv_len=5] with context, top_k, pooled
            >>> summary.received.sum(dim=-1)
            tensor([[5.0000, 5.0000]])
        """
        problem = self.problem
        posed = None if value is None else self._with_value(value, "2")
        members = None if segments is None else self._members(segments)
        largest = None if top_k is None else self._largest(top_k)
        pooled = None
        if pool is not None:
            if not isinstance(pool, Sequence) or len(pool) != 2:
                raise ArgumentTypeError(
                    "pool.type", f"pool must be a pair (rows, columns); got {reprlib.repr(pool)}."
                )
            _check_pool(*pool, problem.query_len, problem.kv_len)
            pooled = Pooled(problem, *pool)
        mass = None if members is None else Mass(problem, members[0])
        if progress is not None and not callable(progress):
            raise ArgumentTypeError(
                "progress.type",
                f"progress must be a function of the share that is done; got "
                f"{type(progress).__name__}.",
            )
        context = None if posed is None else Context(problem, posed.value)
        total, entropy, maximum = LogSumExp(problem), Entropy(problem), Maximum(problem)
        distance, near, received = Distance(problem), Near(problem, NEAR), Received(problem)
        # The token before by position: the last query sits on the last key.
        place = torch.arange(problem.query_len, device=self.device)
        before = OfKey(problem, place + (problem.kv_len - problem.query_len - 1))
        first = OfKey(problem, torch.zeros_like(place))
        single = [total, maximum, distance, near, first, before, received, entropy]
        every = [largest, pooled, mass, context, *single]
        sweep(problem, [each for each in every if each is not None], progress)
        if self._logsumexp is None:
            self._logsumexp = total.result.clone()
        self._entropy = self._restore(entropy.result)
        self._near[NEAR] = self._restore(near.result)
        return Summary(
            logsumexp=self._restore(total.result),
            entropy=self._entropy.clone(),
            max=self._restore(maximum.result),
            distance=self._restore(distance.result),
            first=self._restore(first.result),
            previous=self._restore(before.result),
            received=self._restore(received.result),
            context=None if context is None else self._restore(context.result),
            top_k=None if largest is None else self._restored(largest),
            mass=None if mass is None or members is None else self._of_sets(mass, members[1]),
            pooled=None if pooled is None else self._restore(pooled.result),
        )

    def plot(
        self,
        kind: str = "map",
        *,
        head: int | Sequence[int] | None = None,
        sample: int = 0,
        tokens: Sequence[str] | None = None,
        source_tokens: Sequence[str] | None = None,
        log: bool = False,
        cells: int | None = None,
        ax: Any = None,
    ) -> Any:
        """Draw it with matplotlib; `figure.savefig` of the axes writes PNG, SVG and PDF.

        Args:
            kind: "map" is the weights, rows attend to columns, hidden pairs white. A number for
                each query: "entropy" (nats), "distance" (tokens), "max", "first" and "previous"
                (shares of 1), as `Summary` has them. "received" is what each key gets of all
                queries, the mean over query heads.
            head: one head; or several, or None for all, side by side, and averaged for "received".
            sample: which row of the batch.
            tokens: a word for each query, and for each key where there are as many.
            source_tokens: a word for each key.
            log: a logarithmic scale.
            cells: how many cells a side a figure has at most, 256 for one head and 64 for each of
                several by default. More tokens are pooled, as by `pool`, and the axis says how many
                a cell is; the weight of a cell is then the mean over its queries of their sum over
                its keys.
            ax: axes to draw in, an array of them for the maps of several heads; None is a new
                figure of pyplot's.

        Returns:
            The axes; for the maps of several heads an array of axes, one for each.

        Raises:
            MissingExtraError: if matplotlib is not installed.
            ArgumentError: codes `plot.kind`, `plot.option`, `plot.cells` and `plot.empty`.
            ArgumentTypeError: codes `plot.axes`, `plot.tokens` and `log.type`.
            ShapeError: codes `plot.axes` and `plot.tokens`.
            SelectionError: code `plot.part`, for no such head or sample.

        Example:
            >>> import torch, clearhead as ch
            >>> query = key = torch.randn(1, 4, 5_000, 8)
            >>> weights = ch.AttentionMatrix(query, key, mask=ch.causal())
            >>> axes = weights.plot(head=3)
            >>> print(axes.get_title(), axes.get_xlabel(), sep="\\n")
            head 3
            attended to (key)
            one cell = 20 × 20 tokens
            >>> weights.plot("received", head=0).get_ylabel()
            'the 24 keys of 5000 that receive most'
        """
        return drawing("figures").of_attention(
            self,
            kind,
            head=head,
            sample=sample,
            tokens=tokens,
            source_tokens=source_tokens,
            log=log,
            cells=cells,
            ax=ax,
        )

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

    def to_html(
        self,
        path: str | os.PathLike[str],
        *,
        tokens: Sequence[str] | Sequence[int] | Tensor | None = None,
        source_tokens: Sequence[str] | Sequence[int] | Tensor | None = None,
        title: str | None = None,
        sample: int = 0,
    ) -> Path:
        """Write the heads as a page, one file that opens offline; returns its path.

        Arguments and errors are those of `Seen.to_html`.

        Example:
            >>> import tempfile, torch, clearhead as ch
            >>> weights = ch.AttentionMatrix(torch.eye(2), torch.eye(2))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     file = weights.to_html(f"{folder}/weights.html", tokens=["to", " be"])
            ...     file.read_text()[:15]
            '<!doctype html>'
        """
        return drawing("page.heads").write_heads(
            path,
            [("", self)],
            tokens=tokens,
            source_tokens=source_tokens,
            title=title,
            sample=sample,
        )

    def __repr__(self) -> str:
        problem = self.problem
        names = ("batch", "num_heads", "query_len", "kv_len")[4 - problem.dims :]
        sizes = ", ".join(f"{name}={size}" for name, size in zip(names, self.shape, strict=True))
        mask = "" if problem.mask is None else f" mask={problem.mask.describe()}"
        return f"AttentionMatrix [{sizes}]{mask}"

    def _repr_html_(self) -> str:
        return drawing("notebook.inline.matrices").matrix_html(self)

    def _with_value(self, value: Tensor, fewer: str) -> Problem:
        """The problem with a value, for all samples and heads alike if it has two dimensions.

        `fewer` says in errors how many dimensions it may have instead of the query's.
        """
        check_tensor("value", value)
        problem = self.problem
        if value.ndim == 2 and problem.dims > 2:
            value = value.expand(problem.batch, problem.num_kv_heads, *value.shape)
        elif value.ndim == problem.dims:
            value = value[(None,) * (4 - problem.dims)]
        else:
            raise ShapeError(
                "shape.dimensions",
                f"value must have {problem.dims} dimensions like the query, or {fewer}; got shape "
                f"{tuple(value.shape)}.",
            )
        key = problem.key
        if value.shape[1] == problem.num_heads:
            key = stages.repeat_kv_heads(key, problem.num_heads)
        query, key, value = under_autocast(problem.query, key, value)
        check_fit(query, key, value)
        return problem.replace(query=query, key=key).with_value(value)

    def _gather(self, reduction: _Gathered) -> Tensor:
        sweep(self.problem, [reduction])
        return self._restore(reduction.result)

    def _largest(self, k: int) -> Largest:
        count = as_int(k)
        if count is None or not 1 <= count <= self.problem.kv_len:
            raise ArgumentError(
                "top-k.value",
                f"k must be a whole number from 1 to kv_len={self.problem.kv_len}; got {k!r}.",
            )
        return Largest(self.problem, count)

    def _restored(self, largest: Largest) -> TopK:
        return TopK(self._restore(largest.weights), self._restore(largest.keys))

    def _members(self, segments: Tensor) -> tuple[Tensor, bool]:
        """Which key is in which set, (batch or 1, kv_len, sets), and whether it is one set only."""
        problem = self.problem
        check_tensor("segments", segments, "a tensor of bool or of ints")
        if tuple(segments.shape) not in ((problem.kv_len,), (problem.batch, problem.kv_len)):
            raise ShapeError(
                "segments.shape",
                f"segments must have shape (kv_len,) = ({problem.kv_len},) or (batch, kv_len) = "
                f"{(problem.batch, problem.kv_len)}; got {tuple(segments.shape)}.",
            )
        segments = torch.atleast_2d(segments).to(self.device)
        if segments.dtype == torch.bool:
            return segments[..., None].to(self.dtype), True
        if segments.is_floating_point() or segments.is_complex():
            raise ArgumentTypeError(
                "segments.type", f"segments must be bool or whole numbers; got {segments.dtype}."
            )
        low, high = (
            (int(each) for each in torch.aminmax(segments)) if segments.numel() else (-1, -1)
        )
        if low < -1 or high >= max(1, problem.kv_len):
            raise ArgumentError(
                "segments.value",
                f"segments must be numbers from 0 to below kv_len={problem.kv_len}, or -1 for "
                f"none; got {low} to {high}.",
            )
        numbers = torch.arange(high + 1, device=self.device)
        return (segments[..., None] == numbers).to(self.dtype), False

    def _of_sets(self, mass: Mass, single: bool) -> Tensor:
        result = self._restore(mass.result)
        return result[..., 0] if single else result

    def _slice(self, given: slice | None, size: int) -> Tensor:
        if given is not None and not isinstance(given, slice):
            raise SelectionError(
                "matrix.index", f"queries and keys take a slice; got {reprlib.repr(given)}."
            )
        return as_indices(slice(None) if given is None else given, size, self.device)

    def _restore(self, tensor: Tensor) -> Tensor:
        return self.problem.restore(tensor)

    def _total(self) -> Tensor:
        if self._logsumexp is not None and not (torch.is_grad_enabled() and self._trained()):
            return self._logsumexp
        total = fused.logsumexp(self.problem)
        if total is None:
            exact = eager if blockwise.refusals(self.problem) else blockwise
            total = exact.logsumexp(self.problem)
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
        rows = as_indices(queries, problem.query_len, self.device)
        columns = as_indices(keys, problem.kv_len, self.device)
        samples = as_indices(batch, problem.batch, self.device)
        chosen_heads = as_indices(heads, problem.num_heads, self.device)
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
                scores = masked_scores(problem, samples, chosen_heads, some, columns)
                parts.append(weights_from(problem, scores, total[:, :, some], chosen_heads))
        else:
            every = torch.arange(problem.kv_len, device=self.device)
            for some in rows.split(portion):
                scores = masked_scores(problem, samples, chosen_heads, some, every)
                sinks = None if problem.sinks is None else problem.sinks[chosen_heads]
                parts.append(take(stages.weights(scores, sinks), 3, columns))
        return torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]

    def _check_fits(self, sizes: list[int]) -> None:
        wanted = self.dtype.itemsize
        for size in sizes:
            wanted *= size
        free = free_bytes(self.device)
        # Beside the result, the portions of it are held once more while they are put together.
        if 2 * wanted > free:
            raise TooLargeError(
                "matrix.too-large",
                f"{' × '.join(map(str, sizes))} weights take {format_bytes(wanted)}, and twice that "
                f"while they are put together; {format_bytes(free)} are free on {self.device}. "
                "Index the rows, keys or heads that you need.",
            )


def matrix_of(problem: Problem) -> AttentionMatrix:
    """The attention matrix of a validated problem, of four dimensions; its value is left out."""
    return AttentionMatrix._of(problem.replace(value=problem.key, dropout=None, dims=4))


def _check_pool(rows: int, columns: int, queries: int, keys: int) -> None:
    for name, given, most, of in (
        ("rows", rows, queries, "queries"),
        ("columns", columns, keys, "keys"),
    ):
        count = as_int(given)
        if count is None or not 1 <= count <= most:
            raise ArgumentError(
                "pool.size",
                f"{name} must be a whole number from 1 to the number of {of}, {most}; got "
                f"{given!r}.",
            )


def free_bytes(device: torch.device) -> int:
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
