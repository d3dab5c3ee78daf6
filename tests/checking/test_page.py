"""docs/check.md explains every name that a report can hold."""

import ast
import re
from collections import Counter
from pathlib import Path

from tests.checking.bank import ENTRIES
from tests.surface import MODULES, ROOT

CODE = re.compile(
    r"(mask|softmax|scale|bias|softcap|heads|batch|dropout|output|cache|rope|grad|input|dtype"
    r"|context|weights|shape|state)\.[a-z][a-z-]+"
)
# Errors of `check` itself have codes of the same form.
ERRORS = {"shape.kv-heads"}


def emitted() -> set[str]:
    """Every code that stands in the source of the conformance package."""
    found = {"differs"}
    for name, path in MODULES.items():
        if not name.startswith("clearhead.checking"):
            continue
        for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {node.value} if CODE.fullmatch(node.value) else set()
    return {
        code for code in found if not code.endswith((".type", ".value", ".shape", ".name"))
    } - ERRORS


def headings() -> list[str]:
    page = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    return [
        each for each in re.findall(r"^## (\S+)$", page, re.M) if "." in each or each == "differs"
    ]


def test_every_name_is_explained() -> None:
    assert set(headings()) == emitted()
    assert len(headings()) == len(set(headings()))


def test_every_name_is_in_the_bank_in_two_styles() -> None:
    counts = Counter(entry.code for entry in ENTRIES)
    assert {
        code: counts[code] for code in headings() if counts[code] < 2 and code != "differs"
    } == {}
