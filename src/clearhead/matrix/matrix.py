"""The tokens × tokens matrix of attention weights, as an object that is never in memory.

With P = softmax(scale · Q Kᵀ + mask), `P @ X` is a call of attention with X as the value, its
logsumexp comes with one, and given the logsumexp any part of P costs the dot products of that part.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from torch import Tensor

from clearhead._common.checks import as_int, check_bool
from clearhead._common.hints import with_hints
from clearhead._common.lazy import drawing
from clearhead._text import shown
from clearhead.attention.planning import choose
from clearhead.attention.problem import Problem, ScoreOptions, make_problem
from clearhead.attention.sharded.attending import rows_across
from clearhead.errors import ArgumentTypeError, UnsupportedError
from clearhead.matrix.base import problem_of_weights
from clearhead.matrix.indexing import Index, index_of, read_pairs
from clearhead.matrix.parts import pairs
from clearhead.matrix.real_queries import read_queries
from clearhead.matrix.summary import PlotOptions
from clearhead.matrix.transposed import Transposed
from clearhead.matrix.weight_statistics import WeightStatistics
from clearhead.sharding.sharding import Sharding


class PageOptions(TypedDict, total=False):
    """The text of a page of heads, its pictures, and where it opens, as `Seen.to_html` takes them."""

    tokens: Sequence[str] | Sequence[int] | Tensor | None
    source_tokens: Sequence[str] | Sequence[int] | Tensor | None
    sample: int
    start: tuple[int, int] | str | None
    pin: tuple[str | int | None, str | int | None] | None
    images: Any
    grid: Any
    image_token: str | int | None
    skip: int | None


class FileOptions(PageOptions, total=False):
    """The options of a page that is a file."""

    title: str | None
    why: bool


@with_hints
class AttentionMatrix(WeightStatistics):
    """The attention weights of every query over every key, computed only where they are read.

    Nothing of size query_len × kv_len is computed or stored until a part is read, and then
    only that part. Weights are those before dropout.

    Args:
        query: (batch, num_heads, query_len, head_dim), or fewer leading dimensions.
        key: (batch, num_kv_heads, kv_len, head_dim), with as many dimensions.
        mask, bias, scale, softcap, sinks: as in `attend`.
        across: as in `attend`. The matrix then has the queries of this rank as rows and all keys as
            columns, which are gathered at once; with `how="ring"` they go round, at each of the statistics,
            and are gathered where weights, products or gradients are first asked for. What is a number
            for each query is this rank's, and what is summed over queries (`received`, `pool`, `mT`, those of
            `summary`) is summed over the ranks: every rank calls it, and gets the whole.
        cross: True if the keys are of another text than the queries, as in cross-attention: then the
            padding of the keys is none of the queries, and roles that compare places are not measured.
        value: (batch, num_kv_heads, kv_len, value_head_dim), what the call multiplies the weights by; no
            weight depends on it. Not with `across`.
        real_queries: bool, (query_len,) or (batch, query_len): False for padding, which averages over
            queries leave out. None takes all in cross-attention; else a query is padding if no query may
            attend to its own key, the last query sitting on the last.

    Raises:
        ClearheadError: for input that `attend` refuses.
        UnsupportedError: code `across.value`, for a value of tokens that ranks share.

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
        across: Sharding | tuple[Sharding, Sharding] | None = None,
        cross: bool = False,
        value: Tensor | None = None,
        real_queries: Tensor | None = None,
        **options: Unpack[ScoreOptions],
    ) -> None:
        """Check the arguments, as the class describes them; with `across` the keys are gathered, unless in a ring."""
        check_bool("cross", cross)
        if across is not None and value is not None:
            raise UnsupportedError(
                "across.value", "a matrix with across= keeps no value; leave value out."
            )
        # Without a value the key stands in for it, with the right length and heads.
        problem = (
            make_problem(query, key, key if value is None else value, **options)
            if across is None
            else rows_across(query, key, across, **options)
        )
        known = None if value is None else problem.value
        problem = problem.replace(value=problem.key, cross=cross or problem.cross)
        if real_queries is not None:
            real = read_queries("real_queries", real_queries, problem).expand(problem.batch, -1)
            problem = problem.replace(real_queries=real)
        super().__init__(problem, known)

    @classmethod
    def _of(cls, problem: Problem, value: Tensor | None = None) -> "AttentionMatrix":
        """Return the matrix of a validated problem, of this class, without checks; the problem's value is not read."""
        matrix = cls.__new__(cls)
        super(AttentionMatrix, matrix).__init__(problem, value)
        return matrix

    @classmethod
    def from_weights(cls, weights: Tensor) -> "AttentionMatrix":
        """Return the matrix of weights that were computed elsewhere: statistics, roles, figures, pages and files.

        The weights stay in memory, query_len × kv_len, and get no gradient. Scores are their logarithms:
        a weight of 0 is a hidden pair, a row of zeros a query that sees nothing, the logsumexp of any
        other row 0.

        Args:
            weights: (batch, num_heads, query_len, kv_len), or fewer leading dimensions; 0 to 1, and every
                row sums to 1 or to 0. Rows are normalised, which undoes the rounding of their dtype.

        Raises:
            ArgumentTypeError: codes `weights.type` and `weights.layout`.
            ShapeError: code `weights.shape`, for fewer than 2 or more than 4 dimensions.
            DtypeError: code `weights.dtype`, for weights that are not real numbers.
            ArgumentError: code `weights.value`, for rows that sum to something else, as after dropout.

        Example:
            >>> import torch, clearhead as ch
            >>> weights = ch.AttentionMatrix.from_weights(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
            >>> weights.received()
            tensor([1.5000, 0.5000])
        """
        return cls._of(problem_of_weights(weights))

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Tensor:
        """Return the exact weights of some queries and keys, by the rules of tensors.

        Ints, slices and `...` work as usual. Each axis may also take a list or a tensor of ints;
        several of them mean a rectangle: every one of the queries with every one of the keys.

        Raises:
            SelectionError: for an index out of range or of another kind.
            TooLargeError: if the part asked for would not fit in memory.
        """
        (batch, heads, queries, keys), drop = index_of(index, self.shape)
        part = self._part(batch[0], heads[0], queries[0], keys[0])
        for axis in drop:
            part = part.squeeze(axis)
        return part

    def at(
        self,
        query_index: int | Sequence[int] | Tensor,
        key_index: int | Sequence[int] | Tensor,
    ) -> Tensor:
        """Return the weights of chosen pairs: the first query with the first key, and so on.

        Costs one dot product a pair, and once the logsumexp; before that, few queries cost their rows.

        Args:
            query_index: ints of shape (pairs,), or (batch, pairs) for other pairs in each sample.
            key_index: indices of keys, in the same form; the two broadcast against each other.

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
        weights = self._from_rows(queries, keys)
        if weights is None:
            weights = pairs(problem, queries, keys, self._total())
        return self._restore(weights[..., 0] if single else weights)

    def diagonal(self, offset: int = 0) -> Tensor:
        """Return the weights of one diagonal, as `torch.diagonal` does: key = query + offset.

        With as many keys as queries, offset −1 is the token before. With more keys, as with a
        cache, the last query has the position of the last key, and the token before is
        offset = kv_len − query_len − 1.

        Returns:
            (batch, num_heads, length of the diagonal).

        Raises:
            ArgumentTypeError: code `diagonal.type`, for an offset that is not a whole number.

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
        steps = max(-problem.all_queries, min(steps, problem.kv_len))  # beyond them is nothing
        keys = problem.rows + steps
        queries = ((keys >= 0) & (keys < problem.kv_len)).nonzero()[:, 0]
        return self.at(queries, keys[queries])

    def __matmul__(self, value: Tensor) -> Tensor:
        """Return the context: weights times values, by a kernel that never forms the weights, with gradients.

        Args:
            value: (batch, num_kv_heads or num_heads, kv_len, width), or (kv_len, width) for all
                samples and heads, or (kv_len,).

        Returns:
            (batch, num_heads, query_len, width), or without the width for a value of one dimension.

        Raises:
            ArgumentTypeError, ShapeError, DtypeError, DeviceError: for a value that does not fit.
        """
        if isinstance(value, Tensor) and value.ndim == 1:
            return (self @ value[:, None])[..., 0]
        posed = self._with_value(value, "2 or 1")
        return self._restore(choose(posed).attend(posed))

    @property
    def mT(self) -> Transposed:  # noqa: N802 (as of a tensor)
        """The transposed matrix: `A.mT @ x` sums the rows of x over the queries, for each key."""
        return Transposed(self.problem)

    @with_hints
    def plot(self, kind: str = "map", **options: Unpack[PlotOptions]) -> Any:
        r"""Draw it with matplotlib; `figure.savefig` of the axes writes PNG, SVG and PDF.

        Args:
            kind: "map" is the weights, rows attend to columns, hidden pairs grey. A number for
                each query: "entropy" (nats), "distance" (tokens), "max", "first" and "previous"
                (shares of 1), as `Summary` has them. "received" is what each key gets of all
                queries, the mean over query heads.
            head: one head, by its number in the layer; or several, or None for all, side by side, and averaged
                for "received".
            sample: which row of the batch.
            tokens: a word for each query, and for each key where there are as many.
            source_tokens: a word for each key.
            ax: axes to draw in; None is a new figure of pyplot's, as the maps of several heads always are.

        A map has at most 256 cells a side for one head, and 64 for each of several. More tokens are pooled,
        as by `pool`, and the axis says how many a cell is; the weight of a cell is then the mean over its
        queries of their sum over its keys.

        Returns:
            The axes; for the maps of several heads an array of axes, one for each.

        Raises:
            MissingExtraError: if matplotlib is not installed.
            ArgumentError: codes `plot.kind`, `plot.option` and `plot.empty`.
            ArgumentTypeError: codes `plot.axes` and `plot.tokens`.
            ShapeError: code `plot.tokens`.
            SelectionError: code `plot.part`, for no such head or sample.
            UnsupportedError: code `across.whole`, for a matrix with `across`.

        Example:
            >>> import torch, clearhead as ch
            >>> query = key = torch.randn(1, 4, 5_000, 8)
            >>> weights = ch.AttentionMatrix(query, key, mask=ch.causal())
            >>> axes = weights.plot(head=3)
            >>> print(axes.get_title(), axes.get_xlabel(), sep="\n")
            head 3
            attended to (key)
            one cell = 20 × 20 tokens
            >>> print(weights.plot("received", head=0).get_xlabel())
            attended to (key)
            one point = the mean of 20 tokens
        """
        self.check_whole("plot")
        return drawing("figures").of_attention(self, kind, **options)

    def dense(self) -> Tensor:
        """Return the whole matrix as a tensor, if it fits.

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

    @with_hints
    def to_html(self, path: str | os.PathLike[str], **page: Unpack[FileOptions]) -> Path:
        """Write the heads as an HTML page, and return its path; arguments and errors are those of `Seen.to_html`.

        A sharded matrix raises UnsupportedError, code `across.whole`.

        Example:
            >>> import tempfile, torch, clearhead as ch
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     ch.AttentionMatrix(torch.eye(2), torch.eye(2)).to_html(f"{folder}/weights.html").name
            'weights.html'
        """
        self.check_whole("to_html")
        return drawing("page.head_page").write_heads(path, [[("", self)]], **page)

    def __repr__(self) -> str:
        """Return one line with the sizes, the mask, the bias, and what else is known; nothing is computed."""
        problem = self.posed
        names = ("batch", "num_heads", "query_len", "kv_len")[4 - problem.dims :]
        sizes = ", ".join(f"{name}={size}" for name, size in zip(names, self.shape, strict=True))
        mask = "" if problem.mask is None else f" mask={problem.mask.describe()}"
        here = "" if problem.sharding is None else f" of query_len={problem.all_queries}"
        if self.heads is not None:
            here += f" with heads {shown(self.heads.tolist())}"
        bias = "" if problem.bias is None else f" bias={problem.bias.describe()}"
        value = "" if self._value is None else " with value"
        value += "" if self._context is None else " with context"
        return f"AttentionMatrix [{sizes}]{here}{mask}{bias}{value}"

    def _repr_html_(self) -> str | None:
        """Return the matrix as HTML for a notebook, or None for a part of a sharded matrix; imports the drawing."""
        if self.posed.sharding is not None:
            return None
        return drawing("notebook.inline.matrices").matrix_html(self)


def matrix_of(
    problem: Problem, value: Tensor | None = None, tokens: Tensor | None = None
) -> AttentionMatrix:
    """Return the attention matrix of a validated problem, with four dimensions, and without its dropout.

    Args:
        problem: the problem; its value is not read.
        value: the value of the matrix, or None.
        tokens: the ids of its keys, (batch, kv_len), or None.
    """
    matrix = AttentionMatrix._of(problem.replace(value=problem.key, dropout=None, dims=4), value)
    matrix._tokens = tokens
    return matrix
