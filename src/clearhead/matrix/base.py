"""The matrix of a problem: its sizes, its logsumexp, and the parts that everything else is made of."""

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.checks import check_tensor
from clearhead._common.memory import within_memory
from clearhead.attention.kernels import blockwise, eager, fused
from clearhead.attention.problem import Problem, check_fit, make_problem, under_autocast
from clearhead.errors import ArgumentError, DtypeError, ShapeError, UnsupportedError
from clearhead.masks.base import Mask
from clearhead.masks.dense import dense
from clearhead.matrix.no_tensor import NoTensor
from clearhead.matrix.norms import Norms, norms_of_values
from clearhead.matrix.parts import (
    check_fits,
    from_every_key,
    from_logsumexp,
    is_narrow,
    is_one_portion,
    rectangle,
)
from clearhead.matrix.real_queries import real_queries

if TYPE_CHECKING:
    from clearhead.matrix.matrix import AttentionMatrix


class BaseMatrix(NoTensor):
    """The weights of a validated problem, computed only when they are read; no argument is copied or changed.

    Args:
        problem: the query and the key; its value is not read.
        value: (batch, num_kv_heads, kv_len, value_head_dim), what the weights are multiplied by in the call; None if
            it is not known.
    """

    def __init__(self, problem: Problem, value: Tensor | None = None) -> None:
        """Store the problem, whose value is not read, and the value apart from it; nothing is computed."""
        # Next to the problem, so that no weight depends on it, as a NaN in it would make them.
        self._value = value
        # Where the ranks of a ring have the keys, its key has no numbers: sizes and sweeps go by it.
        self.posed = problem
        self._gathered: Problem | None = None
        self._tokens: Tensor | None = None
        self._context: Tensor | None = None
        # Computed once. Callers get a copy, which they may write to.
        self._logsumexp: Tensor | None = None

    @property
    def problem(self) -> Problem:
        """The problem of this matrix, with every key; a matrix of a ring gathers the keys of all ranks.

        They are cached unless they require gradients. Until they are cached, every rank must read it together.
        """
        part = self.posed.part
        if part is None or part.rounds is None:
            return self.posed
        if self._gathered is None:
            key = part.rounds.gather()
            whole = self.posed.replace(key=key, value=key, part=part._replace(rounds=None))
            # What hangs on a graph is not kept.
            if key.requires_grad:
                return whole
            self._gathered = whole
        return self._gathered

    @property
    def value(self) -> Tensor | None:
        """The value, (batch, num_kv_heads, kv_len, value_head_dim); None where it is not known.

        It has as many dimensions as the query. `watch(model, values=True)` keeps it.

        Example:
            >>> import torch, clearhead as ch
            >>> query, key, value = torch.zeros(2, 4), torch.zeros(3, 4), torch.zeros(3, 5)
            >>> ch.AttentionMatrix(query, key).value is None
            True
            >>> ch.AttentionMatrix(query, key, value=value).value.shape
            torch.Size([3, 5])
        """
        return None if self._value is None else self._restore(self._value)

    @property
    def context(self) -> Tensor | None:
        """The context of each head, z = weights · values, (batch, num_heads, query_len, value_head_dim).

        It is the one that the model used; None unless a watch recorded it: `watch(model, contexts=True)`.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = ch.MultiHeadAttention(8, num_heads=2)
            >>> with torch.no_grad(), ch.watch(layer, contexts=True) as seen:
            ...     output = layer(torch.randn(1, 5, 8))
            >>> seen[0].context.shape
            torch.Size([1, 2, 5, 4])
        """
        return self._context

    @property
    def mask(self) -> Mask | None:
        """The mask, True = may attend, as a description where it is a known pattern; None if there is none.

        A bias of −∞ hides as well, and is not in it.
        """
        return self.posed.mask

    @property
    def tokens(self) -> Tensor | None:
        """The ids of its keys, (batch, kv_len), where a watch knew them; None otherwise. `roles` reads them.

        Example:
            >>> import torch, clearhead as ch
            >>> ch.AttentionMatrix(torch.zeros(2, 4), torch.zeros(3, 4)).tokens is None
            True
        """
        return self._tokens

    def norms(self, output: Tensor | None = None) -> Norms:
        """Return the norms of weighted values: weights × ‖value · W‖ (Kobayashi et al., 2020).

        Args:
            output: the weight of the layer's output projection, (output_dim, num_heads · value_head_dim), as
                that of an nn.Linear, which gets no gradient; None for the norms of the values themselves.
                `Seen.norms` finds it.

        Raises:
            ArgumentError: code `norms.value`, for a matrix without its value.
            ArgumentTypeError: code `output.type`.
            DtypeError: code `norms.dtype`.
            ShapeError: code `norms.output`.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = ch.MultiHeadAttention(8, num_heads=2)
            >>> with torch.no_grad(), ch.watch(layer, values=True) as seen:
            ...     output = layer(torch.randn(1, 100, 8))
            >>> norms = seen[0].norms(layer.output_projection.weight)
            >>> norms
            Norms [batch=1, num_heads=2, query_len=100, kv_len=100] of weights × ‖value · W‖
            >>> norms[0, 1, 99].shape, norms.received().shape
            (torch.Size([100]), torch.Size([1, 2, 100]))
        """
        if self._value is None:
            raise ArgumentError(
                "norms.value",
                "norms need the value of the call, which this matrix does not have: "
                "watch(model, values=True), or AttentionMatrix(…, value=…).",
            )
        found = norms_of_values(self._value, self.num_heads, output)
        matrix = cast("AttentionMatrix", self)
        return Norms(matrix, self._restore(found), projected=output is not None)

    @property
    def shape(self) -> torch.Size:
        """The shape of the matrix, (batch, num_heads, query_len, kv_len), without axes the query lacks.

        With `across` the queries are those of this rank, and the keys those of all.
        """
        problem = self.posed
        sizes = (problem.batch, problem.num_heads, problem.query_len, problem.kv_len)
        return torch.Size(sizes[4 - problem.dims :])

    @property
    def ndim(self) -> int:
        """The number of dimensions, equal to that of the query."""
        return self.posed.dims

    @property
    def batch(self) -> int:
        """The number of samples; 1 without that axis."""
        return self.posed.batch

    @property
    def num_heads(self) -> int:
        """The number of query heads; 1 without that axis."""
        return self.posed.num_heads

    @property
    def num_kv_heads(self) -> int:
        """The number of key heads; 1 without that axis."""
        return self.posed.num_kv_heads

    @property
    def query_len(self) -> int:
        """The number of queries; with `across`, of this rank."""
        return self.posed.query_len

    @property
    def kv_len(self) -> int:
        """The number of keys."""
        return self.posed.kv_len

    @property
    def heads(self) -> Tensor | None:
        """The number of each head in its layer, int64, (num_heads,); None if all heads of the layer are here."""
        return None if self.posed.part is None else self.posed.part.heads

    @property
    def real(self) -> Tensor | None:
        """The queries that are not padding, bool, (batch, query_len); None if nothing hides keys, or if unknown."""
        return real_queries(self.posed)

    @property
    def cross(self) -> bool:
        """True if the keys belong to another text than the queries."""
        return self.posed.cross

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights: float32 for 16-bit inputs, otherwise the dtype of the query."""
        return stages.upcast(self.posed.query[:0]).dtype

    @property
    def device(self) -> torch.device:
        """The device of the query and of every result."""
        return self.posed.device

    def check_whole(self, verb: str) -> None:
        """Raise UnsupportedError if this matrix has the queries of one rank, and all are needed.

        Args:
            verb: the name of the operation, for the error.

        Raises:
            UnsupportedError: code `across.whole`.
        """
        if self.posed.sharding is not None:
            raise UnsupportedError(
                "across.whole",
                f"{verb} needs the queries of all ranks; this matrix has {self.query_len} of "
                f"{self.posed.all_queries}. Gather query and key, and make it without across=.",
            )

    @property
    def nbytes(self) -> int:
        """The size in bytes that a tensor of this shape and dtype would have in memory."""
        return self.shape.numel() * self.dtype.itemsize

    @property
    def logsumexp(self) -> Tensor:
        """Log Σ exp of each query's masked scores, (batch, num_heads, query_len), in nats.

        −∞ for a query that may attend to nothing; sinks are not counted. In O(tokens) memory; computed once unless it
        has gradients. Each call returns a copy.
        """
        return self._restore(self._total()).clone()

    def _restore(self, tensor: Tensor) -> Tensor:
        """Return a result, (batch, num_heads, …), without the leading axes that the user's query lacks."""
        return self.posed.restore(tensor)

    def _total(self) -> Tensor:
        """Return the logsumexp of each query, without sinks, (batch, num_heads, query_len).

        It is computed once and stored, unless it has gradients. The caller must not write to it.
        """
        if self._logsumexp is not None and not (torch.is_grad_enabled() and self._trained()):
            return self._logsumexp
        part = self.posed.part
        if part is not None and part.rounds is not None and not self._trained():
            total = part.rounds.logsumexp()
        else:
            problem = self.problem
            total = fused.logsumexp(problem)
            if total is None:
                exact = eager if blockwise.refusals(problem) else blockwise
                total = exact.logsumexp(problem)
        # What hangs on a graph is not kept: a graph can be walked once, and takes memory.
        if not total.requires_grad:
            self._logsumexp = total
        return total

    def _trained(self) -> bool:
        """Return True if query, key, bias or sinks require grad, whatever the grad mode."""
        problem = self.posed
        parts = problem.query, problem.key, problem.bias, problem.sinks
        return any(each is not None and each.requires_grad for each in parts)

    def _part(
        self,
        batch: Tensor | slice,
        heads: Tensor | slice,
        queries: Tensor | slice,
        keys: Tensor | slice,
    ) -> Tensor:
        """Return the weights at some samples, heads, queries and keys, always with four dimensions.

        A tensor holds int64 indices. Raises TooLargeError if the part does not fit in memory. The logsumexp of all
        queries may be computed and stored.
        """
        problem = self.problem
        part = rectangle(problem, batch, heads, queries, keys)
        check_fits(part, self.dtype)
        with within_memory("Index the rows, keys or heads that you need."):
            if is_narrow(problem, part, known=self._logsumexp is not None):
                return from_logsumexp(problem, part, self._total()[part.samples][:, part.heads])
            return from_every_key(problem, part)

    def _from_rows(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Return the weights of pairs, (batch, num_heads, pairs), from the rows of their queries.

        None if the logsumexp is stored, the matrix is sharded, or so many rows are read that `_total` is cheaper.

        Args:
            queries: int64, (batch or 1, pairs).
            keys: the same for the keys.
        """
        if self._logsumexp is not None or self.posed.sharding is not None:
            return None
        problem = self.problem
        rows, places = queries.unique(return_inverse=True)
        part = rectangle(problem, slice(None), slice(None), rows)
        if not is_one_portion(problem, part):
            return None
        sample, head = part.samples[:, None, None], part.heads[:, None]
        return from_every_key(problem, part)[sample, head, places[:, None], keys[:, None]]

    def _with_value(self, value: Tensor, fewer: str, *, posed: bool = False) -> Problem:
        """Return the problem with another value; raise a ClearheadError if the value does not fit.

        A value of two dimensions is shared by all samples and heads; one with a head per query repeats the keys. The
        error message names `fewer` as the other number of dimensions. With `posed`, the keys of a ring are not
        gathered.
        """
        check_tensor("value", value)
        problem = self.posed if posed else self.problem
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


def problem_of_weights(weights: object) -> Problem:
    """Return a problem whose weights are the given ones, (…, query_len, kv_len), detached and upcast.

    The logarithms of the weights are its bias, its scores are 0, and a weight of 0 is masked.

    Raises:
        ArgumentTypeError: codes `weights.type` and `weights.layout`.
        ShapeError, DtypeError: codes `weights.shape` and `weights.dtype`.
        ArgumentError: code `weights.value`, for a row that does not sum to 0 or 1, or a negative weight.
    """
    check_tensor("weights", weights)
    assert isinstance(weights, Tensor)
    if not 2 <= weights.ndim <= 4:
        raise ShapeError(
            "weights.shape",
            "weights must have shape (batch, num_heads, query_len, kv_len), or fewer leading "
            f"dimensions; got {tuple(weights.shape)}.",
        )
    if not weights.is_floating_point():
        raise DtypeError("weights.dtype", f"weights must be real numbers; got {weights.dtype}.")
    given = weights.detach().to(torch.promote_types(weights.dtype, torch.float32))
    # Half a step of its dtype off in each weight, and what a softmax over many keys loses.
    allowed = torch.finfo(weights.dtype).eps + 1e-5
    total = given.sum(dim=-1)
    bad = ~((total - 1).abs() <= allowed) & (total != 0) | (given < 0).any(dim=-1)
    if bad.any():
        place = tuple(bad.nonzero()[0].tolist())
        raise ArgumentError(
            "weights.value",
            f"weights must be 0 to 1, and every row must sum to 1 or to 0; row {place} sums to "
            f"{total[place].item():.6g}. Weights after dropout do not.",
        )
    given = given[(None,) * (4 - given.ndim)]
    seen = given > 0
    nothing = given.new_zeros(*given.shape[:2], 1, 1)
    query, key = (nothing.expand(-1, -1, length, 1) for length in given.shape[2:])
    bias = given.masked_fill(~seen, 1.0).log()
    mask = None if seen.all() else dense(seen)
    return make_problem(query, key, key, mask=mask, bias=bias).replace(dims=weights.ndim)
