"""docs/reliability.md: each promise names a test that is there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_each_promise_names_a_test() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if re.match(r"\| (?!promise|verb|---)", line)]
    rows = [row for row in rows if not row.startswith("|---")]
    assert len(rows) > 15
    for row in rows:
        named = re.search(r"`(tests/[\w/]+\.py)(?:::(\w+))?` \|$", row)
        assert named, row
        source = (ROOT / named[1]).read_text(encoding="utf-8")
        assert named[2] is None or f"def {named[2]}(" in source, row
