"""Code that nobody looks at while `check` is built; it is run once, at the end."""

from tests.conformance.bank.entry import Entry

ENTRIES: list[Entry] = []
