"""Run every code block of README.md and docs/: what a page shows is what happens.

A page is one session, from top to bottom:

- `python` blocks run in order in one namespace. A `text` block directly behind one is what it
  prints.
- `pycon` blocks run through doctest, in the same namespace.
- `console` blocks: lines of `$ clearhead …` and `$ python …` are run in an empty folder and must
  succeed; lines below them are what they print. `$ make …`, `$ pip …`, `$ git …` and `$ cd …` are
  not run.
- `<!-- not run: reason -->` above a block leaves it out.

`...` in an output stands for anything. A block in a language that is neither run nor listed in
SILENT is refused.

To write the outputs that the blocks have now:
`.venv/bin/python -m tests.test_docs --update README.md`.
"""

import contextlib
import difflib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from clearhead.__main__ import main as main_of_clearhead
from tests.environment import SEED, prepare
from tests.surface import ROOT

# The lessons run in tests/lessons, whose blocks have roles.
PAGES = [
    ROOT / "README.md",
    *(each for each in sorted((ROOT / "docs").rglob("*.md")) if not each.name[:1].isdigit()),
    ROOT / "src" / "clearhead" / "checking" / "mistakes.md",
]
EXECUTED = {"python", "pycon", "console"}
SILENT = {"text", "toml", "json", "yaml", "diff", "mermaid", "bibtex", "makefile"}
NOT_RUN_COMMANDS = {"make", "pip", "git", "cd"}

FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,}|~{3,}) *(?P<language>[^\s`]*)")
NOT_RUN = re.compile(r" *<!-- *not run(?P<reason>.*)-->")
FLAGS = doctest.ELLIPSIS | doctest.DONT_ACCEPT_TRUE_FOR_1


class PageError(AssertionError):
    """A page is not what it says; the message begins with file and line."""


@dataclass
class Block:
    """A fenced block: `lines[start:stop]` of the page, without its fences."""

    language: str
    source: str
    start: int
    stop: int
    indent: int = 0
    runs: bool = True
    output: "Block | None" = None


def blocks(page: Path, lines: list[str]) -> Iterator[Block]:
    """Every fenced block of the page, each `text` output also attached to its `python` block."""
    found: list[Block] = []
    at, not_run, above = 0, False, None
    while at < len(lines):
        line = lines[at]
        fence = FENCE.match(line)
        if not fence:
            if comment := NOT_RUN.match(line):
                if not re.fullmatch(r": *\S.*", comment["reason"].rstrip()):
                    raise PageError(f"{page.name}:{at + 1}: a block is left out without a reason")
                not_run = True
            elif line.strip():
                not_run, above = False, None
            at += 1
            continue
        start = at + 1
        closing = re.compile(rf" *{fence['ticks'][0]}{{{len(fence['ticks'])},}}\s*$")
        stop = next((i for i in range(start, len(lines)) if closing.match(lines[i])), None)
        if stop is None:
            raise PageError(f"{page.name}:{start}: the block is never closed")
        if fence["language"] not in EXECUTED | SILENT and not not_run:
            raise PageError(
                f"{page.name}:{start}: a block in {fence['language'] or 'no language'!r}; "
                f"known are {', '.join(sorted(EXECUTED | SILENT))}"
            )
        source = textwrap.dedent("\n".join(lines[start:stop]) + "\n")
        block = Block(
            fence["language"], source, start, stop, len(fence["indent"]), runs=not not_run
        )
        found.append(block)
        if block.language == "text" and above and above.language == "python":
            above.output = block
        at, not_run, above = stop + 1, False, block
    yield from found


def plain(text: str) -> str:
    """Without spaces at the ends of lines, and blank lines at the end."""
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip()


def agrees(shown: str, printed: str) -> bool:
    checker = doctest.OutputChecker()
    return checker.check_output(plain(shown) + "\n", plain(printed) + "\n", FLAGS)


def difference(shown: str, printed: str) -> str:
    lines = difflib.unified_diff(
        plain(shown).splitlines(), plain(printed).splitlines(), "shown", "printed", lineterm=""
    )
    return "\n".join(lines)


@dataclass
class Command:
    """One `$ …` of a console block, and the lines below it."""

    line: int
    text: str
    shown: str

    def argv(self) -> list[str] | None:
        """The arguments to run, or None for a command that is not run."""
        words = shlex.split(self.text.replace("\\\n", " "), comments=True)
        if words[0] in NOT_RUN_COMMANDS:
            return None
        if words[0] == "clearhead":
            return words
        if words[0] == "python":
            # The folder is an empty one; the files named are those of the project.
            known = [str(ROOT / word) if (ROOT / word).is_file() else word for word in words[1:]]
            return [sys.executable, *known]
        raise ValueError(f"cannot run {words[0]!r}: write clearhead, python, or a comment why not")


def commands(block: Block) -> list[Command]:
    found: list[Command] = []
    continued = False
    for number, line in enumerate(block.source.splitlines(), start=block.start + 1):
        if continued:
            found[-1].text += "\n" + line
        elif line.startswith("$ "):
            found.append(Command(number, line[2:], ""))
        elif found:
            found[-1].shown += line + "\n"
        elif line.strip():
            raise ValueError("a console block starts with a line `$ command`")
        continued = line.endswith("\\") and (continued or line.startswith("$ "))
    return found


@dataclass
class Session:
    """A page being run: its namespace and its folder."""

    page: Path
    folder: Path
    namespace: dict[str, object] = field(default_factory=lambda: {"__name__": "__main__"})

    def python(self, block: Block) -> str:
        # The blank lines give a traceback the line numbers of the page.
        code = compile("\n" * block.start + block.source, str(self.page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, self.namespace)
        return printed.getvalue()

    def pycon(self, block: Block) -> None:
        parser = doctest.DocTestParser()
        test = parser.get_doctest(
            block.source, self.namespace, self.page.name, str(self.page), block.start
        )
        if not test.examples:
            raise PageError(f"{self.page.name}:{block.start}: a pycon block without >>>")
        report: list[str] = []
        runner = doctest.DocTestRunner(optionflags=FLAGS)
        runner.run(test, out=report.append, clear_globs=False)
        self.namespace.update(test.globs)
        if report:
            raise PageError("".join(report))

    def command(self, command: Command) -> str | None:
        """The output of the command; None if it is one that is not run."""
        try:
            argv = command.argv()
        except ValueError as error:
            raise PageError(f"{self.page.name}:{command.line}: {error}") from None
        if argv is None:
            return None
        if argv[0] == "clearhead":
            code, printed, errors = self.clearhead(argv)
        else:
            code, printed, errors = self.process(argv)
        if code:
            raise PageError(
                f"{self.page.name}:{command.line}: $ {command.text}\n"
                f"ended with {code}:\n{printed}{errors}"
            )
        return printed

    def clearhead(self, argv: list[str]) -> tuple[int, str, str]:
        """The command line in this process: another one would import everything again.

        tests/cli runs it as processes. The generator of random numbers is that of the page, which a
        command leaves as it was.
        """
        printed, errors = io.StringIO(), io.StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(errors),
            torch.random.fork_rng(),
        ):
            patch.setattr(sys, "argv", argv)
            code = main_of_clearhead()
        return code, printed.getvalue(), errors.getvalue()

    def process(self, argv: list[str]) -> tuple[int, str, str]:
        environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
        run = subprocess.run(
            argv, cwd=self.folder, env=environment, capture_output=True, encoding="utf-8"
        )
        return run.returncode, run.stdout, run.stderr

    def run(self, lines: list[str]) -> Iterator[tuple[Block, str, str]]:
        """Run the page; yield each shown output: its block, what is shown, what was printed."""
        for block in blocks(self.page, lines):
            if not block.runs:
                continue
            if block.language == "python":
                printed = self.python(block)
                if block.output:
                    yield block.output, block.output.source, printed
            elif block.language == "pycon":
                self.pycon(block)
            elif block.language == "console":
                yield from self.console(block)

    def console(self, block: Block) -> Iterator[tuple[Block, str, str]]:
        try:
            found = commands(block)
        except ValueError as error:
            raise PageError(f"{self.page.name}:{block.start + 1}: {error}") from None
        shown, printed = "", ""
        for command in found:
            output = self.command(command)
            keep = not command.shown.strip() or output is None or agrees(command.shown, output)
            shown += f"$ {command.text}\n{command.shown}"
            printed += f"$ {command.text}\n{command.shown if keep else output}"
        yield block, shown, printed


def read(page: Path) -> list[str]:
    return page.read_text(encoding="utf-8").splitlines()


def check(page: Path, folder: Path) -> None:
    """Raise PageError at the first output that is not what the page shows."""
    for block, shown, printed in Session(page, folder).run(read(page)):
        if not agrees(shown, printed):
            raise PageError(
                f"{page.name}:{block.start + 1}: the output differs\n{difference(shown, printed)}"
            )


def update(page: Path, folder: Path) -> int:
    """Write what the blocks print now in place of what differs; how many outputs changed."""
    lines = read(page)
    changed = [
        (block, printed)
        for block, shown, printed in Session(page, folder).run(lines)
        if not agrees(shown, printed)
    ]
    # From the bottom up, so that the line numbers above stay true.
    for block, printed in reversed(changed):
        text = textwrap.indent(plain(printed), " " * block.indent)
        lines[block.start : block.stop] = text.splitlines()
    if changed:
        page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(changed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    if page.name != "across.md":
        check(page, tmp_path)
        return
    # Its ranks are forks, which need a process without the threads of other tests.
    copy = write(tmp_path, page.read_text("utf-8"))
    update = [sys.executable, "-m", "tests.test_docs", "--update", copy]
    subprocess.run(update, cwd=ROOT, check=True)
    assert copy.read_text("utf-8") == page.read_text("utf-8")


GOOD = """
# A page

```python
x = 3
print(x)
```

```text
3
```

```python
print("a long", "line")
```
```text
a ... line
```

```pycon
>>> x + 1
4
>>> y = x
```

1. In a list:
   ```python
   print(y)
   ```
   ```text
   3
   ```

```console
$ make demo
anything
$ python -c "print('here'); \\
  print(3)"   # the rest of the line
here
3
```

<!-- not run: it needs a GPU -->
```python
raise SystemExit
```

```toml
x = 1
```
"""


def write(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("```text\n3", "```text\n4", r"(?s)page\.md:10: the output differs.*-4\n\+3"),
        (">>> x + 1\n4", ">>> x + 1\n5", r"(?s)line 21, .*Expected:\n +5\nGot:\n +4"),
        ("   ```text\n   3", "   ```text\n   4", r"page\.md:31: the output differs"),
        ("here\n3", "here\n4", r"page\.md:35: the output differs"),
        ("print(3)", "exit(3)", r"(?s)page\.md:37: .*ended with 3"),
        ("run: it needs a GPU", "run", r"page\.md:43: a block is left out without a reason"),
        ("run: it needs a GPU", "run: ", r"page\.md:43: a block is left out without a reason"),
        ("```toml", "```bash", r"page\.md:48: a block in 'bash'; known are "),
        ("```toml", "```", r"page\.md:48: a block in 'no language'; known are "),
        ("x = 1\n```", "x = 1", r"page\.md:48: the block is never closed"),
        ("$ make demo", "$ rm -r .", r"page\.md:35: cannot run 'rm'"),
        ("$ make demo", "make demo", r"page\.md:35: a console block starts with"),
    ],
)
def test_a_false_page_fails(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(PageError, match=message):
        check(write(tmp_path, GOOD.replace(old, new)), tmp_path)


def test_an_error_carries_the_line_of_the_page(tmp_path: Path) -> None:
    page = write(tmp_path, GOOD.replace("x = 3", "x = 3 / 0"))
    with pytest.raises(ZeroDivisionError) as caught:
        check(page, tmp_path)
    assert (caught.traceback[-1].path, caught.traceback[-1].lineno + 1) == (page, 5)


def test_update_writes_what_differs_and_nothing_else(tmp_path: Path) -> None:
    wrong = GOOD.replace("```text\n3", "```text\n4\n5").replace("   ```text\n   3", "   ```text")
    wrong = wrong.replace("here\n3\n", "there\n")
    page = write(tmp_path, wrong)
    assert update(page, tmp_path) == 3
    assert page.read_text(encoding="utf-8") == GOOD
    assert update(page, tmp_path) == 0


def main(arguments: list[str]) -> None:
    if len(arguments) < 2 or arguments[0] != "--update":
        sys.exit("usage: python -m tests.test_docs --update FILE …")
    prepare()
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1"}
    for page in [Path(argument).resolve() for argument in arguments[1:]]:
        torch.manual_seed(SEED)
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            print(f"{page.name}: {update(page, Path(folder))} outputs written anew")


if __name__ == "__main__":
    main(sys.argv[1:])
