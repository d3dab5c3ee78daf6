"""The gradients of a number with respect to attention weights, a matrix that is never there, and the
relevance of tokens that follows from them.

With the context c = P v and g = dL/dc, dL/dP[i, j] = gᵢ · vⱼ: one dot product a pair, as with the weights.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.checks import check_tensor
from clearhead._common.elements import Drawn
from clearhead.errors import DtypeError, ShapeError
from clearhead.matrix.chunk import Chunk
from clearhead.matrix.indexing import Index, as_indices, index_of, read_pairs
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.reductions import Reduction
from clearhead.matrix.sweep import sweep


class WeightGradients(Drawn):
    """The gradient of a number with respect to the attention weights of one call, before dropout.

    Nothing of it is computed until it is asked for. A hidden pair has one too, beside a weight of 0.

    Attributes:
        matrix: the weights.
        value: (batch, num_kv_heads or num_heads, kv_len, value_head_dim).
        context: the gradient of the context, (batch, num_heads, query_len, value_head_dim).

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2)
        >>> with ch.watch(layer, keep="gradients") as seen:
        ...     output = layer(torch.randn(1, 5, 8))
        >>> gradients = ch.weight_gradients(seen, output[0, -1].sum())[""]
        >>> gradients, gradients[0, :, -1].shape
        (WeightGradients [1, 2, 5, 5], torch.Size([2, 5]))
        >>> bool((gradients[:, :, :-1] == 0).all())  # the last output depends on the last row alone
        True
    """

    def __init__(self, matrix: AttentionMatrix, value: Tensor, context: Tensor) -> None:
        self.matrix, self.value, self.context = matrix, value, context

    @property
    def shape(self) -> torch.Size:
        """(batch, num_heads, query_len, kv_len)."""
        return self.matrix.shape

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Tensor:
        """Gradients of some queries and keys, indexed as an `AttentionMatrix`.

        Raises:
            SelectionError: for an index out of range or of another kind.
        """
        picked, drop = index_of(index, self.shape)
        device = self.context.device
        batch, heads, queries, keys = (
            as_indices(each, size, device)
            for (each, _), size in zip(picked, self.shape, strict=True)
        )
        group = self.shape[1] // self.value.shape[1]
        context = stages.upcast(self.context[batch][:, heads][:, :, queries])
        value = stages.upcast(self.value[batch][:, heads // group][:, :, keys])
        part = context @ value.mT
        for axis in drop:
            part = part.squeeze(axis)
        return part

    def at(
        self, query_index: int | Sequence[int] | Tensor, key_index: int | Sequence[int] | Tensor
    ) -> Tensor:
        """The gradients of chosen pairs, (batch, num_heads, pairs); arguments and errors as
        `AttentionMatrix.at` has them."""
        batch, _, query_len, kv_len = self.shape
        queries, keys, single = read_pairs(query_index, key_index, (batch, query_len, kv_len))
        value = stages.repeat_kv_heads(self.value, self.shape[1])
        context, value = (
            stages.upcast(each.take_along_dim(places.to(each.device)[:, None, :, None], dim=2))
            for each, places in ((self.context, queries), (value, keys))
        )
        found = torch.linalg.vecdot(context, value)
        return found[..., 0] if single else found

    def pass_on(self, rows: Tensor) -> Tensor:
        """Return rows · mean over heads of relu(weights ∘ gradients), in one pass over the weights.

        Args:
            rows: (batch, query_len, outputs): how much each query matters to each output.

        Returns:
            (batch, kv_len, outputs): how much each key does.

        Raises:
            ArgumentTypeError: code `rows.type`.
            ShapeError: code `rows.shape`.
            DtypeError: code `rows.dtype`, for another dtype than that of the weights.
        """
        problem = self.matrix.problem
        check_tensor("rows", rows)
        sizes, dtype = (problem.batch, problem.query_len), self.matrix.dtype
        if rows.ndim != 3 or rows.shape[:2] != sizes:
            raise ShapeError(
                "rows.shape",
                f"rows must have shape (batch, query_len, outputs) = ({sizes[0]}, {sizes[1]}, …); got "
                f"{tuple(rows.shape)}.",
            )
        if rows.dtype != dtype:
            raise DtypeError(
                "rows.dtype", f"rows must have the dtype of the weights, {dtype}; got {rows.dtype}."
            )
        passed = Relevant(self, rows)
        sweep(problem, [passed])
        return passed.result

    def __repr__(self) -> str:
        return f"WeightGradients {list(self.shape)}"


class Relevant(Reduction):
    """Rows · mean over heads of relu(weights ∘ gradients): `result` is (batch, kv_len, outputs)."""

    reads = frozenset({"weights"})
    destroys = frozenset({"scores"})
    by_head = False

    def __init__(self, gradients: WeightGradients, rows: Tensor) -> None:
        self.value, self.context, self.rows = gradients.value, gradients.context, rows
        batch, self.num_heads, _, kv_len = gradients.shape
        self.per_head = self.value.shape[1] == self.num_heads
        self.finite = all(stages.all_finite(each) for each in (self.value, self.context, rows))
        self.result = rows.new_zeros(batch, kv_len, rows.shape[2])

    def update(self, chunk: Chunk) -> None:
        heads, queries, keys = chunk.weights.shape
        value = self.value[chunk.sample, chunk.heads if self.per_head else chunk.kv_heads]
        value = stages.upcast(value[:, chunk.columns])
        context = stages.upcast(self.context[chunk.place])
        # In the place of the scores; the queries of heads that share a key stand below each other.
        shape = (value.shape[0], heads // value.shape[0] * queries)
        products = chunk.scores.view(*shape, keys)
        torch.bmm(context.reshape(*shape, -1), value.mT, out=products)
        products = products.relu_().view(heads, queries, keys).mul_(chunk.weights)
        if chunk.visible is not None:
            products.masked_fill_(~chunk.visible, 0.0)
        passed = products.sum(dim=0).mT @ self.rows[chunk.sample, chunk.queries]
        self.result[chunk.sample, chunk.columns] += passed / self.num_heads


def relevance_of(layers: Sequence[WeightGradients], outputs: Tensor) -> Tensor:
    """Return the rows of the relevance of some outputs, (batch, outputs, tokens).

    Each layer makes R ← R + mean over heads of relu(weights ∘ gradients) · R, from the identity on; a
    row of R is followed from the last layer down. Queries are the last of the keys.

    Args:
        layers: in the order in which they ran, with as many keys each.
        outputs: int64, (outputs,): the places of the outputs among the keys.
    """
    last = layers[-1].matrix
    tokens = last.kv_len
    rows = torch.zeros(last.batch, tokens, len(outputs), dtype=last.dtype, device=last.device)
    rows[:, outputs, torch.arange(len(outputs), device=rows.device)] = 1.0
    for layer in reversed(layers):
        rows = rows + layer.pass_on(rows[:, tokens - layer.matrix.query_len :])
    return rows.mT
