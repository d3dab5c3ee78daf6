"""Results of a whole record: its norms, its difference to another, the kernel of each layer."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead._common.checks import as_place
from clearhead._common.rows import MeasuredRows
from clearhead._text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError, SelectionError, ShapeError
from clearhead.matrix.head_numbers import numbers_of_heads
from clearhead.matrix.head_results import HeadResults
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.norms import Norms
from clearhead.watching.calls import Kept
from clearhead.watching.kept_by_path import KeptByPath
from clearhead.watching.projections import output_projection

PORTION = 1 << 22
"""The weights of a run that are in memory at a time."""


class HeadDifference(NamedTuple):
    """One head in two runs.

    Attributes:
        layer: the path of the module that attended.
        layer_number: its number in the record.
        head: which query head.
        queries: the number of queries, of all samples and calls, in the mean.
        total_variation: the share of a query's attention that is elsewhere in the other run, 0 to 1.
    """

    layer: str
    layer_number: int
    head: int
    queries: int
    total_variation: float


class RunDifference(MeasuredRows[HeadDifference]):
    """The rows of all heads of all layers in two runs.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2)
        >>> with torch.no_grad(), ch.watch(layer) as one, ch.watch(layer) as two:
        ...     output = layer(torch.randn(1, 5, 8))
        >>> one.difference(two).top(1)[0].total_variation
        0.0
    """

    ROW = HeadDifference
    BY = "total_variation"
    DIGITS = 4
    UNPRINTED = frozenset({"queries"})


def difference_of(one: KeptByPath[Any], other: Any) -> RunDifference:
    """Return the difference of two records; what each of them must be is told by `Seen.difference`."""
    if not hasattr(other, "apart"):
        raise ArgumentTypeError(
            "difference.type",
            f"other must be what a watch has seen; got {type(other).__name__}.",
        )
    keeps = one._keep, other._keep
    if keeps != ("matrix", "matrix"):
        raise ArgumentError(
            "difference.keep",
            'difference needs the matrices of both runs, which keep="matrix" keeps; keep= was '
            f"{' and '.join(map(shown, keeps))}.",
        )
    if one.layers != other.layers:
        raise ShapeError(
            "difference.layers",
            f"both runs must have the same layers; got {shown(one.layers)} and {shown(other.layers)}.",
        )
    rows = []
    for path in one.layers:
        mine, theirs = one.apart([path]), other.apart([path])
        _check_alike(path, mine, theirs)
        for (name, some), (_, others) in zip(mine, theirs, strict=True):
            sums, queries = torch.zeros(some[0].num_heads, dtype=torch.float64), 0
            for a, b in zip(some, others, strict=True):
                found, count = _apart(a, b)
                sums, queries = sums + found, queries + count
            rows += [
                HeadDifference(name, one.number(path), head, queries, each / max(1, queries))
                for head, each in zip(numbers_of_heads(some[0]), sums.tolist(), strict=True)
            ]
    return RunDifference(rows)


def _check_alike(path: str, mine: list[Any], theirs: list[Any]) -> None:
    every = [[each for _, some in side for each in some] for side in (mine, theirs)]
    shapes = [[tuple(each.shape) for each in side] for side in every]
    heads = [numbers_of_heads(side[0]) for side in every]
    if heads[0] != heads[1]:
        raise ShapeError(
            "difference.heads",
            f"both runs must have the same heads of {shown(path)}; got {shown(heads[0])} and {shown(heads[1])}.",
        )
    if shapes[0] != shapes[1] or [len(some) for _, some in mine] != [len(s) for _, s in theirs]:
        raise ShapeError(
            "difference.shape",
            f"both runs must have as many samples, queries and keys in each call of {shown(path)}; got "
            f"{shown(shapes[0])} and {shown(shapes[1])}.",
        )


@torch.no_grad()
def _apart(one: AttentionMatrix, other: AttentionMatrix) -> tuple[Tensor, int]:
    """The sum over queries of what is elsewhere, (num_heads,), float64, and how many queries that is."""
    one.check_whole("difference")
    other.check_whole("difference")
    real = _real(one) | _real(other).to(one.device)
    total = torch.zeros(one.num_heads, dtype=torch.float64)
    some = max(1, PORTION // max(1, one.batch * one.num_heads * one.kv_len))
    for start in range(0, one.query_len, some):
        rows = slice(start, min(start + some, one.query_len))
        weights = one[:, :, rows, :].double()
        apart = (weights - other[:, :, rows, :].to(one.device)).abs().sum(dim=-1) / 2
        total += apart.where(real[:, None, rows], 0.0).sum(dim=(0, 2)).cpu()
    return total, int(real.sum())


def _real(matrix: AttentionMatrix) -> Tensor:
    """(batch, query_len), bool."""
    real = matrix.real
    if real is None:
        return torch.ones(matrix.batch, matrix.query_len, dtype=torch.bool, device=matrix.device)
    return real


class WholeRecord(KeptByPath[Kept]):
    """The calls of every module, taken together."""

    def difference(self, other: KeptByPath[AttentionMatrix]) -> RunDifference:
        """Return how far the attention of two runs is apart, head by head: the total variation.

        Of a query that is half of what its weights in the one run and in the other differ by, the share of its
        attention that is elsewhere, 0 to 1; of a head the mean over its queries, those left out that are padding
        in both. Some rows of weights are computed at a time.

        Args:
            other: a record of the same layers and heads, with as many samples, queries and keys.

        Raises:
            ArgumentTypeError: code `difference.type`, for what is no record of a watch.
            ArgumentError: code `difference.keep`, where either did not keep matrices.
            ShapeError: codes `difference.layers`, `difference.heads` and `difference.shape`, for runs that do not
                fit.
            UnsupportedError: code `across.whole`, for queries that ranks share.

        Example:
            >>> import torch, clearhead as ch
            >>> layer, x = ch.MultiHeadAttention(8, num_heads=2), torch.randn(1, 5, 8)
            >>> with torch.no_grad(), ch.watch(layer) as before:
            ...     output = layer(x)
            >>> with torch.no_grad(), ch.watch(layer) as after:
            ...     output = layer(x, mask=ch.causal())
            >>> found = before.difference(after)
            >>> found.columns
            ('layer', 'layer_number', 'head', 'queries', 'total_variation')
            >>> before.difference(before)["total_variation"]
            tensor([0., 0.], dtype=torch.float64)
        """
        return difference_of(self, other)

    def norms(
        self, layer: str | int, model: nn.Module | None = None, *, call: int | None = None
    ) -> Norms:
        """Return weights × ‖value · W‖ of a module, after a watch with `values=True`: what each query takes from
        each key, and not only how much it looks at it (Kobayashi et al., 2020,
        https://arxiv.org/abs/2004.10102).

        Args:
            layer: a path, or a number.
            model: the one that was watched, whose output projection is read as it is now, W being the part of
                a head; found by the names that libraries give it. What else the model does to the context
                before, such as a gate, is not in it. None for the norms of the values themselves.
            call: which one of `calls`, of a module that attended several times; None is all of them as one.

        Raises:
            ArgumentError: code `norms.value`, where no values were kept.
            ArgumentTypeError: code `norms.model`.
            UnsupportedError: code `norms.projection`, where no output projection is known;
                `AttentionMatrix.norms` takes its weight.
            SelectionError: codes `watch.layer`, `watch.several` and `watch.call`.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = torch.nn.TransformerEncoderLayer(16, nhead=2, batch_first=True)
            >>> with torch.no_grad(), ch.watch(layer, values=True) as seen:
            ...     output = layer(torch.randn(1, 5, 16))
            >>> seen.norms("self_attn", layer)
            Norms [batch=1, num_heads=2, query_len=5, kv_len=5] of weights × ‖value · W‖
        """
        if self._keep != "matrix":
            raise ArgumentError(
                "norms.value",
                f"norms need matrices with their values, watch(model, values=True); keep= was {self._keep!r}.",
            )
        path = self.path(layer)
        matrix = self._one(path, call)
        output = None
        if model is not None and matrix.value is not None:
            output = output_projection(model, path, matrix, matrix.value.shape[-1])[0]
        return matrix.norms(output)

    def _one(self, path: str, call: int | None) -> Any:
        """One of the calls of a module, or all of them as one."""
        if call is None:
            return self[path]
        calls = self.calls(path)
        number = as_place(call, len(calls))
        if number is None:
            raise SelectionError(
                "watch.call",
                f"{shown(path)} attended {len(calls)} times; there is no {shown(call)}.",
            )
        return calls[number]

    def results(
        self, layer: str | int, model: nn.Module, *, call: int | None = None
    ) -> HeadResults:
        """Return z · W of each head of a module, what it adds to the output of the layer, after a watch with
        `keep="contexts"` or `contexts=True`; W is the part of the output projection that belongs to the head.

        Args:
            layer: a path, or a number.
            model: as in `norms`.
            call: likewise.

        Raises:
            ArgumentError: code `results.context`, where no contexts were kept.
            ArgumentTypeError: code `norms.model`.
            UnsupportedError: code `norms.projection`.
            SelectionError: codes `watch.layer`, `watch.several` and `watch.call`.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = torch.nn.MultiheadAttention(8, num_heads=2, batch_first=True)
            >>> x = torch.randn(1, 5, 8)
            >>> with torch.no_grad(), ch.watch(layer, keep="contexts") as seen:
            ...     output, _ = layer(x, x, x)
            >>> torch.allclose(seen.results(0, layer).total(), output, atol=1e-6)
            True
        """
        path = self.path(layer)
        kept = self._one(path, call)
        context = getattr(kept, "context", None)
        if context is None:
            raise ArgumentError(
                "results.context",
                'results need the contexts of the heads, watch(model, keep="contexts") or contexts=True; keep= was '
                f"{self._keep!r} without.",
            )
        return HeadResults(context, *output_projection(model, path, kept, context.shape[3]))
