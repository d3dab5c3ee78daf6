"""The summary of a matrix of attention weights: a few numbers for each query and each key.

It is kept when query and key are not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor

from clearhead._common.checks import as_place
from clearhead._common.hints import with_hints
from clearhead._common.lazy import drawing
from clearhead._text import shown
from clearhead.errors import SelectionError
from clearhead.matrix.head_numbers import Roles
from clearhead.sharding.sharding import Sharding


class PlotOptions(TypedDict, total=False):
    """The options of a figure of heads, as `AttentionMatrix.plot` takes them."""

    head: int | Sequence[int] | None
    sample: int
    tokens: Sequence[str] | None
    source_tokens: Sequence[str] | None
    ax: Any


class TopK(NamedTuple):
    """The largest weights of each query, from the largest on.

    Attributes:
        weights: (batch, num_heads, query_len, k).
        keys: the keys that have them, int64, of the same shape; −1 where the weight is 0.

    Example:
        >>> import torch, clearhead as ch
        >>> ch.AttentionMatrix(torch.eye(2), torch.eye(2)).top_k(1).keys
        tensor([[0],
                [1]])
    """

    weights: Tensor
    keys: Tensor


ROWS = (
    "logsumexp",
    "entropy",
    "max",
    "max_score",
    "distance",
    "first",
    "previous",
    "context",
    "top_k",
    "mass",
)
"""The fields that are numbers of each query."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Summary:
    """The matrix of attention weights in O(tokens) numbers.

    Tensors have the leading dimensions that the query had; without batch, heads or both, those
    axes are missing. Weights are those before dropout; what sinks take is not counted.

    Attributes:
        logsumexp: log Σ exp of the masked scores, (batch, num_heads, query_len), nats.
        entropy: −Σ weight · ln weight, (batch, num_heads, query_len), nats.
        max: the largest weight, (batch, num_heads, query_len).
        max_score: the largest score, as the softmax gets it, (batch, num_heads, query_len).
        distance: Σ weight · `|query position − key position|`, (batch, num_heads, query_len), tokens.
        first: the weight on the first key, (batch, num_heads, query_len).
        previous: the weight on the token before, (batch, num_heads, query_len); 0 where none is.
        received: the weight that each key gets from all queries, summed over the query heads that
            share it, (batch, num_kv_heads, kv_len).
        context: weights times values, (batch, num_heads, query_len, value_head_dim), if asked for.
        top_k: the largest weights and their keys, if asked for.
        mass: the weight on sets of keys, (batch, num_heads, query_len[, segments]), if asked for.
        pooled: the matrix summed over rectangles, (batch, num_heads, rows, columns), if asked for.
        roles: what kind of heads they are, if a watch found it out.
        real: (batch, query_len), bool: the queries that are not padding, if a watch found any.
        cross: True if the keys are of another text than the queries; `distance` and `previous` then
            compare the places of two texts.
        heads: the number of each head in its layer, where it is of some only; None where all are here.

    Example:
        >>> import torch, clearhead as ch
        >>> query = key = torch.zeros(3, 2)
        >>> summary = ch.AttentionMatrix(query, key, mask=ch.causal()).summary()
        >>> summary
        Summary [query_len=3, kv_len=3]
        >>> summary.first
        tensor([1.0000, 0.5000, 0.3333])
    """

    logsumexp: Tensor
    entropy: Tensor
    max: Tensor
    max_score: Tensor
    distance: Tensor
    first: Tensor
    previous: Tensor
    received: Tensor
    context: Tensor | None = None
    top_k: TopK | None = None
    mass: Tensor | None = None
    pooled: Tensor | None = None
    roles: Roles | None = None
    real: Tensor | None = None
    cross: bool = False
    heads: tuple[int, ...] | None = None

    @property
    def ndim(self) -> int:
        """The number of dimensions of the matrix that it summarises, 2 to 4."""
        return self.entropy.ndim + 1

    @property
    def batch(self) -> int:
        """The number of samples; 1 without that axis."""
        return self.entropy.shape[0] if self.ndim == 4 else 1

    @property
    def num_heads(self) -> int:
        """The number of query heads; 1 without that axis."""
        return self.entropy.shape[-2] if self.ndim > 2 else 1

    @property
    def num_kv_heads(self) -> int:
        """The number of key heads; 1 without that axis."""
        return self.received.shape[-2] if self.ndim > 2 else 1

    @property
    def query_len(self) -> int:
        """The number of queries."""
        return self.entropy.shape[-1]

    @property
    def kv_len(self) -> int:
        """The number of keys."""
        return self.received.shape[-1]

    def _statistic(self, name: str) -> Tensor:
        """Return a field by its name, as a view with axes of batch and heads.

        It is (batch, num_heads, query_len), and for "received" (batch, num_kv_heads, kv_len).
        """
        field = getattr(self, name)
        return field.reshape((1,) * (4 - self.ndim) + field.shape)

    def sample(self, index: int) -> "Summary":
        """Return the summary of one sample, which keeps its axes of batch, of size 1, and heads.

        Args:
            index: the row of the batch, negative from the last.

        Raises:
            SelectionError: code `summary.sample`, for no such row.

        Example:
            >>> import torch, clearhead as ch
            >>> query = key = torch.zeros(2, 3, 5, 4)
            >>> ch.AttentionMatrix(query, key).summary().sample(1)
            Summary [batch=1, num_heads=3, query_len=5, kv_len=5]
        """
        number = as_place(index, self.batch)
        if number is None:
            raise SelectionError(
                "summary.sample", f"there is no sample {shown(index)} in a batch of {self.batch}."
            )
        row = slice(number, number + 1)

        def one(tensor: Tensor) -> Tensor:
            """Return the sample's part of a tensor, with axes of batch and heads."""
            return tensor.reshape((1,) * (4 - self.ndim) + tensor.shape)[row]

        real = None if self.real is None else torch.atleast_2d(self.real)[row]
        return replace(each_tensor(replace(self, real=None), one), real=real)

    def gather(self, across: Sharding) -> "Summary":
        """Return the summary of all queries, from that of each rank; every rank must call it, and gets the same.

        Fields that are sums over queries, `received` and `pooled`, are those of all ranks already.

        Args:
            across: the sharding of the queries of the matrix.

        Raises:
            ShapeError: code `across.rows`, for other queries than those of a rank.
            RankError: codes `across.rank`, `across.differ` and `across.lost`.

        Example:
            >>> import torch, clearhead as ch
            >>> import torch.distributed as dist
            >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            >>> where = ch.across(dist.group.WORLD, tokens=5)
            >>> query = key = where.shard(torch.zeros(5, 4))
            >>> ch.AttentionMatrix(query, key, across=where).summary().gather(where)
            Summary [query_len=5, kv_len=5]
            >>> dist.destroy_process_group()
        """
        rows = self.entropy.ndim - 1
        found = {
            name: each_tensor(getattr(self, name), lambda tensor: across.gather(tensor, dim=rows))
            for name in ROWS
        }
        real = None if self.real is None else across.gather(self.real, dim=1)
        return replace(self, **found, real=real)

    @with_hints
    def plot(self, kind: str = "map", **options: Unpack[PlotOptions]) -> Any:
        """Draw the summary with matplotlib, as `AttentionMatrix.plot` does.

        Args:
            kind: as there; "map" is what `pooled` holds.
            head, sample, tokens, source_tokens, ax: as there; the map has the cells of `pooled`.

        Returns:
            The axes; for the maps of several heads an array of axes, one for each.

        Raises:
            ArgumentError: code `plot.kind`, also for the map of a summary that holds none; and what
                `AttentionMatrix.plot` raises.

        Example:
            >>> import torch, clearhead as ch
            >>> query = key = torch.zeros(3, 2)
            >>> summary = ch.AttentionMatrix(query, key, mask=ch.causal()).summary()
            >>> axes = summary.plot("entropy", tokens=["to", "be", "or"])
            >>> axes.get_ylabel(), axes.lines[0].get_ydata().round(2).tolist()
            ('entropy (nats)', [0.0, 0.69, 1.1])
        """
        return drawing("figures").of_attention(self, kind, **options)

    def __repr__(self) -> str:
        """Return one line with the sizes and the names of the optional fields that are set."""
        names = ("batch", "num_heads", "query_len")[3 - self.entropy.ndim :]
        sizes = [f"{name}={size}" for name, size in zip(names, self.entropy.shape, strict=True)] + [
            f"kv_len={self.kv_len}"
        ]
        extra = [
            name
            for name in ("context", "top_k", "mass", "pooled", "roles")
            if getattr(self, name) is not None
        ]
        more = f" with {', '.join(extra)}" if extra else ""
        return f"Summary [{', '.join(sizes)}]{more}"

    def _repr_html_(self) -> str:
        """Return the summary as HTML for a notebook; the drawing is imported on first use."""
        return drawing("notebook.inline.matrices").matrix_html(self)


def each_tensor(kept: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of a dataclass or TopK with `change` applied to every tensor in it, also in nested fields.

    A tensor is changed itself; None, bools and tuples are returned unchanged.
    """
    if isinstance(kept, Tensor):
        return change(kept)
    if isinstance(kept, TopK):
        return TopK(*map(change, kept))
    if kept is None or isinstance(kept, bool | tuple):
        return kept
    every = {field.name: each_tensor(getattr(kept, field.name), change) for field in fields(kept)}
    return type(kept)(**every)
