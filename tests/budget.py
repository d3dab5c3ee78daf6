"""Count the code of each package, and compare it with `tests/budget.toml`.

    python -m tests.budget    print the table, and lower each number that has fallen

A line of code holds a token that belongs neither to a comment nor to a docstring.
"""

import ast
import functools
import io
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.surface import MODULES, ROOT, SOURCE

FILE = ROOT / "tests" / "budget.toml"
PARAMETERS = 8
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@functools.cache
def code_lines(text: str) -> int:
    """The lines of code of a module."""
    lines, begins = set[int](), True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in SILENT:
            begins = begins or token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
            continue
        if not (token.type == tokenize.STRING and begins):
            lines |= set(range(token.start[0], token.end[0] + 1))
        begins = False
    return len(lines)


def long_signatures(text: str) -> int:
    """The functions with at least `PARAMETERS` parameters, `self` and `cls` not counted."""
    count = 0
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
            own = len(names) - (names[:1] in (["self"], ["cls"])) + len(node.args.kwonlyargs)
            count += own >= PARAMETERS
    return count


def package_of(path: Path) -> str:
    """The package below clearhead that a module is in; "root" for a module of clearhead itself."""
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else "root"


def counted(rows: Iterable[str]) -> dict[str, int]:
    """The count of each row: of packages, which are named with commas, of all of them, and of the rest."""
    texts = {path: path.read_text("utf-8") for path in MODULES.values()}
    lines = Counter[str]()
    for path, text in texts.items():
        lines[package_of(path)] += code_lines(text)
    stems = Counter(path.stem for path in texts if path.stem != "__init__")
    totals = {
        "sum": lines.total(),
        "files": len(texts),
        "functions of 8 parameters and more": sum(map(long_signatures, texts.values())),
        "names of modules that are used twice": sum(count > 1 for count in stems.values()),
        "lines of frontend/src": physical_lines("frontend/src", ".ts", ".tsx", ".css"),
        "lines of code of tests": sum(
            code_lines(path.read_text("utf-8")) for path in (ROOT / "tests").rglob("*.py")
        ),
        "lines of Markdown of docs": physical_lines("docs", ".md"),
    }
    return {
        row: totals[row] if row in totals else sum(lines[each] for each in row.split(", "))
        for row in rows
    }


def physical_lines(folder: str, *suffixes: str) -> int:
    """The lines of the files of a folder."""
    files = (path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)
    return sum(len(path.read_text("utf-8").splitlines()) for path in files)


def read() -> dict[str, dict[str, int]]:
    """The rows of the table, each with `now` and `target`."""
    return tomllib.loads(FILE.read_text("utf-8"))


def main() -> None:
    """Print the table, and write it with the numbers that have fallen."""
    table = read()
    counts = counted(table)
    written = [line for line in FILE.read_text("utf-8").splitlines() if line.startswith("#")]
    print(f"{'':40} today budget target")
    for row, (now, target) in ((row, tuple(each.values())) for row, each in table.items()):
        print(f"{row:40} {counts[row]:>5} {now:>6} {target:>6}{' above' * (counts[row] > now)}")
        written.append(f'"{row}" = {{ now = {min(now, counts[row])}, target = {target} }}')
    FILE.write_text("\n".join(written) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(__doc__)
    main()
