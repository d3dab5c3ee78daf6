"""Attention rollout, through all layers, and the relevance of tokens by gradients with respect to attention weights.

These gradients are never in memory: with the context c = P v and g = dL/dc, dL/dP[i, j] = gᵢ · vⱼ, one dot product a
pair, as with the weights.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.checks import as_place, check_number
from clearhead._common.hints import with_hints
from clearhead._text import shown
from clearhead.errors import (
    ArgumentError,
    ArgumentTypeError,
    DtypeError,
    SelectionError,
    ShapeError,
)
from clearhead.matrix.chunk import Chunk
from clearhead.matrix.indexing import read_index
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.reductions import Reduction
from clearhead.matrix.sweep import sweep


@with_hints
def rollout(
    matrices: Sequence[AttentionMatrix],
    *,
    output: int | Sequence[int] | Tensor = -1,
    head: str | int = "mean",
    residual: float = 0.5,
) -> Tensor:
    """Return the influence of every input token on an output, through all layers.

    Attention rollout (Abnar & Zuidema, 2020, https://arxiv.org/abs/2005.00928): each layer passes
    on `(1 − residual) · weights + residual · identity`, and the influence is the product of all
    layers. Only the row of the output is followed, from the last layer down, as a product with one
    vector per layer: O(tokens) memory, and no matrix at any length.

    Args:
        matrices: the attention of each layer, from the first on: as many queries as keys, the same
            tokens everywhere. A layer that a watch lists as `missing` is not among what it saw, and the product
            is then not the model's. Of matrices that ranks share, across=, every rank gets the whole.
        output: which output to explain, the last one if nothing is said; several give a row each.
        head: "mean" of the heads, or the number of one head, from the end if it is negative.
        residual: share of a token that goes round the attention, 0 to 1.

    Returns:
        (batch, tokens), or (batch, outputs, tokens) for several outputs, without batch if the
        matrices have none. A row sums to 1 if no query is empty and there are no sinks.

    Raises:
        ArgumentTypeError: code `rollout.type`, unless it is a sequence of matrices.
        ArgumentError: codes `rollout.empty`, `rollout.head` and `residual.value`.
        ShapeError: code `rollout.shape`, for matrices that are not of the same tokens.
        DtypeError: code `rollout.dtype`, for weights of different precisions.
        SelectionError: codes `matrix.index` and `matrix.range`, for an output that is not there.

    Example:
        >>> import torch, clearhead as ch
        >>> query = key = torch.zeros(3, 2)
        >>> layer = ch.AttentionMatrix(query, key, mask=ch.causal())
        >>> ch.reading.rollout([layer, layer])
        tensor([0.3194, 0.2361, 0.4444])
    """
    layers = _checked(matrices)
    _check_head(head, layers)
    share = check_number("residual", residual, "a number from 0 to 1", lambda part: 0 <= part <= 1)
    last = layers[-1]
    tokens = last.shape[-1]
    if isinstance(output, slice):
        raise SelectionError(
            "matrix.index", f"output must be an int or a list of ints; got {output}."
        )
    places, single = read_index(output, tokens, -2)
    assert isinstance(places, Tensor)
    start = torch.zeros(tokens, len(places), dtype=last.dtype, device=last.device)
    start[places, torch.arange(len(places))] = 1.0
    reached = start.expand(*last.shape[:-3], tokens, len(places))
    for layer in reversed(layers):
        # Of a matrix that ranks share, the rows of this rank; products are summed over the ranks.
        mine = reached
        if layer.posed.sharding is not None:
            mine = reached.index_select(-2, layer.posed.rows)
        if layer.ndim == 2:
            passed = layer.mT @ mine
        else:
            each = layer.mT @ mine.unsqueeze(-3).expand(*layer.shape[:-1], len(places))
            passed = each.mean(dim=-3) if head == "mean" else each.select(-3, int(head))
        reached = (1 - share) * passed + share * reached
    rows = reached.mT
    return rows[..., 0, :] if single else rows


def _checked(matrices: object) -> list[AttentionMatrix]:
    """Return the layers' matrices, a sequence and no iterator, as a list; their numbers of heads may differ.

    Raises:
        ArgumentTypeError, ArgumentError, DtypeError: codes `rollout.type`, `rollout.empty`, `rollout.dtype`.
        ShapeError: code `rollout.shape`, unless all have one batch, and the same tokens as queries and as keys.
    """
    if not isinstance(matrices, Sequence) or not all(
        isinstance(each, AttentionMatrix) for each in matrices
    ):
        raise ArgumentTypeError(
            "rollout.type",
            f"matrices must be a sequence of AttentionMatrix, one a layer; got {shown(matrices)}.",
        )
    if not matrices:
        raise ArgumentError("rollout.empty", "matrices must hold one layer at least; got none.")
    first = matrices[0]
    want = (*first.shape[:-3], first.shape[-1], first.shape[-1])
    for place, each in enumerate(matrices):
        sizes = each.posed.all_queries, each.kv_len
        if (*each.shape[:-3], *sizes) != want or each.ndim != first.ndim:
            raise ShapeError(
                "rollout.shape",
                "every layer must attend from the same tokens to the same tokens; layer 0 is "
                f"{shown(first)}, layer {place} is {shown(each)}.",
            )
        if each.dtype != first.dtype:
            raise DtypeError(
                "rollout.dtype",
                "the weights of every layer must have one dtype; those of layer 0 are "
                f"{first.dtype}, those of layer {place} {each.dtype}.",
            )
    return list(matrices)


def _check_head(head: object, layers: list[AttentionMatrix]) -> None:
    """Raise ArgumentError unless `head` is "mean" or the index of a head, maybe negative, that every layer has."""
    most = min(1 if layer.ndim == 2 else layer.shape[-3] for layer in layers)
    if head != "mean" and as_place(head, most) is None:
        raise ArgumentError(
            "rollout.head",
            f'head must be "mean" or the number of a head, 0 to {most - 1}; got {shown(head)}.',
        )


class WeightGradients(NamedTuple):
    """The gradient of a number with respect to the attention weights of one call, before dropout.

    Attributes:
        matrix: the weights.
        value: (batch, num_kv_heads or num_heads, kv_len, value_head_dim).
        context: the gradient of the context, (batch, num_heads, query_len, value_head_dim).
    """

    matrix: AttentionMatrix
    value: Tensor
    context: Tensor

    def pass_on(self, rows: Tensor) -> Tensor:
        """Return rowsᵀ · mean over heads of relu(weights ∘ gradients), for each output, in one pass over the weights.

        Args:
            rows: (batch, query_len, outputs): how much each query matters to each output.

        Returns:
            (batch, kv_len, outputs): how much each key does.
        """
        passed = Relevant(self, rows)
        sweep(self.matrix.problem, [passed])
        return passed.result


class Relevant(Reduction):
    """Rowsᵀ · mean over heads of relu(weights ∘ gradients), for each output: `result` is (batch, kv_len, outputs).

    Args:
        gradients: of a call.
        rows: (batch, query_len, outputs), how much each query matters to each output.
    """

    reads = frozenset({"weights"})
    destroys = frozenset({"scores"})
    by_head = False

    def __init__(self, gradients: WeightGradients, rows: Tensor) -> None:
        """Start with zeros for `rows`, (batch, query_len, outputs), which say how much each query matters."""
        self.value, self.context, self.rows = gradients.value, gradients.context, rows
        batch, self.num_heads, _, kv_len = gradients.matrix.shape
        self.per_head = self.value.shape[1] == self.num_heads
        self.finite = all(stages.all_finite(each) for each in (self.value, self.context, rows))
        self.result = rows.new_zeros(batch, kv_len, rows.shape[2])

    def update(self, chunk: Chunk) -> None:
        """Add relu(weights ∘ gradients)ᵀ · rows of a chunk, divided by the number of heads, to the result.

        Scores are overwritten.
        """
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
    """Return the rows of the relevance of some outputs, (batch, outputs, tokens), in the dtype of the weights.

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
