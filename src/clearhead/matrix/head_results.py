"""The contexts of the heads of a call, their results in the layer's output, and one matrix per head as two factors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.checks import as_int, check_tensor
from clearhead._common.elements import Drawn
from clearhead._common.memory import within_memory
from clearhead._text import shown
from clearhead.errors import ArgumentError, ShapeError
from clearhead.matrix.indexing import Index, as_indices, index_of
from clearhead.matrix.no_tensor import NoTensor


class HeadResults(NoTensor, Drawn):
    """Results of the heads: z · W of each head and query, W being its part of the output projection.

    Made of the contexts, (batch, num_heads, query_len, value_head_dim), the weight of the projection, (embed_dim,
    num_heads · value_head_dim), and its bias, (embed_dim,) or None.

    They are computed where they are read: all tokens × heads × embed_dim numbers are never in memory at once.

    Their sum over the heads plus the projection's bias is the output of the layer. Made by `Seen.results`.

    Attributes:
        context: z, (batch, num_heads, query_len, value_head_dim); 16 bits are upcast.
        weight: W, (num_heads, embed_dim, value_head_dim), in the dtype of `context`.
        bias: (embed_dim,), or None.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2)
        >>> with torch.no_grad(), ch.watch(layer, keep="contexts") as seen:
        ...     output = layer(torch.randn(1, 5, 8))
        >>> results = seen.results(0, layer)
        >>> results
        HeadResults [batch=1, num_heads=2, query_len=5, embed_dim=8] of z · W
        >>> results[0, 1, 4].shape
        torch.Size([8])
        >>> torch.allclose(results.total(), output, atol=1e-6)
        True
    """

    def __init__(self, context: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Upcast the context, and split the weight of the projection, (embed_dim, heads · value_head_dim), by head."""
        self.context = stages.upcast(context)
        self.weight = weight.to(self.context).unflatten(1, (context.shape[1], -1)).transpose(0, 1)
        self.bias = None if bias is None else bias.to(self.context)

    @property
    def shape(self) -> torch.Size:
        """The shape of the results, (batch, num_heads, query_len, embed_dim)."""
        return torch.Size((*self.context.shape[:3], self.weight.shape[1]))

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Tensor:
        """Return the results of some heads and queries, by the rules and with the errors of `AttentionMatrix`."""
        axes, drop = index_of(index, self.shape)
        batch, heads, queries, width = (
            as_indices(each, size, self.context.device)
            for (each, _), size in zip(axes, self.shape, strict=True)
        )
        context = self.context[batch][:, heads][:, :, queries]
        with within_memory("Index the queries or heads that you need."):
            found = context @ self.weight[heads][:, width].mT
        for axis in drop:
            found = found.squeeze(axis)
        return found

    def dense(self) -> Tensor:
        """Return all of them as a tensor, (batch, num_heads, query_len, embed_dim), if it fits.

        Raises:
            TooLargeError: code `memory.full`, if it does not fit in memory.
        """
        return self[...]

    def total(self) -> Tensor:
        """Return the sum over the recorded heads plus the bias, (batch, query_len, embed_dim).

        With all heads it is the output of the layer.
        """
        together = self.context.transpose(1, 2).flatten(2)
        return torch.nn.functional.linear(
            together, self.weight.transpose(0, 1).flatten(1), self.bias
        )

    def along(self, direction: Tensor) -> Tensor:
        """Return the dot product of each result with a direction, (batch, num_heads, query_len).

        Args:
            direction: (embed_dim,), or (batch, query_len, embed_dim) for another one in each place.

        Raises:
            ArgumentTypeError: code `direction.type`.
            ShapeError: code `results.direction`.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = ch.MultiHeadAttention(8, num_heads=2)
            >>> with torch.no_grad(), ch.watch(layer, keep="contexts") as seen:
            ...     output = layer(torch.randn(1, 5, 8))
            >>> seen.results(0, layer).along(torch.ones(8)).shape
            torch.Size([1, 2, 5])
        """
        check_tensor("direction", direction)
        batch, _, query_len, width = self.shape
        if tuple(direction.shape) not in ((width,), (batch, query_len, width)):
            raise ShapeError(
                "results.direction",
                f"direction must have shape (embed_dim,) = ({width},), or (batch, query_len, embed_dim) = "
                f"{(batch, query_len, width)}; got {tuple(direction.shape)}.",
            )
        # As wide as the context: the results themselves are never there.
        found = [
            (context * (direction.to(self.weight) @ weight)).sum(dim=-1)
            for context, weight in zip(self.context.unbind(1), self.weight, strict=True)
        ]
        return torch.stack(found, dim=1)

    def norms(self) -> Tensor:
        """Return the Euclidean norm of each result, (batch, num_heads, query_len)."""
        # With W = Q R, where Q preserves norms: as wide as the context.
        factors = torch.linalg.qr(self.weight, mode="r").R
        return torch.linalg.vector_norm(self.context @ factors.mT, dim=-1)

    def __repr__(self) -> str:
        """Return one line with the sizes."""
        names = ("batch", "num_heads", "query_len", "embed_dim")
        sizes = ", ".join(f"{name}={size}" for name, size in zip(names, self.shape, strict=True))
        return f"HeadResults [{sizes}] of z · W"


