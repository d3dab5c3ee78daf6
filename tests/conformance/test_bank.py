"""Every mistake gets its name, and what is right gets none."""

import pytest
import torch

import clearhead as ch
from tests.conformance import functions, modules
from tests.conformance.entry import Entry

ENTRIES = [*functions.BANK, *modules.BANK]


def named(entry: Entry) -> str:
    return f"{entry.code or 'right'}: {entry.name}"


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.code is not None], ids=named)
def test_a_mistake_is_named(entry: Entry) -> None:
    torch.manual_seed(0)
    report = ch.check(entry.subject, **entry.arguments)
    assert report.findings, f"nothing found\n{report}"
    assert report.findings[0].code == entry.code, f"\n{report}"
    assert f"✗ {entry.code}" in str(report)


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.code is None], ids=named)
def test_what_is_right_is_clean(entry: Entry) -> None:
    torch.manual_seed(0)
    report = ch.check(entry.subject, **entry.arguments)
    assert report.ok, f"\n{report}"
