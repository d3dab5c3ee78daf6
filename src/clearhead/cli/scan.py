"""`clearhead check` of files, folders and packages: find everything that attends, and check it."""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console

from clearhead.cli import check_process
from clearhead.cli.progress import progress_bars

if TYPE_CHECKING:
    from clearhead.checking.report import Report
    from clearhead.checking.scanning.trial import ScanRow


class Scan:
    """The rows of a scan, complete or up to an interrupt.

    Attributes:
        rows: of all that attends, and of what could not be made.
        tried: how many definitions were tried.
        without: how many of them have no row.
        interrupted: it was ended from outside.
    """

    def __init__(self) -> None:
        self.rows: list[ScanRow] = []
        self.tried = 0
        self.without = 0
        self.interrupted = False

    def run(self, places: Sequence[str], options: dict[str, Any], timeout: float) -> None:
        """Check everything at the places, and append to `rows`; an interrupt ends it and sets `interrupted`.

        `tried` counts the definitions that were tried, and `without` those of them that have no row.

        Raises:
            ModelError: code `check.scan`, for a place that is not there; and as `check_process.scanned`.
        """
        from clearhead.checking.scanning.sources import sources as read
        from clearhead.checking.scanning.trial import NOT_MADE, ScanRow

        with progress_bars() as progress:
            try:
                sources = [each for place in places for each in read(place, progress)]
                unread = (each for each in sources if each.error)
                self.rows += [
                    ScanRow(each.module, NOT_MADE, each.error, each.file, each.line)
                    for each in unread
                ]
                whole = [each for each in sources if not each.error]
                count = max(sum(len(each.definitions) for each in whole), 1)
                rows = check_process.scanned(whole, options, timeout=timeout)
                with closing(rows):
                    for _, name, row in rows:
                        if row is not None:
                            self.rows.append(row)
                            self.without -= bool(name)
                        elif name:
                            self.tried += 1
                            self.without += 1
                            progress("trying", self.tried / count)
            except KeyboardInterrupt:
                self.interrupted = True

    def as_dict(self) -> dict[str, Any]:
        """Return `rows`, `totals` by outcome, `tried`, and `complete` (False if interrupted), as JSON data."""
        return {
            "rows": [asdict(each) for each in self.rows],
            "totals": Counter(each.outcome for each in self.rows),
            "tried": self.tried,
            "complete": not self.interrupted,
        }

    def show(self, reports: Sequence["Report"]) -> None:
        """Print the table, and then the reports."""
        from clearhead.drawing.terminal.scanned import print_report, print_scan

        console = Console()
        print_scan(console, self.rows, without=self.without, interrupted=self.interrupted)
        for each in reports:
            console.print()
            print_report(console, each, everything=True)

    def exit_code(self, strict: bool) -> int:
        """Return the exit code: 130 after an interrupt, 1 for a mistake, 3 if there are rows and nothing was tried.

        0 otherwise. With `strict` it is 1 for any row that is not right.
        """
        outcomes = {each.outcome for each in self.rows}
        if self.interrupted:
            return 130
        if "wrong" in outcomes or (strict and outcomes - {"right"}):
            return 1
        return 3 if self.rows and not self.tried else 0