@dataclass(frozen=True, eq=False, repr=False)
class Contexts(Drawn):
    """The contexts of a call, z = weights · values of each head, as the model used them.

    Made by `watch(model, keep="contexts")`.

    Attributes:
        context: (batch, num_heads, query_len, value_head_dim), in the model's dtype.
        kv_len: the number of keys.
        real: (batch, query_len), bool: the queries that are not padding; None for all.
        heads: the number of each head in its layer, where these are some only; None where all are here.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2)
        >>> with torch.no_grad(), ch.watch(layer, keep="contexts") as seen:
        ...     output = layer(torch.randn(1, 5, 8))
        >>> seen[0]
        Contexts [batch=1, num_heads=2, query_len=5, value_head_dim=4]
        >>> seen[0].mean.shape
        torch.Size([2, 4])
    """

    context: Tensor
    kv_len: int
    real: Tensor | None = None
    heads: tuple[int, ...] | None = None

    @property
    def shape(self) -> torch.Size:
        """The shape of the contexts, (batch, num_heads, query_len, value_head_dim)."""
        return self.context.shape

    @property
    def batch(self) -> int:
        """The number of samples."""
        return self.shape[0]

    @property
    def num_heads(self) -> int:
        """The number of heads that were recorded."""
        return self.shape[1]

    @property
    def query_len(self) -> int:
        """The number of queries."""
        return self.shape[2]

    @property
    def mean(self) -> Tensor:
        """The mean context over all real queries, (num_heads, value_head_dim); NaN without real queries.

        `ablate(mean=)` accepts it. For the mean over a data set use `watch(…, keep="total", contexts=True)`.
        """
        if self.real is None:
            return self.context.mean(dim=(0, 2))
        real = self.real.expand(self.batch, -1)[:, None, :, None]
        return torch.where(real, self.context, 0.0).sum(dim=(0, 2)) / real.sum()

    def __repr__(self) -> str:
        """Return one line with the sizes, and the heads if these are some only."""
        names = ("batch", "num_heads", "query_len", "value_head_dim")
        sizes = ", ".join(f"{name}={size}" for name, size in zip(names, self.shape, strict=True))
        some = "" if self.heads is None else f" with heads {list(self.heads)}"
        return f"Contexts [{sizes}]{some}"


def triangle(tall: Tensor) -> Tensor:
    """Return R of the QR decomposition tall = Q · R, (…, width, width): it has the norms and singular values of `tall`.

    Args:
        tall: (…, rows, width), with rows ≥ width.

    Example:
        >>> tall = torch.randn(9, 2)
        >>> torch.allclose(triangle(tall).norm(), tall.norm())
        True
    """
    return torch.linalg.qr(tall, mode="r").R


