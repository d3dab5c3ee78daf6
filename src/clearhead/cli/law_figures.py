"""The laws of attention as small figures of numbers, worked out from the definition when they are printed."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest

import torch
from torch import Tensor

from clearhead import stages

SCALE = 1 / math.sqrt(2)
Columns = Mapping[str, Tensor]


def figure(code: str) -> str:
    """The figure of a law: what was fed, what should come, and what comes of a broken one; "" for no law.

    Example:
        >>> from clearhead.cli.law_figures import figure
        >>> figure("law.value").splitlines()[0]
        'every value + 1   context         of value + 1    moved by        of context + value'
    """
    if code not in FIGURES:
        return ""
    columns, words = FIGURES[code]
    blocks = [[name, *_rows(each[0].tolist())] for name, each in columns(*_fed()).items()]
    widths = [max(map(len, block)) for block in blocks]
    lines = [
        "   ".join(map(str.ljust, row, widths)).rstrip()
        for row in zip_longest(*blocks, fillvalue="")
    ]
    return "\n".join([*lines, "", words])


def _fed(tokens: int = 4, batch: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, batch, tokens, 2, generator=generator, dtype=torch.float64)
    return query, key, value


def _attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """The stages of the definition, one behind the other."""
    past = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    visible = past if causal else None
    scaled = stages.scaled_scores(stages.scores(query, key), SCALE)
    shares = stages.weights(stages.masked_scores(scaled, None, visible))
    return stages.context(shares, value, visible)


def _value(query: Tensor, key: Tensor, value: Tensor) -> Columns:
    once, shifted = _attend(query, key, value), _attend(query, key, value + 1)
    return {
        "every value + 1": value + 1,
        "context": once,
        "of value + 1": shifted,
        "moved by": shifted - once,
        "of context + value": (shifted + value + 1) - (once + value),
    }


def _scores(query: Tensor, key: Tensor, value: Tensor) -> Columns:
    products = stages.scores(query, key)
    logs = stages.weights(stages.scaled_scores(products, SCALE)).log()
    squared = (stages.weights(stages.scaled_scores(products, SCALE)) ** 2).log()
    return {
        "q·(k − k₀)": products - products[..., :1],
        "log w − log w₀": logs - logs[..., :1],
        "of weights²": squared - squared[..., :1],
    }


def _pairs(query: Tensor, key: Tensor, value: Tensor) -> Columns:
    order = torch.tensor([2, 0, 3, 1])
    once, turned = _attend(query, key, value), _attend(query, key[:, order], value[:, order])
    return {
        "context": once,
        "pairs turned": turned,
        "moved by": turned - once,
        "keys alone turned": _attend(query, key[:, order], value) - once,
    }


def _length(query: Tensor, key: Tensor, value: Tensor) -> Columns:
    whole, part = (
        _attend(*(each[:, :tokens] for each in (query, key, value)), causal=True)
        for tokens in (4, 2)
    )
    longer = _attend(query * math.log(4), key, value, causal=True)[:, :2]
    shorter = _attend(*(each[:, :2] for each in (query * math.log(2), key, value)), causal=True)
    return {
        "of 4 tokens": whole[:, :2],
        "of the first 2": part,
        "moved by": whole[:, :2] - part,
        "log n in the scale": longer - shorter,
    }


def _samples(query: Tensor, key: Tensor, value: Tensor) -> Columns:
    query, key, value = _fed(2, batch=2)
    batch = _attend(query, key, value)
    alone = _attend(query[1:], key[1:], value[1:])
    mixed = _attend(query, key[:1].expand_as(key), value)
    return {
        "sample 1 in a batch": batch[1:],
        "alone": alone,
        "moved by": batch[1:] - alone,
        "keys of sample 0": mixed[1:] - alone,
    }


def _again(query: Tensor, key: Tensor, value: Tensor) -> Columns:
    first = _attend(query, key, value, causal=True)
    other = _attend(*(each[:, :2] for each in (query, key, value)), causal=True)
    again = _attend(query, key, value, causal=True)
    # The mask of the call before, two by two, is kept: the tokens behind it see all.
    hidden = torch.zeros(4, 4, dtype=torch.bool)
    hidden[:2, :2] = torch.ones(2, 2, dtype=torch.bool).triu(1)
    scaled = stages.scaled_scores(stages.scores(query, key), SCALE)
    kept = stages.context(stages.weights(stages.masked_scores(scaled, None, ~hidden)), value)
    moved = {"a": first, "b": other, "a again": again, "moved by": again - first}
    return {**moved, "mask of b kept": kept - first}


def _rows(matrix: Sequence[Sequence[float]]) -> list[str]:
    # What is 0 but for rounding is written as 0.
    return [" ".join(f"{round(each, 3) + 0.0:6.3f}" for each in row) for row in matrix]


FIGURES: Mapping[str, tuple[Callable[[Tensor, Tensor, Tensor], Columns], str]] = {
    "law.value": (
        _value,
        "The weights of a query sum to one: each context moves by exactly 1, by 2 where the value is added.",
    ),
    "law.scores": (
        _scores,
        "A line through the origin: its slope is the scale, 0.7071 = 1/√2; of squared weights it is 1.414.",
    ),
    "law.pairs": (
        _pairs,
        "Pairs of key and value in the order 2 0 3 1 give the same; keys without their values do not.",
    ),
    "law.length": (
        _length,
        "Behind a causal mask the first tokens are what they are alone; with log n in the scale they are not.",
    ),
    "law.samples": (
        _samples,
        "A sample alone is what it is in its batch; with the keys of sample 0 for all it is not.",
    ),
    "law.again": (
        _again,
        "A call gives the same whatever was called before; with the mask of the call before it does not.",
    ),
}
