"""The bank: variants with what is declared of them, and the name of the mistake."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.checking.ranks.variants import Loss, Ours, Sharded

CAUSAL = {"causal": True}
WINDOW = {"causal": True, "window": (4, 0)}
GROUPED = {"causal": True, "num_heads": 12, "num_kv_heads": 3}
ROPE = {"causal": True, "rope": {"base": 10000.0, "layout": "half"}}
DROPOUT = {"dropout": 0.4}


@dataclass(frozen=True)
class Entry:
    """An attention, what is declared, and the name of its mistake, or none.

    `alone` are those that must run in processes of their own: lengths that do not divide show them.
    """

    subject: Any
    code: str = ""
    declared: dict[str, Any] = field(default_factory=lambda: CAUSAL)
    world: int = 2
    layout: str = "contiguous"
    alone: bool = False
    takes: str = "qkv"

    def __str__(self) -> str:
        names = ",".join(self.declared)
        return f"{self.subject}, {self.world} ranks, {self.layout}, {names}"


ONCE: tuple[tuple[Any, ...], ...] = (
    ("gather", "local", "ranks.local-index"),
    ("gather", "top left", "ranks.local-index"),
    ("gather", "lower right", "ranks.local-index"),
    ("gather", "no mask", "mask.missing"),
    ("gather", "inverted", "mask.inverted"),
    ("gather", "no window", "mask.missing", WINDOW),
    ("gather", "far", "mask.inverted", WINDOW),
    ("gather", "inverted", "mask.inverted", WINDOW),
    ("gather", "own", "ranks.exchange"),
    ("gather", "sent in bf16", "ranks.precision"),
    ("gather", "no scale", "scale.missing"),
    ("gather", "grad own", "ranks.grad-not-summed"),
    ("gather", "grad others", "ranks.grad-not-summed"),
    ("gather", "grad mean", "ranks.grad-scaled"),
    ("gather", "grad large", "ranks.grad-scaled"),
    ("gather", "grad own twice", "ranks.grad-summed-twice"),
    ("gather", "grad neighbour", "ranks.grad-misplaced"),
    ("gather", "grad bf16", "grad.wrong"),
    ("gather", "no autograd", "grad.blocked"),
    ("gather", "detached", "grad.blocked"),
    ("gather", "random", "output.nondeterministic"),
    ("gather", "input", "input.modified"),
    ("ring", "local", "ranks.local-index"),
    ("ring", "own block only", "ranks.local-index"),
    ("ring", "later blocks", "ranks.order"),
    ("ring", "window in own block", "ranks.local-index", WINDOW),
    ("ring", "one step short", "ranks.exchange", {}),
    ("ring", "own", "ranks.exchange"),
    ("ring", "mean", "ranks.merge", {}),
    ("ring", "sum", "ranks.merge"),
    ("ring", "merge by exp", "ranks.merge-overflow", {}),
    ("ring", "merged in bf16", "ranks.precision"),
    ("ring", "kept in bf16", "ranks.precision"),
    ("heads", "dropout alike", "ranks.dropout-alike", DROPOUT),
    ("gather", "dropout alike", "ranks.dropout-alike", DROPOUT),
    ("ring", "dropout alike", "ranks.dropout-alike", DROPOUT),
    ("gather", "dropout never", "dropout.never", DROPOUT),
    ("gather", "dropout unscaled", "dropout.unscaled", DROPOUT),
    ("gather", "local positions", "ranks.local-positions", ROPE),
)

LOSSES = {
    "shifted after": "ranks.labels",
    "rolled after": "ranks.labels",
    "rank order": "ranks.labels",
    "last dropped": "ranks.labels",
    "rolled": "ranks.labels",
    "not shifted": "ranks.labels",
    "shifted twice": "ranks.labels",
    "padded with 0": "ranks.labels",
    "mean": "ranks.loss",
    "weighted": "ranks.loss",
}


def wrong() -> Iterator[Entry]:
    """One mistake each."""

    def entry(how: str, mistake: str, code: str, *more: Any, **fields: Any) -> Entry:
        rope = "positions" in mistake
        return Entry(Sharded(how, mistake, rope), code, *more, **fields)

    for place, each in enumerate(ONCE):
        layout, world = (("contiguous", 2), ("zigzag", 3))[place % 2]
        yield entry(*each, layout=layout, world=world)
    for world in (2, 3):
        dealt = {"layout": "zigzag", "world": world}
        yield entry("gather", "in a row", "ranks.order", **dealt)
        yield entry("gather", "keys in a row", "ranks.order", **dealt)
        yield entry("heads", "order of rows", "ranks.order", **dealt)
        yield entry("gather", "positions in a row", "ranks.local-positions", ROPE, **dealt)
    yield entry("heads", "rank order", "ranks.order", layout="zigzag", world=3)
    yield entry("ring", "earlier blocks", "ranks.order", layout="zigzag", world=3)
    yield entry("heads", "heads padded", "ranks.heads-padded", GROUPED)
    for mistake, code, declared in (
        ("trim", "ranks.tail-dropped", CAUSAL),
        ("rows", "ranks.tail-dropped", CAUSAL),
        ("padding", "ranks.padding", {}),
    ):
        yield entry("gather", mistake, code, declared, alone=True)
        yield entry("gather", mistake, code, {}, alone=True, world=3, layout="zigzag")
    yield entry("gather", "blocks", "ranks.tail-dropped")
    for place, (mistake, code) in enumerate(LOSSES.items()):
        layout, world = (("contiguous", 2), ("zigzag", 3), ("zigzag", 2))[place % 3]
        yield Entry(Loss(mistake), code, {}, world, layout, takes="logits,ids")


def right() -> Iterator[Entry]:
    """Without a mistake, in every way to write it, over layouts and ranks."""
    for how in ("gather", "ring", "heads"):
        for place, declared in enumerate((CAUSAL, {}, WINDOW, ROPE, DROPOUT)):
            world, layout = 2 + place % 2, "zigzag" if place % 3 else "contiguous"
            yield Entry(Sharded(how, rope="rope" in declared), "", declared, world, layout)
        yield Entry(Sharded(how), "", GROUPED, 3, "zigzag")
        yield Entry(Sharded(how), "", CAUSAL, 4, "zigzag")
        yield Entry(Sharded(how), "", CAUSAL, 3, "zigzag", alone=True)
        for place, declared in enumerate((CAUSAL, {}, WINDOW, DROPOUT)):
            layout = ("balanced", "contiguous", "zigzag", "zigzag")[place]
            yield Entry(Ours(how), "", declared, 2 + place % 2, layout)
        yield Entry(Ours(how), "", CAUSAL, 4, "balanced")
        yield Entry(Ours(how), "", CAUSAL, 2, "balanced", alone=True)
    for place, layout in enumerate(("contiguous", "zigzag", "zigzag", "balanced")):
        yield Entry(Loss(), "", {}, 2 + place % 2, layout, takes="logits,ids")
    yield Entry(Loss(), "", {}, 3, "zigzag", alone=True, takes="logits,ids")
