"""What `check` found, as text, as JSON and as a page."""

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clearhead.checking.pages import page, section

WIDTH = 100


@dataclass(frozen=True)
class Finding:
    """One mistake: its name, what it does, the measurement, and the line that is likely wrong.

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
    also: tuple[str, ...] = ()
    follows_from: str | None = None

    @property
    def see(self) -> str:
        """The command that explains the mistake, with a wrong and a right example."""
        return f"clearhead explain {self.code}"


@dataclass(frozen=True)
class Report:
    """What `check` found.

    Attributes:
        name: of what was checked.
        findings: the mistakes, the first cause first.
        passed: what was held against the definition, or the contract, and is right.
        told: what was measured but not declared, and so is not judged.
        skipped: what could not be held against anything, and why.
        sizes: the sizes that it was run with.

    Example:
        >>> report = ch.check(ch.attend, takes="qkv")
        >>> report.ok, report.findings
        (True, ())
        >>> print(ch.check(lambda q, k, v: (q @ k.mT).softmax(-2) @ v, takes="qkv").findings[0].code)
        softmax.axis
    """

    name: str
    findings: tuple[Finding, ...]
    passed: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no mistake was found."""
        return not self.findings

    @property
    def summary(self) -> str:
        """How many mistakes were found, in words."""
        follows = sum(each.follows_from is not None for each in self.findings)
        causes = len(self.findings) - follows
        if not self.findings:
            return "no mistake found"
        words = f"{causes} mistake{'s' if causes > 1 else ''} found"
        return words + (
            f", and {follows} that follow{'s' if follows == 1 else ''}" if follows else ""
        )

    def __str__(self) -> str:
        lines = [line for finding in self.findings for line in _lines(finding)]
        remarks = [f"✓ {each}" for each in self.passed] + [f"– {each}" for each in self.skipped]
        lines += _filled(remarks)
        for index, each in enumerate(self.told):
            first, *rest = each.splitlines()
            lines += _wrapped(first, "told  " if index == 0 else " " * 6, " " * 6)
            lines += [f"{'':<6}{line}" for line in rest]
        return "\n".join(lines or ["nothing was measured"])

    def to_json(self) -> str:
        """The report as JSON: name, ok, findings, passed, told, skipped and sizes."""
        findings = [
            {
                "code": each.code,
                "sentence": each.sentence,
                "measured": each.measured,
                "likely": each.likely,
                "also": list(each.also),
                "follows_from": each.follows_from,
                "see": each.see,
            }
            for each in self.findings
        ]
        whole: dict[str, Any] = {
            "name": self.name,
            "ok": self.ok,
            "findings": findings,
            "passed": list(self.passed),
            "told": list(self.told),
            "skipped": list(self.skipped),
            "sizes": dict(self.sizes),
        }
        return json.dumps(whole, ensure_ascii=False, indent=2)

    def to_html(self) -> str:
        """The report as a page of its own, light or dark, which loads nothing."""
        return page(f"check: {self.name}", self._repr_html_())

    def _repr_html_(self) -> str:
        return section(self)


def _lines(finding: Finding) -> list[str]:
    mark = "  ↳" if finding.follows_from else "✗"
    sentence = finding.sentence
    if finding.follows_from:
        sentence += f" (follows from {finding.follows_from})"
    head = f"{mark} {' or '.join((finding.code, *finding.also))}   {sentence}"
    lines = _wrapped(head, "", " " * 4)
    for word, text in (("measured", finding.measured), ("likely", finding.likely)):
        lead = f"    {word:<10} "
        for line in text.splitlines():
            lines += _wrapped(line, lead, " " * len(lead))
            lead = " " * len(lead)
    if not finding.follows_from:
        lines.append(f"    {'see':<10} {finding.see}")
    return lines


def _wrapped(text: str, first: str, later: str) -> list[str]:
    """Text in lines of the width; what has columns of its own is left as it is."""
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
    """Short remarks side by side, as many as fit a line; a long one has its own lines."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 3 + len(part) <= WIDTH:
            lines[-1] += f"   {part}"
        else:
            lines += _wrapped(part, "", "  ")
    return lines


def drawn(rows: Sequence[Sequence[bool | None]], *, own: bool = False) -> str:
    """A dependency matrix as characters: ● moves, · does not, × is NaN.

    With `own` the diagonal is ○: an output moves with its own token, whose query it is.
    """
    marks = {True: "●", False: "·", None: "×"}
    return "\n".join(
        " ".join(
            "○" if own and cell and column == row else marks[cell]
            for column, cell in enumerate(cells)
        )
        for row, cells in enumerate(rows)
    )
