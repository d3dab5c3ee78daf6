"""`python -m benchmarks [pattern] [--quick] [--list]`"""

import argparse
import contextlib
import fnmatch
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import report
from benchmarks.harness import CASES, ROOT, Case, ResultsDifferError, environment, run_case

BUDGET, QUICK_BUDGET = 10.0, 1.0

Tick = Callable[[str, float], None]


def load_cases() -> None:
    """Import every `cases_*.py`, which registers what is in it."""
    for path in sorted(Path(__file__).parent.glob("cases_*.py")):
        importlib.import_module(f"benchmarks.{path.stem}")


def chosen(pattern: str) -> list[Case]:
    """The cases whose name contains the pattern, or matches it (`attend-*-512`)."""
    return [
        case
        for name, case in sorted(CASES.items())
        if pattern in name or fnmatch.fnmatchcase(name, pattern)
    ]


@contextlib.contextmanager
def progress(cases: int) -> Iterator[Callable[[Case], Tick]]:
    """A bar on a terminal that has one, silence elsewhere."""
    # The bar takes over standard output too, which must not happen to a file.
    if not (sys.stderr.isatty() and sys.stdout.isatty()):
        yield lambda case: lambda doing, done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task, begun = bar.add_task("", total=cases), iter(range(cases))

        def follow(case: Case) -> Tick:
            number = next(begun)

            def tick(doing: str, done: float) -> None:
                bar.update(task, description=f"{case.name}: {doing}", completed=number + done)

            return tick

        yield follow


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="part of a name, or a glob")
    parser.add_argument("--quick", action="store_true", help="a first idea; nothing is stored")
    parser.add_argument(
        "--list", action="store_true", help="name the cases and what they are to reach"
    )
    options = parser.parse_args(arguments)

    load_cases()
    cases = chosen(options.pattern)
    if options.list:
        for case in cases:
            print("  ".join([case.name, case.work, *(target.text for target in case.reach)]))
        return 0
    if not cases:
        print(f"no case is called {options.pattern!r}; see --list", file=sys.stderr)
        return 1

    where, differing = environment(), 0
    records: list[tuple[str, report.Record]] = []
    with progress(len(cases)) as follow:
        for case in cases:
            try:
                outcome = run_case(
                    case, budget=QUICK_BUDGET if options.quick else BUDGET, tick=follow(case)
                )
            except ResultsDifferError as error:
                print(f"no figure, for the results differ: {error}", file=sys.stderr)
                differing += 1
                continue
            record = report.stamp(outcome.record(), where)
            records.append((case.group, record))
            print(report.line(record), flush=True)
    if records and not options.quick:
        written = [*report.store(records), report.publish()]
        print("written: " + ", ".join(str(path.relative_to(ROOT)) for path in written))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
