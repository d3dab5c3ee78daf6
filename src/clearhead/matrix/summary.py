"""What is kept of a matrix of attention weights when the matrix itself is not: a few numbers for
each query and each key."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead._common.checks import is_number
from clearhead._common.lazy import drawing
from clearhead.errors import ArgumentError

NEAR = 8
"""The number of tokens on either side that are local."""

POINTING = ("induction", "duplicate", "previous", "first")
SPREADING = ("local", "uniform")


class TopK(NamedTuple):
    """The largest weights of each query, from the largest on.

    Attributes:
        weights: (batch, num_heads, query_len, k).
        keys: which keys have them, int64, likewise; −1 where the weight is 0.

    Example:
        >>> import torch, clearhead as ch
        >>> ch.AttentionMatrix(torch.eye(2), torch.eye(2)).top_k(1).keys
        tensor([[0],
                [1]])
    """

    weights: Tensor
    keys: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class Roles:
    """The score of each head in each role, from 0 to 1.

    Every field is (batch, num_heads), with the leading dimensions that the query had. It is the
    mean over the queries that have the choice: they may see a key that the role asks for, and
    another. Where there is no such query it is 0.

    Attributes:
        previous: the weight on the token before.
        first: the weight on the first token of the sample: an attention sink (Xiao et al., 2024,
            https://arxiv.org/abs/2309.17453).
        duplicate: the weight on earlier occurrences of the same token, the last eight of them; None
            without tokens.
        induction: the weight on the tokens behind these occurrences, those that the query sees:
            prefix matching (Olsson et al., 2022, https://arxiv.org/abs/2209.11895); None without
            tokens.
        local: the weight on the token itself and eight tokens on either side.
        uniform: how even the weights are over the visible keys, as entropy / ln(number of keys):
            the evenness of Pielou (1966). What a sink parameter takes counts as nowhere.

    Example:
        >>> import torch, clearhead as ch
        >>> query = key = torch.zeros(1, 2, 20, 4)
        >>> found = ch.roles(ch.AttentionMatrix(query, key, mask=ch.causal()))
        >>> found
        Roles [batch=1, num_heads=2] of previous, first, local, uniform
        >>> found.uniform, found.names()
        (tensor([[1., 1.]]), [['uniform', 'uniform']])
    """

    previous: Tensor
    first: Tensor
    duplicate: Tensor | None = None
    induction: Tensor | None = None
    local: Tensor
    uniform: Tensor

    def names(self, threshold: float = 0.5) -> list[Any] | str:
        """The leading role of each head, "" where none reaches the threshold.

        A role that points at a token (previous, first, duplicate, induction) goes before one that
        tells how the weight is spread (local, uniform), since the token before is local as well.

        Args:
            threshold: the least that a role must reach, above 0 and up to 1.

        Returns:
            A list of strings per sample; one list for a matrix without batch, and one string for
            one without heads.

        Raises:
            ArgumentError: code `roles.threshold`, for another threshold.

        Example:
            >>> import torch, clearhead as ch
            >>> token = torch.eye(30)
            >>> query = 50 * torch.stack([token, token.roll(1, dims=0)])  # itself, the one before
            >>> matrix = ch.AttentionMatrix(query, torch.stack([token, token]), mask=ch.causal())
            >>> ch.roles(matrix).names()
            ['local', 'previous']
        """
        if not is_number(threshold) or not 0 < threshold <= 1:
            raise ArgumentError(
                "roles.threshold",
                f"threshold must be a number above 0 and up to 1; got {threshold!r}.",
            )
        known: list[str] = []
        leading = torch.full_like(self.previous, -1, dtype=torch.int64)
        for group in (SPREADING, POINTING):
            scores = {name: getattr(self, name) for name in group}
            scores = {name: score for name, score in scores.items() if score is not None}
            highest, which = torch.stack(list(scores.values())).max(dim=0)
            leading = torch.where(highest >= threshold, which + len(known), leading)
            known += scores
        return _spelled(leading.tolist(), [*known, ""])

    def __repr__(self) -> str:
        names = ("batch", "num_heads")[2 - self.previous.ndim :]
        sizes = [f"{name}={size}" for name, size in zip(names, self.previous.shape, strict=True)]
        fields = ("previous", "first", "duplicate", "induction", "local", "uniform")
        there = [name for name in fields if getattr(self, name) is not None]
        return f"Roles [{', '.join(sizes)}] of {', '.join(there)}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Summary:
    """The matrix of attention weights in O(tokens) numbers.

    Tensors have the leading dimensions that the query had; without batch, heads or both, those
    axes are missing. Weights are those before dropout; what sinks take is not counted.

    Attributes:
        logsumexp: log Σ exp of the masked scores, (batch, num_heads, query_len), nats.
        entropy: −Σ weight · ln weight, (batch, num_heads, query_len), nats.
        max: the largest weight, (batch, num_heads, query_len).
        distance: Σ weight · |query position − key position|, (batch, num_heads, query_len), tokens.
        first: the weight on the first key, (batch, num_heads, query_len).
        previous: the weight on the token before, (batch, num_heads, query_len); 0 where none is.
        received: the weight that each key gets from all queries, summed over the query heads that
            share it, (batch, num_kv_heads, kv_len).
        context: weights times values, (batch, num_heads, query_len, value_head_dim), if asked for.
        top_k: the largest weights and their keys, if asked for.
        mass: the weight on sets of keys, (batch, num_heads, query_len[, segments]), if asked for.
        pooled: the matrix summed over rectangles, (batch, num_heads, rows, columns), if asked for.
        roles: what kind of heads they are, if a watch found it out.
        real: (batch, query_len), bool: the queries that are no padding, if a watch found some.

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

    @property
    def query_len(self) -> int:
        """The number of queries."""
        return self.entropy.shape[-1]

    @property
    def kv_len(self) -> int:
        """The number of keys."""
        return self.received.shape[-1]

    def plot(
        self,
        kind: str = "map",
        *,
        head: int | Sequence[int] | None = None,
        sample: int = 0,
        tokens: Sequence[str] | None = None,
        source_tokens: Sequence[str] | None = None,
        log: bool = False,
        ax: Any = None,
    ) -> Any:
        """Draw it with matplotlib, as `AttentionMatrix.plot` does.

        Args:
            kind: as there; "map" is what `pooled` holds.
            head, sample, tokens, source_tokens, log, ax: as there.

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
        return drawing("figures").of_attention(
            self,
            kind,
            head=head,
            sample=sample,
            tokens=tokens,
            source_tokens=source_tokens,
            log=log,
            ax=ax,
        )

    def __repr__(self) -> str:
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
        return drawing("notebook.inline.matrices").matrix_html(self)


def _spelled(places: Any, known: list[str]) -> list[Any] | str:
    """Numbers in nested lists, as the names that they stand for."""
    if isinstance(places, int):
        return known[places]
    return [_spelled(each, known) for each in places]
