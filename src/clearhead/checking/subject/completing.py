"""A part of attention, which the definition completes to the whole: scores, weights of scores, or a context."""

import inspect
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.foreign_names import side_of
from clearhead.checking.subject.signatures import needed, of_call

# The parameters of a part, by its `takes`.
PARTS: Mapping[str, tuple[str, ...]] = {
    each: tuple(each.split(",")) for each in ("query,key", "scores", "weights,value")
}


def part_of(function: Callable[..., object]) -> str | None:
    """Return the `takes` of a function whose required parameters are named as those of a part; None for another.

    Example:
        >>> part_of(lambda queries, keys: queries @ keys.mT), part_of(lambda x: x)
        ('query,key', None)
    """
    names = tuple(needed(of_call(function)))
    sides = tuple(side_of(each) or each for each in names)
    return next((each for each, part in PARTS.items() if part in (names, sides)), None)


def completed(part: Callable[..., Tensor], takes: str, scale: float) -> Callable[..., Tensor]:
    """Return attention of query, key and value, with one part computed by a function, the others by the definition.

    A part that writes to its input changes the query, so that the whole writes to an input too.

    Args:
        part: the function.
        takes: what it is called with, a key of `PARTS`.
        scale: of the scores, if the part does not compute them.
    """

    def whole(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the context."""

        def called(*given: Tensor) -> Tensor:
            """Return the result of the part in the dtype of the query; add 1 to the query if it changed its input."""
            before = [each.detach().clone() for each in given]
            found = part(*given)
            if not all(map(torch.equal, given, before)) and given[0] is not query:
                query.add_(1.0)
            return found.to(query.dtype)

        scores = stages.scaled_scores(stages.scores(query, key), scale)
        scores = called(query, key) if takes == "query,key" else scores
        weights = called(scores) if takes == "scores" else stages.weights(scores)
        return called(weights, value) if takes == "weights,value" else stages.matmul(weights, value)

    whole.__name__ = getattr(part, "__name__", type(part).__name__)
    # Its place and its source are those of the part, and its parameters are not.
    whole.__signature__ = inspect.signature(whole)
    whole.__wrapped__ = part  # type: ignore[attr-defined]
    return whole
