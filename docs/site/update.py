"""Write what the blocks of lessons print now into their pages: `python -m docs.site.update 4 7`."""

import os
import sys
import tempfile
from pathlib import Path

from clearhead.lessons.lesson import page_of, read_lesson
from docs.site.session import Session
from tests.environment import prepare
from tests.test_docs import agrees, plain


def update(number: int) -> int:
    """Run a lesson in full and write the outputs that differ; how many those are."""
    page = page_of(number)
    lines = page.read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        session = Session(read_lesson(number), Path(folder), brief=False).run()
    changed = [(block, out) for block, out in session.held if not agrees(block.source, out)]
    # From the bottom up, so that the line numbers above stay true.
    for block, printed in reversed(changed):
        start = block.line - 1
        lines[start : start + len(block.source.splitlines())] = plain(printed).splitlines()
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(changed)


if __name__ == "__main__":
    prepare()
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1"}
    for number in map(int, sys.argv[1:]):
        print(f"lesson {number}: {update(number)} outputs written anew")
