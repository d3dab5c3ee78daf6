"""The contexts of the calls of one module, put together as the rows of one matrix are."""

from typing import Any

from torch import Tensor

from clearhead.attention.planning import run
from clearhead.attention.problem import Problem
from clearhead.errors import WatchError
from clearhead.matrix.contexts import Contexts
from clearhead.matrix.head_numbers import numbers_of_heads
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.watching.calls import Call, Matrices
from clearhead.watching.continuing import fingerprints


def worked_out(problem: Problem) -> Tensor:
    """Return the context of a call, (batch, num_heads, query_len, value_dim), computed by `run` without dropout."""
    return run(problem.replace(dropout=None))


def without_numbers(problem: Problem) -> Problem:
    """Return the call with a query of width 0, fingerprints as key and value, and no bias, softcap or sinks.

    Key and value are (batch, 1, kv_len, 1), int64, one fingerprint of each key.

    Example:
        >>> from clearhead.attention.problem import make_problem
        >>> bare = without_numbers(make_problem(*torch.zeros(3, 1, 2, 5, 4)))
        >>> bare.query.shape, bare.key.shape
        (torch.Size([1, 2, 5, 0]), torch.Size([1, 1, 5, 1]))
    """
    key = fingerprints(problem.key)[:, None, :, None]
    query = problem.query.detach()[..., :0]
    changes: dict[str, Any] = {"bias": None, "softcap": None, "sinks": None}
    return problem.replace(query=query, key=key, value=key, **changes)


class ContextCalls(Matrices[Contexts]):
    """The calls of one module, as contexts."""

    def add(self, call: Any, value: Tensor | None = None, **options: Any) -> Call:
        """Append a call as `without_numbers` leaves it, and return it as stored; its context is set later.

        `value` is ignored. `options` are those of `Matrices.add`.
        """
        return super().add(without_numbers(call), **options)

    def shown(self, matrix: AttentionMatrix) -> Contexts:
        """Return the contexts that a matrix carries.

        Raises:
            WatchError: code `watch.context`, for a call that raised.
        """
        if matrix.context is None:
            raise WatchError(
                "watch.context",
                "a call raised before it had a context, so that there is none to read.",
            )
        heads = None if matrix.heads is None else numbers_of_heads(matrix)
        return Contexts(matrix.context, matrix.kv_len, matrix.real, heads)
