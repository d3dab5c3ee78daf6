"""Attention as people write it, right and wrong, each with what is true of it.

A TOML file holds programs that have `shared` at their beginning. An entry has a name that is unique in its bank, the
expression that makes its `object`, and what is declared of it; its program is a `text`, or a `diff` of the text `of`
another entry. `open` is what `check` is built against, `laws` what a broken law shows, `tutorials` edits of
the from-scratch tutorials; `check` was not fitted to the two banks that are held out.
"""

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tests.checking.bank.entry import Entry
from tests.checking.bank.texts import patched

HERE = Path(__file__).parent
BANKS = ("open", "laws", "tutorials", "held_out", "tutorials_held_out")
CONVERTED = {
    "alibi_slopes": torch.tensor,
    "sinks": torch.tensor,
    "window": tuple,
    "dtypes": lambda names: tuple(getattr(torch, name) for name in names),
}


@cache
def entries(bank: str) -> tuple[Entry, ...]:
    """Return the entries of a bank, file by file."""
    return tuple(entry for file in sorted((HERE / bank).glob("*.toml")) for entry in _read(file))


def defined(name: str) -> Any:
    """Return the function or class of a name such as "laws.Right", which a program of a bank defines."""
    prefix, _, own = name.partition(".")
    found = (each for bank in BANKS for each in entries(bank) if each.name.startswith(f"{prefix}."))
    signs = f"def {own}(", f"class {own}("
    return next(
        vars(each.module)[own] for each in found if any(sign in each.text for sign in signs)
    )


def _read(file: Path) -> Iterator[Entry]:
    data = tomllib.loads(file.read_text(encoding="utf-8"))
    texts: dict[str, str] = {}
    for row in data["entry"]:
        text = texts[row["of"]] if "of" in row else row.get("text", "")
        texts[row["name"]] = text = patched(text, row["diff"]) if "diff" in row else text
        yield Entry(
            row["name"],
            row["object"],
            row["takes"],
            _converted(row.get("declared", {})),
            tuple(row.get("codes", ())),
            "\n\n".join(filter(None, (data["shared"], text))),
            row.get("line", ""),
            _converted(row.get("facts", {})),
            row.get("unproved", ""),
        )


def _converted(declared: Mapping[str, Any]) -> dict[str, Any]:
    return {key: CONVERTED.get(key, lambda same: same)(value) for key, value in declared.items()}
