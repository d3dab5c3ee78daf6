"""The result of `profile`, as text, as JSON and as a page."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from clearhead._common.elements import Drawn, element
from clearhead._common.text import as_json, format_bytes, readable, shown
from clearhead.checking.pages import page
from clearhead.errors import ArgumentError
from clearhead.profiling.measuring import exponent, in_words

WAYS = {False: "forward", True: "forward and backward"}


class Cost(NamedTuple):
    """One length, one way: seconds a call and bytes at the peak, theirs and of the fused call."""

    length: int
    backward: bool
    seconds: float
    fused_seconds: float
    memory: int
    fused_memory: int


@dataclass(frozen=True, repr=False)
class Profile(Drawn):
    """The cost of an attention over length, beside the fused call of the same sizes.

    Attributes:
        name: of what was profiled.
        sizes: batch, heads, widths, dtype and device, in words.
        costs: for each length, forward and then with the way back: (length, backward, seconds,
            fused_seconds, memory, fused_memory), memory in bytes at the peak beside the inputs.
        kernel: which of PyTorch's kernels ran, or what was there instead.
        fused_kernel: the same for the fused call.
        notes: which lengths were left out, and why.

    Example:
        >>> found = ch.profile(ch.attend, takes="qkv", lengths=(128, 256, 512), rounds=1, seconds=60)
        >>> found.growth("memory")
        'tokens'
        >>> found.costs[0].length, found.costs[0].memory == found.costs[0].fused_memory
        (128, True)
    """

    name: str
    sizes: str
    costs: tuple[Cost, ...]
    kernel: str
    fused_kernel: str
    notes: tuple[str, ...] = ()

    def exponent(self, of: str, *, backward: bool = False, fused: bool = False) -> float:
        """The power of the length that "memory" or "time" grows with, over the upper half of the
        lengths; 2 is tokens².

        Raises:
            ArgumentError: code `profile.of`, for anything else; code `profile.exponent`, with fewer
                than two lengths.
        """
        if of not in ("memory", "time"):
            raise ArgumentError("profile.of", f'of must be "memory" or "time"; got {shown(of)}.')
        rows = [each for each in self.costs if each.backward == backward]
        if len(rows) < 2:
            raise ArgumentError(
                "profile.exponent",
                f"a growth needs two lengths; {WAYS[backward]} there is {len(rows)}.",
            )
        name = ("fused_" if fused else "") + ("seconds" if of == "time" else "memory")
        return exponent([each.length for each in rows], [getattr(each, name) for each in rows])

    def growth(self, of: str, *, backward: bool = False, fused: bool = False) -> str:
        """The growth of "memory" or "time" with length, in words: "constant", "tokens", "tokens²",
        "tokens³" where the exponent is within 0.2 of it; else by the exponent: "tokens^1.44"."""
        return in_words(self.exponent(of, backward=backward, fused=fused))

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.sizes}"]
        for backward, words in WAYS.items():
            rows = [each for each in self.costs if each.backward == backward]
            if rows:
                lines += ["", words, *_table(rows), *self._remarks(backward)]
        lines += ["", f"kernel   {self.kernel}", f"fused    {self.fused_kernel}"]
        lines += [f"– {note}" for note in self.notes]
        return readable("\n".join(lines))

    def _remarks(self, backward: bool) -> list[str]:
        """The growth of memory and time, and how many times the fused call they are."""
        rows = [each for each in self.costs if each.backward == backward]
        if len(rows) < 2:
            return []
        last = rows[-1]
        pairs = {
            "memory": (last.memory, last.fused_memory),
            "time": (last.seconds, last.fused_seconds),
        }
        lines = []
        for of, (theirs, fused) in pairs.items():
            powers = [self.exponent(of, backward=backward, fused=each) for each in (False, True)]
            lines.append(
                f"  {of:<6} grows like {_grown(powers[0])}, of the fused call like "
                f"{_grown(powers[1])}; at {last.length} tokens it is "
                f"{theirs / max(fused, 1e-12):.1f} × that of the fused call"
            )
        return lines

    def to_json(self) -> str:
        """The profile as JSON: name, sizes, costs, growth, kernel, fused_kernel and notes."""
        return as_json(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """The profile as what JSON knows."""
        growth = [
            {
                "of": of,
                "backward": backward,
                "fused": fused,
                "exponent": self.exponent(of, backward=backward, fused=fused),
                "with": self.growth(of, backward=backward, fused=fused),
            }
            for of in ("memory", "time")
            for backward in WAYS
            for fused in (False, True)
            if sum(each.backward == backward for each in self.costs) > 1
        ]
        return {
            "name": self.name,
            "sizes": self.sizes,
            "costs": [each._asdict() for each in self.costs],
            "growth": growth,
            "kernel": self.kernel,
            "fused_kernel": self.fused_kernel,
            "notes": list(self.notes),
        }

    def to_html(self) -> str:
        """The profile as a page of its own, which loads nothing."""
        return page(f"profile: {self.name}", self._repr_html_())

    def _repr_html_(self) -> str:
        parts = [element("h3", self.name), element("p", self.sizes)]
        for backward, words in WAYS.items():
            rows = [_cells(each) for each in self.costs if each.backward == backward]
            if not rows:
                continue
            cells = [[element("th", each, align="right") for each in HEADS]]
            cells += [[element("td", each, align="right") for each in row] for row in rows]
            lines = [element("tr", *row) for row in cells]
            parts += [element("h4", words), element("table", *lines, cellpadding=4)]
            parts += [element("div", each) for each in self._remarks(backward)]
        kernels = f"kernel: {self.kernel}", element("br"), f"fused: {self.fused_kernel}"
        parts += [element("p", *kernels), *(element("div", f"– {note}") for note in self.notes)]
        return str(element("div", *parts, style="font-family:sans-serif"))


HEADS = ("tokens", "time", "fused", "memory", "fused")


def _cells(cost: Cost) -> tuple[str, ...]:
    return (
        str(cost.length),
        _seconds(cost.seconds),
        _seconds(cost.fused_seconds),
        format_bytes(cost.memory),
        format_bytes(cost.fused_memory),
    )


def _grown(power: float) -> str:
    """The growth in words, with the exponent where the words are rounded."""
    words, exact = in_words(power), f"{power:.2f}"
    return words if exact in words else f"{words} (exponent {exact})"


def _table(costs: list[Cost]) -> list[str]:
    rows = [HEADS, *(_cells(each) for each in costs)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS))]
    return [
        "  " + "   ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _seconds(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
