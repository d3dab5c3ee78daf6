"""The code of each package stays within `tests/budget.toml`, whose numbers may only fall."""

from pathlib import Path

import pytest

from tests import budget
from tests.surface import MODULES

TABLE = budget.read()
COUNTS = budget.counted(TABLE)


@pytest.mark.parametrize("row", TABLE)
def test_a_count_is_within_its_budget(row: str) -> None:
    assert COUNTS[row] <= TABLE[row]["now"], "python -m tests.budget prints the table"


def test_every_package_has_a_row() -> None:
    packages = {each for row in TABLE for each in row.split(", ")}
    assert {budget.package_of(path) for path in MODULES.values()} <= packages
    total = list(TABLE).index("sum")
    assert COUNTS["sum"] == sum(list(COUNTS.values())[:total])


def test_what_is_a_line_of_code() -> None:
    text = '''"""A docstring

of three lines."""
# A comment.
def f(
    x,  # and another
):
    """A docstring."""
    return """a text
of two lines"""
'''
    assert budget.code_lines(text) == 5
    assert budget.code_lines("\n\n") == 0


def test_which_functions_have_many_parameters() -> None:
    text = "def f(a, b, c, d, /, e, f, *, g{}): ...\nclass C:\n    def f(self, a, b, c, d, e, f, g): ...\n"
    assert [budget.long_signatures(text.format(more)) for more in ("", ", h")] == [0, 1]


def test_numbers_are_only_lowered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "budget.toml"
    rows = {"attention": COUNTS["attention"] + 1, "matrix": COUNTS["matrix"] - 1}
    lines = [f'"{row}" = {{ now = {now}, target = 7 }}' for row, now in rows.items()]
    file.write_text("\n".join(["# Words.", *lines]), encoding="utf-8")
    monkeypatch.setattr(budget, "FILE", file)
    budget.main()
    assert budget.read() == {
        "attention": {"now": COUNTS["attention"], "target": 7},
        "matrix": {"now": rows["matrix"], "target": 7},
    }
    assert file.read_text("utf-8").startswith("# Words.\n")
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:3]] == [
        "7",
        "above",
    ]
