"""What `check` found, as text, as JSON and as a page."""

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    def page(self) -> str:
        """Where the docs explain the mistake, with a wrong and a right example."""
        return f"docs/check.md#{anchor(self.code)}"


def anchor(code: str) -> str:
    """The anchor that a heading of this code has on a page."""
    return code.replace(".", "")


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

    def __str__(self) -> str:
        lines = [line for finding in self.findings for line in _lines(finding)]
        lines += _filled([f"✓ {each}" for each in self.passed])
        lines += _filled([f"– {each}" for each in self.skipped])
        lines += [f"told: {each}" for each in self.told]
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
                "page": each.page,
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
        """The report as a page of its own, which loads nothing."""
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="color-scheme" content="light dark">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>check: {html.escape(self.name)}</title></head><body>{self._repr_html_()}"
            "</body></html>"
        )

    def _repr_html_(self) -> str:
        state = "no mistake found" if self.ok else f"{len(self.findings)} found"
        parts = [f"<h3>{html.escape(self.name)}: {state}</h3>"]
        for each in self.findings:
            rows = [("measured", each.measured), ("likely", each.likely)]
            if each.follows_from:
                rows.append(("follows from", each.follows_from))
            cells = "".join(
                "<tr style='background:none'><th scope='row' align='left' valign='top'>"
                f"{name}</th><td style='text-align:left'>"
                f"<pre style='margin:0;background:none'>{html.escape(text)}</pre></td></tr>"
                for name, text in rows
                if text
            )
            parts.append(
                # Red on white or on black is hard to read; white on red is not.
                f"<p><b style='background:#b00020;color:#fff;padding:1px 6px;border-radius:4px'>"
                f"✗ {html.escape(each.code)}</b> {html.escape(each.sentence)}</p>"
                f"<div style='overflow-x:auto' tabindex='0'><table>{cells}</table></div>"
            )
        for mark, texts in (("✓", self.passed), ("–", self.skipped), ("told:", self.told)):
            parts += [f"<div>{mark} {html.escape(text)}</div>" for text in texts]
        return f'<div style="font-family:system-ui,sans-serif">{"".join(parts)}</div>'


def _lines(finding: Finding) -> list[str]:
    names = " or ".join((finding.code, *finding.also))
    lines = [f"✗ {names}   {finding.sentence}"]
    if finding.follows_from:
        lines[0] += f" (follows from {finding.follows_from})"
    for word, text in (("measured", finding.measured), ("likely", finding.likely)):
        first, *rest = text.splitlines() or [""]
        if text:
            lines.append(f"    {word:<10} {first}")
            lines += [f"    {'':<10} {line}" for line in rest]
    if not finding.follows_from:
        lines.append(f"    {'see':<10} {finding.page}")
    return lines


def _filled(parts: Sequence[str]) -> list[str]:
    """Short remarks side by side, as many as fit a line."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 3 + len(part) <= WIDTH:
            lines[-1] += f"   {part}"
        else:
            lines.append(part)
    return lines


def drawn(rows: Sequence[Sequence[bool | None]]) -> str:
    """A dependency matrix as characters: ● moves, · does not, × is NaN."""
    marks = {True: "●", False: "·", None: "×"}
    return "\n".join(" ".join(marks[cell] for cell in row) for row in rows)
