"""The contexts of the calls of one module, put together as the rows of one matrix are."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from clearhead.attention.planning import run
from clearhead.attention.problem import Problem
from clearhead.errors import WatchError
from clearhead.matrix.contexts import Contexts
from clearhead.matrix.head_numbers import numbers_of_heads
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.watching.calls import Call, Calls, Matrices
from clearhead.watching.continuing import Continuation, fingerprints


def worked_out(problem: Problem) -> Tensor:
    """Return the context of a call, computed by `attend`, for a module whose own context is not available."""
    return run(problem.replace(dropout=None))


def without_numbers(problem: Problem) -> Problem:
    """Return the call without its query, and with a fingerprint of each key that identifies its matrix.

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


class ContextCalls(Calls[Contexts]):
    """The calls of one module, as contexts."""

    def __init__(self, others: Sequence["ContextCalls"] = ()) -> None:
        self._loaded: list[Contexts] = []
        self._calls = Matrices([each._calls for each in others])

    def add(self, call: Problem | Contexts, *, link: Continuation | None = None) -> Call | None:
        """Keep a call, whose context comes when it has run; or contexts of a file."""
        if isinstance(call, Contexts):
            self._loaded.append(call)
            return None
        return self._calls.add(without_numbers(call), link=link)

    def all(self) -> tuple[Contexts, ...]:
        """Return every call, in order.

        Raises:
            WatchError: code `watch.context`, for a call that raised.
        """
        return tuple(self._loaded) or tuple(map(_contexts, self._calls.all()))

    def several(self) -> str:
        """Return why the calls cannot be put together to one context, in words; "" if they can."""
        if self._loaded:
            return "they were apart when they were saved" if len(self._loaded) > 1 else ""
        return self._calls.several()

    def whole(self) -> Contexts:
        """Return the contexts of all calls as one; only valid if `several()` is ""."""
        return self._loaded[0] if self._loaded else _contexts(self._calls.whole())

    def close(self) -> None:
        """Free the memory reserved for more calls."""
        self._calls.close()


def _contexts(matrix: AttentionMatrix) -> Contexts:
    """Return the contexts that a matrix carries, or raise a WatchError if there are none."""
    context = matrix.context
    if context is None:
        raise WatchError(
            "watch.context", "a call raised before it had a context, so that there is none to read."
        )
    heads = None if matrix.heads is None else numbers_of_heads(matrix)
    return Contexts(context, matrix.kv_len, matrix.real, heads)
