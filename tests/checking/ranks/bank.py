"""The bank: variants with what is declared of them, and the name of the mistake."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.checking.ranks.variants import Ours, Sharded

CAUSAL = {"causal": True}
WINDOW = {"causal": True, "window": (4, 0)}
GROUPED = {"causal": True, "num_heads": 12, "num_kv_heads": 3}
ROPE = {"causal": True, "rope": {"base": 10000.0, "layout": "half"}}


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

    def __str__(self) -> str:
        names = ",".join(self.declared)
        return f"{self.subject}, {self.world} ranks, {self.layout}, {names}"


ONCE: tuple[tuple[Any, ...], ...] = (
    ("gather", "local", "differs"),
    ("gather", "top left", "differs"),
    ("gather", "lower right", "differs"),
    ("gather", "no mask", "differs"),
    ("gather", "inverted", "differs"),
    ("gather", "no window", "differs", WINDOW),
    ("gather", "far", "differs", WINDOW),
    ("gather", "inverted", "differs", WINDOW),
    ("gather", "own", "differs"),
    ("gather", "sent in bf16", "differs"),
    ("gather", "no scale", "differs"),
    ("gather", "grad own", "grad.wrong"),
    ("gather", "grad others", "grad.wrong"),
    ("gather", "grad mean", "grad.wrong"),
    ("gather", "grad large", "grad.wrong"),
    ("gather", "grad own twice", "grad.wrong"),
    ("gather", "grad neighbour", "grad.wrong"),
    ("gather", "grad bf16", "grad.wrong"),
    ("gather", "no autograd", "grad.wrong"),
    ("gather", "detached", "grad.wrong"),
    ("ring", "local", "differs"),
    ("ring", "own block only", "differs"),
    ("ring", "later blocks", "differs"),
    ("ring", "window in own block", "differs", WINDOW),
    ("ring", "one step short", "differs", {}),
    ("ring", "own", "differs"),
    ("ring", "mean", "differs", {}),
    ("ring", "sum", "differs"),
    ("ring", "merge by exp", "differs", {}),
    ("ring", "merged in bf16", "differs"),
    ("ring", "kept in bf16", "differs"),
    ("gather", "local positions", "differs", ROPE),
)


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
        yield entry("gather", "in a row", "differs", **dealt)
        yield entry("gather", "keys in a row", "differs", **dealt)
        yield entry("heads", "order of rows", "differs", **dealt)
        yield entry("gather", "positions in a row", "differs", ROPE, **dealt)
    yield entry("heads", "rank order", "differs", layout="zigzag", world=3)
    yield entry("ring", "earlier blocks", "differs", layout="zigzag", world=3)
    yield entry("heads", "heads padded", "differs", GROUPED)
    for mistake, code, declared in (
        ("trim", "differs", CAUSAL),
        ("rows", "differs", CAUSAL),
        ("padding", "differs", {}),
    ):
        yield entry("gather", mistake, code, declared, alone=True)
        yield entry("gather", mistake, code, {}, alone=True, world=3, layout="zigzag")
    yield entry("gather", "blocks", "differs")


def right() -> Iterator[Entry]:
    """Without a mistake, in every way to write it, over layouts and ranks."""
    for how in ("gather", "ring", "heads"):
        for place, declared in enumerate((CAUSAL, {}, WINDOW, ROPE)):
            world, layout = 2 + place % 2, "zigzag" if place % 3 else "contiguous"
            yield Entry(Sharded(how, rope="rope" in declared), "", declared, world, layout)
        yield Entry(Sharded(how), "", GROUPED, 3, "zigzag")
        yield Entry(Sharded(how), "", CAUSAL, 4, "zigzag")
        yield Entry(Sharded(how), "", CAUSAL, 3, "zigzag", alone=True)
        for place, declared in enumerate((CAUSAL, {}, WINDOW)):
            layout = ("balanced", "contiguous", "zigzag")[place]
            yield Entry(Ours(how), "", declared, 2 + place % 2, layout)
        yield Entry(Ours(how), "", CAUSAL, 4, "balanced")
        yield Entry(Ours(how), "", CAUSAL, 2, "balanced", alone=True)
