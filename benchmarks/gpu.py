"""`python -m benchmarks.gpu [pattern] [--tiny]`: every row that needs a CUDA device, those that matter most first.

Each row is compared, timed and filed by itself, so that whoever has a device for ten minutes keeps what was
measured. A side that cannot run here is named with the reason. `--tiny` runs the rows in small on the CPU and files
nothing: it shows that they run.
"""

import argparse
import fnmatch
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import report
from benchmarks.gpu_rows import ROWS, Row, Scale
from benchmarks.harness import (
    Case,
    Outcome,
    ResultsDifferError,
    Sides,
    Target,
    compare_results,
    environment,
    time_in_turn,
)

NO_DEVICE = 3
"""The exit code where there is none."""

BUDGET = 6.0
"""Seconds for a row, beside what its first calls take."""


def chosen(pattern: str) -> list[Row]:
    """The rows whose name contains the pattern, or matches it, in their order."""
    return [row for row in ROWS if pattern in row.name or fnmatch.fnmatchcase(row.name, pattern)]


def able(sides: Sides, device: torch.device) -> tuple[Sides, dict[str, str]]:
    """The sides that run here, and the reason of each that does not."""
    reasons: dict[str, str] = {}
    for name, side in sides.items():
        try:
            side()
            settle(device)
        except Exception as error:  # of any library, whatever it raises for what it cannot do
            said = " ".join(str(error).split("\n")[:3])
            reasons[name] = f"{type(error).__name__}: {said}"[:240]
    return {name: side for name, side in sides.items() if name not in reasons}, reasons


def settle(device: torch.device) -> None:
    """Wait until the device has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def waited(side: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """A side whose time is that of the device."""

    def run() -> Any:
        found = side()
        settle(device)
        return found

    return run


def in_order_of_time(sides: Sides, device: torch.device) -> Sides:
    """Ours first and the fastest of the others behind it, which the ratio is taken to."""
    if len(sides) < 3:
        return sides
    (ours, first), *others = sides.items()
    times = time_in_turn(
        {name: waited(side, device) for name, side in others}, budget=0.5, least_rounds=2
    )
    ranked = sorted(zip(times.medians, [name for name, _ in others], strict=True))
    return {ours: first, **{name: sides[name] for _, name in ranked}}


def peak(side: Callable[[], Any], device: torch.device) -> float | None:
    """Megabytes that a side takes at its peak beyond its inputs; None where nothing tells it."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    side()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 1e6


def measured(row: Row, scale: Scale, budget: float) -> tuple[Outcome | None, dict[str, str]]:
    """The outcome of a row, and why what is missing could not run.

    Raises:
        ResultsDifferError: the sides do not compute the same. Nothing is measured then.
    """
    device = scale.device
    torch.manual_seed(0)
    every = row.build(scale)
    ours = next(iter(every))
    sides, reasons = able(every, device)
    if ours in reasons or len(sides) < 2:
        return None, reasons
    case = Case(row.name, lambda: sides, tuple(map(Target.parse, row.reach)), row.work)
    case = replace(case, dtype=str(scale.dtype).removeprefix("torch."), compare=row.compare)
    compare_results(case, sides)
    sides = in_order_of_time(sides, device)
    timed = {name: waited(side, device) for name, side in sides.items()}
    times = time_in_turn(timed, budget=budget, least_rounds=row.rounds)
    memory = {name: peak(side, device) for name, side in sides.items()}
    return Outcome(case, times, memory), reasons


def card(device: torch.device) -> str:
    """The name of the card as a part of a name of a file."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "no card"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def run(rows: list[Row], scale: Scale, budget: float, folder: Path | None) -> Iterator[str]:
    """Measure rows one by one and file each at once, in a folder or, for None, nowhere; yields what to print."""
    where = environment()
    for row in rows:
        try:
            outcome, reasons = measured(row, scale, budget)
        except ResultsDifferError as error:
            yield f"{row.name}: FAILED, no figure, for the results differ: {error}"
            continue
        finally:
            if scale.device.type == "cuda":
                torch.cuda.empty_cache()
        missing = "".join(f"\n  not run: {name}: {reason}" for name, reason in reasons.items())
        if outcome is None:
            yield f"{row.name}: no figure{missing}"
            continue
        record = report.stamp(outcome.record(), where)
        record["not_run"] = reasons
        if folder is not None:
            report.store([(f"gpu-{card(scale.device)}", record)], folder)
        yield report.line(record) + missing


def main(arguments: list[str] | None = None, folder: Path = report.RESULTS) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="part of a name, or a glob")
    parser.add_argument("--tiny", action="store_true", help="in small, on the CPU; files nothing")
    options = parser.parse_args(arguments)
    if not (options.tiny or torch.cuda.is_available()):
        print("gpu: PyTorch finds no CUDA device here, so nothing was run.", file=sys.stderr)
        return NO_DEVICE
    rows = chosen(options.pattern)
    if not rows:
        names = ", ".join(row.name for row in ROWS)
        print(f"no row is called {options.pattern!r}; there are {names}", file=sys.stderr)
        return 1
    scale = Scale.tiny() if options.tiny else Scale.full()
    failed = 0
    for text in run(rows, scale, 0.0 if options.tiny else BUDGET, None if options.tiny else folder):
        print(text, flush=True)
        failed += ": FAILED" in text
    if not options.tiny:
        report.publish(folder)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
