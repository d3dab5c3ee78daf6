"""What the probes and the judges write down, until it becomes a report."""

from clearhead.checking.report import Finding, Report


class Notes:
    """Findings, and what was right, told or skipped, in order and each once."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.passed: list[str] = []
        self.told: list[str] = []
        self.skipped: list[str] = []
        # Whether a module differs that has nothing but projections, and no name was found for it.
        self.unnamed = False

    def found(
        self,
        code: str,
        sentence: str,
        measured: str = "",
        likely: str = "",
        also: tuple[str, ...] = (),
        follows_from: str | None = None,
    ) -> None:
        """A mistake; one of a name is enough."""
        if code not in self.codes:
            self.findings.append(Finding(code, sentence, measured, likely, also, follows_from))

    @property
    def codes(self) -> list[str]:
        """The names found so far."""
        return [finding.code for finding in self.findings]

    @property
    def cause(self) -> str | None:
        """The first cause, if there is one."""
        return self.findings[0].code if self.findings else None

    def right(self, text: str) -> None:
        """Something that was held against the definition and is right."""
        if text not in self.passed:
            self.passed.append(text)

    def tell(self, text: str) -> None:
        """Something measured that nobody declared."""
        if text not in self.told:
            self.told.append(text)

    def skip(self, text: str) -> None:
        """Something that could not be judged."""
        if text not in self.skipped:
            self.skipped.append(text)

    def report(self, name: str, sizes: dict[str, int]) -> Report:
        """All of it, causes before what follows from them."""
        ordered = sorted(self.findings, key=lambda finding: finding.follows_from is not None)
        return Report(
            name,
            tuple(ordered),
            tuple(self.passed),
            tuple(self.told),
            tuple(self.skipped),
            tuple(sorted(sizes.items())),
        )
