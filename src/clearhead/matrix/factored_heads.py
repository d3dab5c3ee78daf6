"""One matrix per head, stored as two factors; the product is computed only on request."""

import torch
from torch import Tensor

from clearhead._common.checks import as_int, check_tensor
from clearhead._common.elements import Drawn
from clearhead._common.memory import within_memory
from clearhead._text import shown
from clearhead.errors import ArgumentError, ShapeError
from clearhead.matrix.no_tensor import NoTensor


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
        heads, rows, columns = self.shape
        return (
            f"FactoredHeads [num_heads={heads}, {rows=}, {columns=}] of rank {self.left.shape[2]}"
        )
