"""The output of `clearhead check`: the text of a report, in colour."""

import re

from clearhead._text import readable
from clearhead.checking.report import Report
from clearhead.drawing.terminal.shading import Console, Text

STYLES = (
    (r"^✗ \S+( or \S+)*", "bold red"),
    (r"^  ↳ \S+( or \S+)*", "bold yellow"),
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
        for pattern, style in STYLES:
            for match in re.finditer(pattern, line):
                text.stylize(style, *match.span())
        console.print(text, soft_wrap=True)
    style = "bold green" if report.ok else "bold"
    console.print(Text(readable(f"{report.name}: {report.summary}"), style), soft_wrap=True)
