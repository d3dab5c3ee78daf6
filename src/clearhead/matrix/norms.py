"""The norms of weighted values: how much a query receives from a key, and not only how much it attends to it."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.checks import check_tensor
from clearhead._common.elements import Drawn
from clearhead._common.torch_internals import is_transformed
from clearhead.attention.biases import DenseBias, SumOfBiases
from clearhead.attention.problem import Problem
from clearhead.errors import DtypeError, ShapeError
from clearhead.matrix.chunk import Chunk
from clearhead.matrix.indexing import (
    Index,
    as_indices,
    check_bins,
    index_of,
    read_k,
    read_pairs,
)
from clearhead.matrix.no_tensor import NoTensor
from clearhead.matrix.reductions import Largest, Pooled, Reduction
from clearhead.matrix.summary import TopK
from clearhead.matrix.sweep import sweep

if TYPE_CHECKING:
    from clearhead.matrix.matrix import AttentionMatrix


class Norms(NoTensor, Drawn):
    """weights[i, j] · ‖value_j · W‖ of each query i and key j, computed only where it is read.

    A weight alone says little of a key whose value is short: what is added to the output is their product
    (Kobayashi et al., 2020, https://arxiv.org/abs/2004.10102). W is the part of the output projection that
    belongs to a head; without it the norm is that of the value itself. Rows do not sum to 1; `shares` are
    the same rows divided by their sums. Made by `AttentionMatrix.norms` and `Seen.norms`.

    Attributes:
        matrix: the weights.
        of_values: (batch, num_heads, kv_len), the norm of each value.
        projected: True with an output projection, False for the norms of the values themselves.

    Example:
        >>> import torch, clearhead as ch
        >>> query = key = torch.zeros(3, 2)
        >>> value = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 1.0]])
        >>> norms = ch.AttentionMatrix(query, key, mask=ch.causal(), value=value).norms()
        >>> norms
        Norms [query_len=3, kv_len=3] of weights × ‖value‖
        >>> norms[2]
        tensor([1.6667, 0.0000, 0.3333])
    """

    def __init__(self, matrix: "AttentionMatrix", of_values: Tensor, *, projected: bool) -> None:
        """Store the matrix and the norms of its values, (batch, num_heads, kv_len); nothing is computed."""
        self.matrix, self.of_values, self.projected = matrix, of_values, projected

    @property
    def shape(self) -> torch.Size:
        """The shape of the norms, (batch, num_heads, query_len, kv_len), without the axes that the query lacks."""
        return self.matrix.shape

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Tensor:
        """Return the norms of some queries and keys, by the rules and with the errors of `AttentionMatrix`."""
        weights = self.matrix[index]
        axes, drop = index_of(index, self.shape)
        norms = self._four()
        for axis in (0, 1, 3):
            picked = as_indices(axes[axis][0], norms.shape[axis], norms.device)
            norms = norms.index_select(axis, picked)
        for axis in drop:
            norms = norms.squeeze(axis)
        return _times(weights, norms)

    def dense(self) -> Tensor:
        """Return all of them as a tensor, if it fits.

        Raises:
            TooLargeError: code `matrix.too-large`.
        """
        return self[...]

    def at(
        self, query_index: "int | list[int] | Tensor", key_index: "int | list[int] | Tensor"
    ) -> Tensor:
        """Return the norms of chosen pairs, (batch, num_heads, pairs).

        Arguments and errors are those of `AttentionMatrix.at`.

        Example:
            >>> import torch, clearhead as ch
            >>> query = key = torch.zeros(1, 2, 9, 4)
            >>> weights = ch.AttentionMatrix(query, key, value=torch.ones(1, 2, 9, 4))
            >>> weights.norms().at([3, 8], [0, 1])
            tensor([[[0.2222, 0.2222],
                     [0.2222, 0.2222]]])
        """
        weights = self.matrix.at(query_index, key_index)
        problem = self.matrix.posed
        sizes = (problem.batch, problem.query_len, problem.kv_len)
        _, keys, single = read_pairs(query_index, key_index, sizes)
        norms = self._four()[:, :, 0]
        found = norms.take_along_dim(keys.to(norms.device)[:, None], dim=2)
        return _times(weights, problem.restore((found[..., 0] if single else found).contiguous()))

    def total(self) -> Tensor:
        """Return the sum over the keys of each query, (batch, num_heads, query_len), upcast, in O(tokens) memory."""
        problem = self.matrix.problem
        # In 16 bits a sum would lose its digits, and a large one overflow.
        query, key = stages.upcast(problem.query), stages.upcast(problem.key)
        sinks = None if problem.sinks is None else stages.upcast(problem.sinks)
        wide = type(self.matrix)._of(problem.replace(query=query, key=key, value=key, sinks=sinks))
        with torch.autocast(query.device.type, enabled=False):
            return (wide @ self.of_values[..., None])[..., 0]

    def received(self) -> Tensor:
        """Return the sum over the queries of each key, (batch, num_heads, kv_len), in O(tokens) memory.

        Query heads are separate, because heads that share a value have their own output projections. Errors are those
        of `AttentionMatrix.mT @ x`, such as for a bias that is trained.
        """
        ones = self.of_values.new_ones(self.shape[-2])
        return _times(self.matrix.mT @ ones, self.of_values)

    def top_k(self, k: int) -> TopK:
        """Return the k largest norms of each query with their keys, detached.

        Shapes and errors are those of `AttentionMatrix.top_k`.

        Example:
            >>> import torch, clearhead as ch
            >>> query, key, value = torch.zeros(1, 2), torch.zeros(3, 2), torch.eye(3) * 6
            >>> value[1] *= 2
            >>> tuple(ch.AttentionMatrix(query, key, value=value).norms().top_k(1))
            (tensor([[4.]]), tensor([[1]]))
        """
        problem = self.matrix.posed
        largest = Largest(problem, read_k(k, problem.kv_len))
        self._sweep(largest)
        return TopK(problem.restore(largest.weights), problem.restore(largest.keys))

    def pool(self, rows: int, columns: int) -> Tensor:
        """Return a small map: sums over rectangles of queries × keys, (batch, num_heads, rows, columns), detached.

        The rectangles and errors are those of `AttentionMatrix.pool`.
        """
        problem = self.matrix.posed
        check_bins(rows, columns, problem.query_len, problem.kv_len)
        pooled = Pooled(problem, rows, columns)
        self._sweep(pooled)
        return problem.restore(pooled.result)

    def shares(self) -> "AttentionMatrix":
        """Return each row divided by its sum, as an attention matrix: the share of each key in what a query receives.

        Statistics, roles, figures, pages and rollout are those of the shares: entropy is that of what is
        received, for instance. What a sink takes counts as nothing, and to gradients the norms are constants.
        A query whose keys all have values of 0 receives nothing, and has its weights as shares.

        Example:
            >>> import torch, clearhead as ch
            >>> query = key = torch.zeros(2, 2)
            >>> value = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
            >>> ch.AttentionMatrix(query, key, value=value).norms().shares()[0]
            tensor([0.8333, 0.1667])
        """
        # softmax(scores + ln norm) = weight · norm / Σ weight · norm.
        problem, least = self.matrix.posed, torch.finfo(self.of_values.dtype).tiny
        added = DenseBias(self._four().detach().clamp(min=least).log())
        bias = added if problem.bias is None else SumOfBiases(problem.bias, added)
        shares = problem.replace(bias=bias, sinks=None)
        return type(self.matrix)._of(shares, self.matrix._value)

    def _four(self) -> Tensor:
        """Return a view of the norms of the values, (batch, num_heads, 1, kv_len)."""
        problem = self.matrix.posed
        return self.of_values.reshape(problem.batch, problem.num_heads, 1, problem.kv_len)

    def _sweep(self, reduction: Largest | Pooled) -> None:
        """Update a reduction, in place, with weights × norms instead of the weights."""
        problem = self.matrix.posed
        sweep(problem, [_OfNorms(problem, self._four()[:, :, 0].detach(), reduction)])

    def __repr__(self) -> str:
        """Return one line with the sizes; nothing is computed."""
        names = ("batch", "num_heads", "query_len", "kv_len")[-len(self.shape) :]
        sizes = ", ".join(f"{name}={size}" for name, size in zip(names, self.shape, strict=True))
        return f"Norms [{sizes}] of weights × ‖value{' · W' if self.projected else ''}‖"


class _OfNorms(Reduction):
    """A reduction that passes weights × norms to an inner reduction.

    Args:
        problem: the problem.
        norms: (batch, num_heads, kv_len), the norm of each value.
        inner: the reduction that gathers the products.
    """

    reads = frozenset({"scores", "weights"})
    destroys = frozenset({"weights"})

    def __init__(self, problem: Problem, norms: Tensor, inner: Largest | Pooled) -> None:
        """Store the norms, (batch, num_heads, kv_len), and the reduction that gets the products."""
        self.norms, self.inner = norms, inner
        self.finite = stages.all_finite(norms)

    def update(self, chunk: Chunk) -> None:
        """Multiply the weights of a chunk by the norms, in place, and pass it to the inner reduction."""
        norms = self.norms[chunk.sample, chunk.heads, None, chunk.keys]
        if chunk.visible is None:
            chunk.weights.mul_(norms)
        else:
            chunk.weights = _times(chunk.weights, norms)
        self.inner.update(chunk)


def _times(weights: Tensor, norms: Tensor) -> Tensor:
    """Return weights × norms, of shapes that broadcast.

    0 where the weight is 0, even if the norm is NaN or infinite.
    """
    if not is_transformed(norms) and stages.all_finite(norms):
        return weights * norms
    return torch.where(weights == 0, 0.0, weights * norms)


def norms_of_values(value: Tensor, num_heads: int, output: Tensor | None) -> Tensor:
    """Return ‖value · W‖ of each value in each head, (batch, num_heads, kv_len), upcast; ‖value‖ without `output`.

    The output projection gets no gradient.

    With Wᵀ = Q R, where Q preserves norms, it is ‖value · Rᵀ‖: as wide as the value, however
    wide the output is.

    Args:
        value: (batch, num_kv_heads, kv_len, value_head_dim).
        num_heads: query heads.
        output: the weight of the output projection, (output_dim, num_heads · value_head_dim), or None.

    Raises:
        ArgumentTypeError: code `output.type`, unless it is a tensor.
        DtypeError: code `norms.dtype`, for a weight that is complex or on the meta device.
        ShapeError: code `norms.output`, for a weight of another width.
    """
    value = stages.upcast(value)
    if output is None:
        return stages.repeat_kv_heads(
            torch.linalg.vector_norm(value, dim=-1)[..., None], num_heads
        )[..., 0]
    check_tensor("output", output)
    if output.is_complex() or output.is_meta:
        raise DtypeError(
            "norms.dtype",
            f"output must be of real numbers; got {output.dtype} on {output.device}.",
        )
    width = num_heads * value.shape[3]
    if output.ndim != 2 or output.shape[1] != width:
        raise ShapeError(
            "norms.output",
            f"output must have shape (output_dim, num_heads · value_head_dim) = (…, {width}), as the weight of "
            f"an nn.Linear; got {tuple(output.shape)}.",
        )
    weight = output.detach().to(value.device, value.dtype).unflatten(1, (num_heads, -1))
    factors = weight.transpose(0, 1)
    # Of few tokens it takes longer than it saves.
    if value.shape[0] * value.shape[2] > 2 * value.shape[3]:
        factors = torch.linalg.qr(factors, mode="r").R
    group = num_heads // value.shape[1]
    # Head by head: all of them at once would be as wide as the output projection. Autocast would lower it.
    with torch.autocast(value.device.type, enabled=False):
        found = [
            torch.linalg.vector_norm(value[:, head // group] @ factors[head].mT, dim=-1)
            for head in range(num_heads)
        ]
    return torch.stack(found, dim=1)
