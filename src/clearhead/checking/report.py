"""The report of `check` as text, as JSON, as SARIF and as a page."""

import linecache
import os
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from clearhead._common.elements import Drawn
from clearhead._text import as_json, readable
from clearhead.checking.pages import page, section

WIDTH = 100
# Largest number of lines of a short report; everything=True prints the rest.
TOLD = 3
RIGHT, WRONG, NOT_JUDGED, NOT_BEGUN = "right", "wrong", "not judged", "not begun"


@dataclass(frozen=True)
class Finding:
    """One mistake: its name, what it does, the measurement, and the line that is likely wrong.

    `place` is file and line of the operation that it is about, None if unknown; `read` is the lesson to read again, ""
    outside of lessons.

    Example:
        >>> def unscaled(query, key, value):
        ...     return torch.softmax(query @ key.mT, dim=-1) @ value
        >>> ch.check(unscaled, takes="qkv").findings[0].code
        'scale.missing'
    """

    code: str
    sentence: str
    measured: str = ""
    likely: str = ""
    place: tuple[str, int] | None = None
    read: str = ""

    @property
    def see(self) -> str:
        """The command that explains the mistake, with a wrong and a right example; "" where a lesson does."""
        return "" if self.read else f"clearhead explain {self.code}"


@dataclass(frozen=True, repr=False)
class Report(Drawn):
    """The report of `check`: right, wrong, not judged, or not begun.

    Attributes:
        name: of what was checked.
        findings: the mistakes, the first cause first.
        passed: what was held against the definition, or the contract, and is right.
        told: what was measured but not declared, and so is not judged.
        skipped: what could not be held against anything, and why.
        sizes: the sizes that it was run with.
        unverified: what was declared, or belongs to any attention, and could not be verified: what,
            why, and what would make it judgeable.
        place: file and line of what was checked, where they are known.
        unwritten: the functions that are not written yet, by name, file and line.
        lesson: the number of the lesson that it was graded in.

    Example:
        >>> report = ch.check(ch.attend, takes="qkv")
        >>> report.ok, report.outcome, report.findings
        (True, 'right', ())
    """

    name: str
    findings: tuple[Finding, ...]
    passed: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    unverified: tuple[str, ...] = ()
    place: tuple[str, int] | None = None
    unwritten: tuple[str, ...] = ()
    lesson: int | None = None

    @property
    def outcome(self) -> str:
        """The outcome: "right", "wrong", "not begun", or "not judged".

        It is "right" if all that was declared was verified, "wrong" if a mistake was found, and "not begun" if the code
        is not written yet.
        """
        if self.unwritten:
            return NOT_BEGUN
        if self.findings:
            return WRONG
        return NOT_JUDGED if self.unverified else RIGHT

    @property
    def ok(self) -> bool:
        """True if no mistake was found, and all that was declared was verified."""
        return self.outcome == RIGHT

    @property
    def summary(self) -> str:
        """The outcome in words, as "2 mistakes found", "no mistake found", "not judged: …" or "not begun: …"."""
        count = len(self.findings)
        if self.unwritten:
            names = (each.partition(" ")[0] for each in self.unwritten)
            others = ", ".join(each for each in names if each != self.name)
            return f"not begun: {others}" if others else "not begun"
        if not self.findings:
            what = ", ".join(each.partition(":")[0] for each in self.unverified)
            return f"not judged: {what}" if self.unverified else "no mistake found"
        return f"{count} mistake{'s' if count > 1 else ''} found"

    def text(self, *, everything: bool = False) -> str:
        """Return the report as text; with `everything` also what was skipped, and all remarks instead of three lines.

        What was not judged is left out if there are findings.
        """
        lines = [line for finding in self.findings for line in _lines(finding)]
        lines += [f"· not begun   {each}" for each in self.unwritten]
        remarks = [f"✓ {each}" for each in self.passed]
        lines += _filled(remarks)
        if not self.findings:
            lines += [
                line
                for each in self.unverified
                for line in _wrapped(each, "? not judged  ", " " * 4)
            ]
        if everything:
            lines += _filled([f"– {each}" for each in self.skipped])
        lines += _noted(self.told, everything)
        return readable("\n".join(lines or ["nothing was measured"]))

    def __str__(self) -> str:
        """Return the report as text."""
        return self.text()

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a dict of JSON's types: its attributes, outcome and ok, and for each finding `see`."""
        whole = asdict(self) | {"outcome": self.outcome, "ok": self.ok, "sizes": dict(self.sizes)}
        for finding, made in zip(self.findings, whole["findings"], strict=True):
            made["see"] = finding.see
        return whole

    def to_json(self) -> str:
        """Return the report as JSON text of `as_dict`."""
        return as_json(self.as_dict())

    def to_sarif(self) -> str:
        """Return the report as SARIF 2.1.0, which code hosts show next to the line."""
        return sarif([self])

    def to_html(self) -> str:
        """Return the report as an HTML document, light or dark, which loads nothing."""
        return page(f"check: {self.name}", self._repr_html_())

    def _repr_html_(self) -> str:
        """Return the report as HTML, for notebooks."""
        return section(self)


