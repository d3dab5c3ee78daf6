"""docs/bad_input.md says what clearhead says; what others say depends on their version."""

import importlib.util
import re
from types import ModuleType

import pytest

from tests.surface import ROOT

PAGE = ROOT / "docs" / "bad_input.md"


def load_generator() -> ModuleType:
    path = ROOT / "docs" / "generate_bad_input.py"
    spec = importlib.util.spec_from_file_location("generate_bad_input", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = load_generator()


def shown() -> list[list[str]]:
    """The rows of the table on the page, cell by cell."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    return [re.split(r" (?<!\\)\| ", line.removeprefix("| ").removesuffix(" |")) for line in lines]


def test_the_page_has_every_row() -> None:
    header, *rows = shown()
    assert header[-1] == "`clearhead.attend`"
    assert [row[0] for row in rows] == [row.text for row in GENERATOR.ROWS]
    assert {len(row) for row in rows} == {4}


@pytest.mark.parametrize("number", range(len(GENERATOR.ROWS)), ids=lambda n: GENERATOR.ROWS[n].text)
def test_the_page_says_what_clearhead_says(number: int) -> None:
    found, cell = GENERATOR.ours_says(GENERATOR.ROWS[number]), shown()[1 + number][3]
    if cell.startswith("TypeError: "):
        # The words are Python's, and later versions add a guess.
        assert found.startswith(cell)
    else:
        assert found == cell, "python docs/generate_bad_input.py writes the page anew"
    assert "SILENT" not in found
    assert "Error: [" in found or found.startswith(("accepted (", "TypeError: attend()"))
