"""The record of a run of the benchmarks: a file of figures, and the table of the latest."""

import datetime
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, UNITS

RESULTS = ROOT / "benchmarks" / "results"

# One case as it is stored: the outcome, when it was measured, and where.
Record = dict[str, Any]

HEADING = """# Results

The latest figures of every case, written by `make bench`; the files next to this one hold all of
each measurement.

- Times are medians per call, the sides taken in turn. *Ratio* is the median of ours over theirs
  (the second side) within each turn, with a 95 % interval.
- A case of *CPU time* counts that of the process alone, and may be measured on a machine that others keep busy: `load`
  in its file is how many wanted a core.
- *Memory* is what one call takes at its peak, in a process of its own, beyond the inputs.
- No figure is here whose result was not first compared with that of every other side.
"""


def store(records: Iterable[tuple[str, Record]], folder: Path = RESULTS) -> list[Path]:
    """Write (group, record) pairs, a file for each group; a case that was run again replaces itself."""
    grouped: defaultdict[Path, list[Record]] = defaultdict(list)
    for group, record in records:
        grouped[folder / f"{group}.json"].append(record)
    folder.mkdir(parents=True, exist_ok=True)
    for path, fresh in grouped.items():
        stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        cases = {record["case"]: record for record in [*stored, *fresh]}
        ordered = [cases[name] for name in sorted(cases)]
        path.write_text(json.dumps(ordered, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return sorted(grouped)


def stamp(record: Record, environment: dict[str, Any]) -> Record:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {**record, "measured": now, "environment": environment}


def latest(folder: Path = RESULTS) -> list[Record]:
    """Return the record of every case, in the order of their names."""
    paths = folder.glob("*.json")
    records = [record for path in paths for record in json.loads(path.read_text(encoding="utf-8"))]
    return sorted(records, key=lambda record: record["case"])


def seconds(value: float) -> str:
    """Three digits and a unit: `12.3 ms`."""
    for scale, unit in [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")]:
        if value >= scale:
            return f"{value / scale:.3g} {unit}" if value < 1000 else f"{value:.0f} s"
    return f"{value * 1e9:.3g} ns"


def megabytes(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.0f} MB"


def ratio(record: Record) -> str:
    low, high = record["ratio_interval"]
    return f"{record['ratio']:.3f} ({low:.3f} – {high:.3f})"


def reach(record: Record) -> list[str]:
    words = {True: "yes", False: "**no**"}
    return [
        f"{text}: not measured"
        if it["value"] is None
        else f"{text}: {words[it['reached']]}, {it['value']:.3g}"
        for text, it in record["reach"].items()
    ]


def line(record: Record) -> str:
    """A record in one line, for the terminal."""
    sides = record["sides"]
    parts = [", ".join(f"{name} {seconds(side['median_seconds'])}" for name, side in sides.items())]
    parts.append(f"ratio {ratio(record)}")
    peaks = [side["peak_megabytes"] for side in sides.values()]
    if any(peak is not None for peak in peaks):
        parts.append("memory " + ", ".join(map(megabytes, peaks)))
    parts += [text.replace("*", "") for text in reach(record)]
    return f"{record['case']}: {'; '.join(parts)}"


def place(record: Record) -> str:
    """The date and the machine of a record."""
    it = record["environment"]
    machine = f"{it['cpu']}, {it['cores']} cores, {it['ram_gigabytes']} GB"
    gpu = f", {it['gpu']}" if it["gpu"] else ""
    software = f"torch {it['torch']}, Python {it['python']}, {it['threads']} threads"
    return f"{record['measured'][:10]}, commit {it['commit']}: {machine}{gpu}; {software}"


def table(records: list[Record]) -> str:
    """The page of results: the latest records, those measured together in one table."""
    places: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        places[place(record)].append(record)
    lines = [HEADING]
    for where in sorted(places, reverse=True):
        lines += [f"## {where}", ""]
        lines.append("| case | work | time | ratio | memory | reach |")
        lines.append("|---|---|---|---|---|---|")
        for record in places[where]:
            sides = record["sides"].items()
            cells = [
                f"`{record['case']}`",
                ", ".join(filter(None, [record["work"], record["dtype"]])),
                "<br>".join(f"{name} {seconds(side['median_seconds'])}" for name, side in sides),
                ratio(record),
                "<br>".join(f"{name} {megabytes(side['peak_megabytes'])}" for name, side in sides),
                "<br>".join([*reach(record), *filter(None, [record.get("limit")])]),
            ]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    lines += ["A reach is a bound on", ""]
    lines += [f"- `{unit}`: {meaning}" for unit, meaning in UNITS.items()]
    return "\n".join(lines) + "\n"


def publish(folder: Path = RESULTS) -> Path:
    """Write the page of results anew from the stored files."""
    page = folder / "README.md"
    page.write_text(table(latest(folder)), encoding="utf-8")
    return page
