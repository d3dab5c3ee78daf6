"""Rotations of query and key in a lesson: graded as the attention that it is in, and named by its own rows."""

import inspect
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from clearhead import stages
from clearhead.checking import words
from clearhead.checking.report import Finding
from clearhead.checking.subject.stubs import reached
from clearhead.checking.thresholds import SLOPE

TOKENS, WIDTH = 7, 6
# Where a mistake is likely written: what makes the speeds, and what counts the places.
POWERS = (r"\*\*|\bpow\(|exp\(|log", r"/ *d\b|arange")
COUNTS = (
    r"\b(a?range|enumerate)\((-?1\b|.*-1\))|[\w)\]] *[-+] *1\b",
    r"flip|\[::-1\]",
    r"\b(a?range|enumerate|linspace)\(",
)
PATTERNS = {
    "faster": POWERS, "halved": POWERS, "one-speed": POWERS, "speeds": POWERS,
    "begun": COUNTS, "end": COUNTS, "sample": COUNTS, "same": COUNTS, "columns": COUNTS[-1:],
    "degrees": (r"deg|rad|180|pi\b", r"cos"),
}  # fmt: skip
# Ways in which an attention turns backwards, which breaks the law of the scores.
BACKWARDS = ("sign", "exchanged", "end")
PLACES, PAIRS = torch.arange(TOKENS).double()[:, None], torch.arange(WIDTH // 2).double()
SPEEDS = 10000 ** (-2 * PAIRS / WIDTH)
ANGLES = PLACES * SPEEDS


def rotating(rotate: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Attention whose query and key go through what rotates them."""

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # The last query stands on the last key.
        before = key.shape[-2] - query.shape[-2]
        placed = nn.functional.pad(query, (0, 0, before, 0))
        scores = stages.scores(rotate(placed)[..., before:, :], rotate(key))
        return stages.matmul(stages.weights(scores * query.shape[-1] ** -0.5), value)

    attention.__name__ = attention.__qualname__ = rotate.__name__
    return attention


def turned(rotate: Any, finding: Finding | None) -> Finding | None:
    """A mistake of what rotates, by what it makes of rows; None where these are as they should be.

    Args:
        rotate: the function.
        finding: what was found of the attention that it is in; None of one that is right.
    """
    if finding is not None and finding.code not in ("law.scores", "differs"):
        return finding
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64)
    try:
        way = next(_ways(rotate, x), None)
    except Exception:  # what raises was told already
        return finding
    if way is None:
        return finding
    if finding is not None and way == "speeds" and finding.code == "differs":
        at = _line(rotate, POWERS) or finding.place
        return replace(finding, place=at)  # by another base, which it says
    code = "rope.offset" if way == "begun" else "rope.layout"
    made = Finding(code, "", "") if finding is None else Finding(**vars(finding))
    place = _line(rotate, PATTERNS.get(way, ())) or made.place
    if made.code == "differs" and way in BACKWARDS:
        made = replace(made, code="law.scores")
    return replace(made, sentence=words.filled("rotation", way, {}), place=place)


def _line(rotate: Any, patterns: tuple[str, ...]) -> tuple[str, int] | None:
    """File and line of what rotates, or of what it calls, where the first of the patterns is found."""
    functions = [each for each in (rotate, *reached(rotate)) if inspect.isfunction(each)]
    for pattern in patterns:
        for each in functions:
            lines, first = inspect.getsourcelines(each)
            for number, line in enumerate(lines[1:], first + 1):
                if re.search(pattern, line):
                    return each.__code__.co_filename, number
    return None


def _ways(rotate: Any, x: Tensor) -> Iterator[str]:
    """The mistakes that give the same rows; of what is right none."""
    found = rotate(x.clone()).double()
    named = [(way, made) for split in LAYOUTS for way, made in _made(x, split)]
    # Angles in float32 are exact to a share of the largest of them.
    rounding = 4 * torch.finfo(torch.float32).eps * float(x.abs().max() * (PLACES / SPEEDS).max())
    for way, made in named:
        if found.shape == made.shape and float((found - made).abs().max()) < max(SLOPE, rounding):
            if way:
                yield way
            return
    samples = rotate(x.expand(3, TOKENS, WIDTH).clone()).double()
    other = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=x.dtype)
    rows = torch.stack([rotate(each.expand(TOKENS, WIDTH)).double() for each in x[:2]])
    scores, moved = rows[0] @ rows[1].mT, found - x
    for way, seen in (
        ("sample", _apart(samples[1:], samples[:1])),
        ("not", torch.equal(found, x)),
        ("waves", not _apart(rotate(other).double() - other, moved)),
        (
            "part",
            any(
                torch.equal(part, torch.zeros_like(part))
                for layout in LAYOUTS
                for part in layout[0](moved)
            ),
        ),
        ("lengths", _apart(found.norm(dim=-1) / x.norm(dim=-1), torch.ones(TOKENS))),
        ("distance", _apart(scores[1:, 1:], scores[:-1, :-1])),
        ("same", not _apart(rows[0][1:], rows[0][:-1])),
    ):
        if seen:
            yield way
            return
    yield "speeds"


def _apart(one: Tensor, other: Tensor) -> bool:
    return float((one - other).abs().max()) > SLOPE * float(other.abs().max())


Split = tuple[Callable[[Tensor], tuple[Tensor, Tensor]], Callable[[Tensor, Tensor], Tensor]]
_halves: Split = (lambda x: (x[:, :3], x[:, 3:]), lambda a, b: torch.cat([a, b], -1))
_neighbours: Split = (
    lambda x: (x[:, ::2], x[:, 1::2]),
    lambda a, b: torch.stack([a, b], -1).flatten(1),
)

LAYOUTS = (_halves, _neighbours)


def _made(x: Tensor, layout: Split) -> Iterator[tuple[str, Tensor]]:
    """The rows that each mistake makes; the way of the right ones is empty."""
    split, join = layout
    first, second = split(x)

    def by(angles: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = angles.cos(), angles.sin()
        return first * cos - second * sin, second * cos + first * sin

    one, two = by(ANGLES)
    cos, sin = ANGLES.cos(), ANGLES.sin()
    yield "", join(one, two)
    yield "order", join(two, one)
    for other in LAYOUTS:
        if other is not layout:
            yield "order", other[1](one, two)
            yield "order", other[1](two, one)
    yield "sign", join(*by(-ANGLES))
    yield "exchanged", join(first * sin - second * cos, second * sin + first * cos)
    yield "minus", join(first * cos - second * sin, second * cos - first * sin)
    yield "plus", join(first * cos + second * sin, second * cos + first * sin)
    yield "overwritten", join(one, second * cos + one * sin)
    for begun in (0, 1):
        yield "end", join(*by((PLACES.flip(0) + begun) * SPEEDS))
    for factor in (math.pi / 180, 180 / math.pi):
        yield "degrees", join(*by(ANGLES * factor))
    for begun in (-1, 1):
        yield "begun", join(*by((PLACES + begun) * SPEEDS))
    yield "faster", join(*by(PLACES / SPEEDS))
    yield "one-speed", join(*by(PLACES.expand(-1, WIDTH // 2)))
    for whole in (-2 * PAIRS // WIDTH, -(2 * PAIRS // WIDTH)):
        yield "one-speed", join(*by(PLACES * 10000**whole))
    yield "halved", join(*by(PLACES * 10000 ** (-PAIRS / WIDTH)))
    yield "columns", join(*by(PAIRS[None] * SPEEDS))