def sarif(reports: Sequence[Report]) -> str:
    """Return reports as one SARIF 2.1.0 text.

    Mistakes are errors; what was not judged in a report without findings is a note.
    """
    rules = dict.fromkeys(finding.code for report in reports for finding in report.findings)
    results = []
    for report in reports:
        for finding in report.findings:
            likely = f"\nLikely: {finding.likely}." if finding.likely else ""
            text = f"{report.name}: {finding.sentence}.{likely}"
            results.append(
                {
                    "ruleId": finding.code,
                    "level": "error",
                    "message": {"text": text},
                    "locations": _locations(finding.place or report.place),
                }
            )
        results += [
            {
                "ruleId": "not-judged",
                "level": "note",
                "message": {"text": f"{report.name}, not judged: {each}"},
                "locations": _locations(report.place),
            }
            for each in (() if report.findings else report.unverified)
        ]
    driver = {
        "name": "clearhead check",
        "rules": [{"id": code, "help": {"text": f"clearhead explain {code}"}} for code in rules],
    }
    whole = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    return as_json(whole)


def _locations(place: tuple[str, int] | None) -> list[dict[str, Any]]:
    """Return a file and line as SARIF locations; [] if the place is None."""
    if place is None:
        return []
    file, line = place
    region = {"artifactLocation": {"uri": _uri(file)}, "region": {"startLine": line}}
    return [{"physicalLocation": region}]


def _uri(file: str) -> str:
    """Return a file as a URI for code hosts: relative to the current directory if it is in it, else absolute."""
    path = Path(file).absolute()
    here = Path.cwd()
    if not path.is_relative_to(here):
        return path.as_uri()
    return quote(os.fsencode(path.relative_to(here).as_posix()))


def _lines(finding: Finding) -> list[str]:
    """Return a finding as lines of text: its codes and sentence, then the rows of its details, indented."""
    lines = _wrapped(f"✗ {finding.code}   {finding.sentence}", "", " " * 4)
    rows = [("measured", finding.measured), ("likely", finding.likely)]
    if finding.read and finding.place is not None:
        rows.append((f"line {finding.place[1]}", linecache.getline(*finding.place).strip()))
    for word, text in (*rows, ("read", finding.read)):
        lead = f"    {word:<10} "
        for line in text.splitlines():
            lines += _wrapped(line, lead, " " * len(lead))
            lead = " " * len(lead)
    if finding.see:
        lines.append(f"    {'see':<10} {finding.see}")
    return lines


def _noted(told: Sequence[str], everything: bool) -> list[str]:
    """Return the remarks as lines, at most three unless everything is asked for.

    A remark that does not fit is left out for "… more with --all"; if it is the first, its first three lines are
    returned.
    """
    lines: list[str] = []
    for index, each in enumerate(told):
        first, *rest = each.splitlines()
        made = _wrapped(first, "note  " if index == 0 else " " * 6, " " * 6)
        made += [f"{'':<6}{line}" for line in rest]
        if not everything and len(lines) + len(made) > TOLD:
            return [*lines, f"{'':<6}… more with --all"] if lines else made[:TOLD]
        lines += made
    return lines


def _wrapped(text: str, first: str, later: str) -> list[str]:
    """Return text as lines of at most 100 characters, or of one longer word, the first and later ones indented.

    Text that fits is one line, whatever white space is in it.
    """
    if len(first) + len(text) <= WIDTH:
        return [first + text]
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=later,
        replace_whitespace=False,
        drop_whitespace=True,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _filled(parts: Sequence[str]) -> list[str]:
    """Return short remarks as lines, several in a line where they fit; a long one has its own lines."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 3 + len(part) <= WIDTH:
            lines[-1] += f"   {part}"
        else:
            lines += _wrapped(part, "", "  ")
    return lines
