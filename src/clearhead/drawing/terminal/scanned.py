"""The output of `clearhead check`: a report in colour, and for a package a table of everything that attends."""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from clearhead._text import readable
from clearhead.checking.report import Report
from clearhead.checking.scanning.trial import NOT_MADE, ScanRow
from clearhead.drawing.terminal.shading import Console, Text

STYLES = {
    "wrong": ("✗", "bold red"),
    "not judged": ("?", "bold yellow"),
    NOT_MADE: ("–", "dim"),
    "right": ("✓", "green"),
}


def print_scan(
    console: Console, rows: Sequence[ScanRow], *, without: int, interrupted: bool = False
) -> None:
    """Print the table of a scan, mistakes first, and the totals, which say if it was `interrupted`.

    `without` is the number of definitions that have no row.

    Example:
        >>> import io
        >>> console = Console(file=io.StringIO())
        >>> row = ScanRow("Attention", "wrong", "scale.missing: the scores are not scaled", "mine.py", 3)
        >>> print_scan(console, [row], without=1)
        >>> print(console.file.getvalue().splitlines()[-1])
        1 wrong; 1 more without attention, or that cannot be called
    """
    if rows:
        table = Table(box=box.SIMPLE, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        table.add_column(overflow="fold", ratio=1)
        order = list(STYLES)
        for row in sorted(rows, key=lambda row: order.index(row.outcome)):
            mark, style = STYLES[row.outcome]
            lines = [Text(readable(row.why))] if row.why else []
            lines.append(Text(readable(f"{short(row.file)}:{row.line}"), "dim" if row.why else ""))
            table.add_row(
                Text(f"{mark} {row.outcome}", style),
                Text(readable(row.name), "bold"),
                Text("\n").join(lines),
            )
        console.print(table)
    console.print(Text(totals(rows, without, interrupted), "bold"), soft_wrap=True)


def totals(rows: Sequence[ScanRow], without: int, interrupted: bool) -> str:
    """Return the number of each outcome, and of what could not be tried (`without`), in words.

    "nothing attends" for none; "interrupted: " comes first if it was.
    """
    counts = Counter(row.outcome for row in rows)
    words = ", ".join(f"{counts[each]} {each}" for each in STYLES if counts[each])
    none = (
        f"{without} {'more ' if rows else ''}without attention, or that cannot be called"
        if without
        else ""
    )
    found = "; ".join(filter(None, (words, none))) or "nothing attends"
    return f"interrupted: {found}" if interrupted else found


def short(file: str) -> str:
    """Return the path of a file relative to the current folder, or to an entry of sys.path; else as it is."""
    path = Path(file)
    for root in (Path.cwd(), *map(Path, sorted(filter(None, sys.path), key=len, reverse=True))):
        if path.is_absolute() and path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return path.as_posix()


REPORT_STYLES = (
    (r"^✗ \S+( or \S+)*", "bold red"),
    (r"^    (measured|likely|line \d+|read|see) ", "dim"),
    (r"✓", "green"),
    (r"^\? not judged", "bold yellow"),
    (r"^note|–", "dim"),
)


def print_report(console: Console, report: Report, *, everything: bool = False) -> None:
    """Print a report line by line, in colour where the console has it, and its summary.

    `everything` also prints measured values and what was not judged.

    Example:
        >>> import io
        >>> console = Console(file=io.StringIO(), width=80)
        >>> print_report(console, ch.check(ch.attend, takes="qkv"))
        >>> console.file.getvalue().splitlines()[-1]
        'attend: no mistake found'
    """
    for line in report.text(everything=everything).splitlines():
        text = Text(line)
        for pattern, style in REPORT_STYLES:
            for match in re.finditer(pattern, line):
                text.stylize(style, *match.span())
        console.print(text, soft_wrap=True)
    style = "bold green" if report.ok else "bold"
    console.print(Text(readable(f"{report.name}: {report.summary}"), style), soft_wrap=True)
