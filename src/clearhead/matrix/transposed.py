"""Products with the transposed matrix of attention weights: sums over the queries, for every key."""

from typing import Any

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.checks import check_tensor
from clearhead._common.torch_internals import is_inside_functorch
from clearhead.attention.planning import choose
from clearhead.attention.problem import Problem
from clearhead.errors import DeviceError, DtypeError, ShapeError, UnsupportedError
from clearhead.matrix.chunk import Chunk
from clearhead.matrix.reductions import Reduction
from clearhead.matrix.sweep import sweep
from clearhead.sharding.sharding import Sharding


class Transposed:
    """The transposed matrix of the weights of a problem, for products only.

    Example:
        >>> import torch, clearhead as ch
        >>> query = key = torch.zeros(3, 2)
        >>> weights = ch.AttentionMatrix(query, key, mask=ch.causal())
        >>> weights.mT @ torch.ones(3)
        tensor([1.8333, 0.8333, 0.3333])
    """

    def __init__(self, problem: Problem) -> None:
        """Store the problem; nothing is computed."""
        self.problem = problem

    @property
    def shape(self) -> torch.Size:
        """The shape, (batch, num_heads, kv_len, query_len), without the axes that the query lacks."""
        problem = self.problem
        sizes = (problem.batch, problem.num_heads, problem.kv_len, problem.query_len)
        return torch.Size(sizes[4 - problem.dims :])

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """Return the transposed weights times vectors of the queries, upcast, with gradients.

        Where ranks share the queries, it is summed over the ranks, and every rank must call it.

        Args:
            vectors: (batch, num_heads, query_len, width), or (query_len, width) for all samples
                and heads, or (query_len,).

        Returns:
            (batch, num_heads, kv_len, width), or without the width for one dimension. Each query
            head is on its own: those that share a key are not summed.

        Raises:
            ArgumentTypeError: code `vectors.type`, unless it is a tensor.
            ShapeError: code `vectors.shape`.
            DtypeError: code `vectors.dtype`, for another dtype than the query's or the weights'.
            DeviceError: code `vectors.device`.
            UnsupportedError: codes `matrix.gradient`, for a bias that is trained, and
                `matrix.transformed`, inside torch.func.
        """
        problem = self.problem
        check_tensor("vectors", vectors)
        if vectors.ndim == 1:
            return (self @ vectors[:, None])[..., 0]
        full = (problem.batch, problem.num_heads, problem.query_len)
        if vectors.ndim == 2 and problem.dims > 2:
            given = vectors.expand(*full[:2], *vectors.shape)
        else:
            given = vectors[(None,) * (4 - vectors.ndim)] if vectors.ndim <= 4 else vectors
        if given.shape[:3] != full or vectors.ndim not in (2, problem.dims):
            raise ShapeError(
                "vectors.shape",
                f"vectors must have shape {full[4 - problem.dims :]} and a width, or "
                f"(query_len, width), or (query_len,), with query_len={problem.query_len}; got "
                f"{tuple(vectors.shape)}.",
            )
        summing = stages.upcast(problem.query[:0]).dtype
        if vectors.dtype not in (problem.query.dtype, summing):
            raise DtypeError(
                "vectors.dtype",
                f"vectors must have the query's dtype, {problem.query.dtype}, or that of the "
                f"weights, {summing}; got {vectors.dtype}.",
            )
        if vectors.device != problem.device:
            raise DeviceError(
                "vectors.device",
                f"vectors must be on the query's device; they are on {vectors.device}, the query "
                f"on {problem.device}.",
            )
        if torch.is_grad_enabled() and problem.bias is not None and problem.bias.requires_grad:
            raise UnsupportedError(
                "matrix.gradient",
                "the transposed product gives a bias no gradient; detach the bias, or index the "
                "rows that you need.",
            )
        if is_inside_functorch():
            raise UnsupportedError(
                "matrix.transformed",
                "the transposed product does not go through torch.func; use autograd, or index the rows that you "
                "need.",
            )
        product = _TransposedProduct.apply(
            problem.query, problem.key, stages.upcast(given), problem.sinks, problem
        )
        return problem.restore(product)

    def __repr__(self) -> str:
        """Return the class and the shape."""
        return f"Transposed {list(self.shape)}"


class TransposedSum(Reduction):
    """The transposed weights times vectors of the queries: `result` is (batch, num_heads, kv_len, width).

    Args:
        problem: the problem.
        vectors: (batch, num_heads, query_len, width).
    """

    def __init__(self, problem: Problem, vectors: Tensor) -> None:
        """Start with zeros, (batch, num_heads, kv_len, width), for vectors (batch, num_heads, query_len, width)."""
        self.vectors = vectors
        self.finite = stages.all_finite(vectors)
        shape = (*problem.query.shape[:2], problem.kv_len, vectors.shape[3])
        self.result = stages.upcast(problem.query[:0]).new_zeros(shape)

    def update(self, chunk: Chunk) -> None:
        """Add weightsᵀ · vectors of a chunk to the result."""
        vectors = stages.upcast(self.vectors[chunk.place])
        if chunk.visible is None:
            product = torch.bmm(chunk.weights.mT, vectors)
        else:
            product = stages.context(chunk.weights.mT, vectors, chunk.visible.mT)
        self.result[chunk.sample, chunk.heads, chunk.keys] += product

    def share(self, sharding: Sharding) -> None:
        """Sum the product over the ranks, in place; every rank must call it."""
        self.result = sharding.sum(self.result, "transposed products")


class _TransposedProduct(torch.autograd.Function):
    """Pᵀ · vectors, as a function with gradients.

    As ⟨Pᵀ x, g⟩ = ⟨x, P g⟩, its gradients are those of attention with g as the value.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        vectors: Tensor,
        sinks: Tensor | None,
        problem: Problem,
    ) -> Tensor:
        """Return weightsᵀ · vectors, (batch, num_heads, kv_len, width), upcast, by one sweep."""
        ctx.save_for_backward(query, key, vectors, sinks)
        ctx.problem = problem
        product = TransposedSum(problem, vectors)
        sweep(problem, [product])
        return product.result

    @staticmethod
    @torch.autograd.function.once_differentiable  # its type hides the name of ctx
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of query, key, vectors and sinks, and None for the problem."""
        problem = ctx.problem
        query, key, vectors, sinks = ctx.saved_tensors
        grad = grads[0]
        if problem.sharding is not None:
            grad = problem.sharding.sum(grad, "gradients of transposed products")
        query, key = (stages.upcast(each.detach()).requires_grad_() for each in (query, key))
        if sinks is not None:
            sinks = stages.upcast(sinks.detach()).requires_grad_()
        # Autocast would lower what the product was made of.
        with torch.enable_grad(), torch.autocast(query.device.type, enabled=False):
            key_of_head = stages.repeat_kv_heads(key, problem.num_heads)
            mirrored = problem.replace(query=query, key=key_of_head, sinks=sinks)
            mirrored = mirrored.with_value(grad)
            context = choose(mirrored).attend(mirrored)
        wanted = [each for each in (query, key, sinks) if each is not None]
        found = list(torch.autograd.grad(context, wanted, vectors))
        of_query, of_key = found[0], found[1]
        of_sinks = found[2] if sinks is not None else None
        return (
            of_query.to(problem.query.dtype),
            of_key.to(problem.key.dtype),
            context.detach(),
            None if of_sinks is None else of_sinks.to(problem.sinks.dtype),
            None,
        )
