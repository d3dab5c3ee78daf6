"""The relevance of tokens, by the gradients of a number with respect to attention weights, which are never in memory.

With the context c = P v and g = dL/dc, dL/dP[i, j] = gᵢ · vⱼ: one dot product a pair, as with the weights.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead import stages
from clearhead.matrix.chunk import Chunk
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.reductions import Reduction
from clearhead.matrix.sweep import sweep


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