class FactoredHeads(NoTensor, Drawn):
    """The matrix of each head, (rows, columns), stored as two factors, since its rank is only the width of a head.

    The left factor has all query heads, the right one the key heads; neighbouring query heads share one where heads are
    grouped. Made by `Circuits`.

    Attributes:
        left: (num_heads, rows, width).
        right: (num_kv_heads, width, columns).

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=4, num_kv_heads=2)
        >>> ov = ch.reading.circuits(layer).ov
        >>> ov, ov.right.shape[0]
        (FactoredHeads [num_heads=4, rows=8, columns=8] of rank 2, 2)
        >>> ov.product(3).shape
        torch.Size([8, 8])
        >>> torch.allclose(ov.norms()[3], torch.linalg.matrix_norm(ov.product(3)), atol=1e-6)
        True
    """

    def __init__(self, left: Tensor, right: Tensor) -> None:
        """Store the factors, (num_heads, rows, width) and (num_kv_heads, width, columns)."""
        self.left, self.right = left, right

    @property
    def shape(self) -> torch.Size:
        """The shape of all matrices together, (num_heads, rows, columns)."""
        return torch.Size((*self.left.shape[:2], self.right.shape[2]))

    def shared(self, of_key_heads: Tensor, axis: int = 0) -> Tensor:
        """Return a tensor with one entry per right factor along `axis`, repeated there to one entry per query head."""
        return of_key_heads.repeat_interleave(len(self.left) // len(self.right), dim=axis)

    def product(self, head: int | None = None) -> Tensor:
        """Return the matrix of one head, (rows, columns), or of all, (num_heads, rows, columns), if it fits.

        A negative head counts from the end.

        Raises:
            ArgumentError: code `circuits.head`, for a head out of range.
            TooLargeError: code `memory.full`, if it does not fit in memory.
        """
        with within_memory("Ask for one head."):
            if head is None:
                return self.left @ self.shared(self.right)
            heads, number = len(self.left), as_int(head)
            if number is None or not -heads <= number < heads:
                raise ArgumentError(
                    "circuits.head",
                    f"head must be one of {heads}, or None for all; got {shown(head)}.",
                )
            return self.left[number] @ self.right[number % heads * len(self.right) // heads]

    def norms(self) -> Tensor:
        """Return the Frobenius norm of each head's matrix, (num_heads,)."""
        return torch.linalg.matrix_norm(
            triangle(self.left) @ self.shared(triangle(self.right.mT).mT)
        )

    def singular_values(self) -> Tensor:
        """Return the singular values of each head's matrix, largest first, (num_heads, width)."""
        return torch.linalg.svdvals(triangle(self.left) @ self.shared(triangle(self.right.mT).mT))

    def eigenvalues(self, between: Tensor | None = None) -> Tensor:
        """Return the eigenvalues that are not 0 by rank, complex, (num_heads, width), in no order.

        Args:
            between: B, (columns, rows), of the eigenvalues of matrix · B, such as `embedding.T @ unembedding`; None for
                a matrix that is square.

        Raises:
            ArgumentTypeError: code `between.type`.
            ShapeError: code `circuits.between`, also for None with a matrix that is not square.
        """
        if between is not None:
            check_tensor("between", between)
        found = self.shape[:0:-1] if between is None else tuple(between.shape)
        if found != self.shape[:0:-1] or (between is None and found[0] != found[1]):
            raise ShapeError(
                "circuits.between",
                f"between must have shape (columns, rows) = {tuple(self.shape[:0:-1])}; got "
                f"{'None' if between is None else found}.",
            )
        right = self.right if between is None else self.right @ between.to(self.right)
        # Those of L · R are those of R · L, which is small.
        return torch.linalg.eigvals(self.shared(right) @ self.left)

    def __repr__(self) -> str:
        """Return one line with the sizes and the rank."""
        heads, rows, columns = self.shape
        return (
            f"FactoredHeads [num_heads={heads}, {rows=}, {columns=}] of rank {self.left.shape[2]}"
        )
