"""The rates at which `check` finds and names the mistakes of a bank: python -m tests.checking.rates [open|held-out]."""

import argparse
import importlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import clearhead as ch
from clearhead.checking.subject.refusals import first_line
from clearhead.checking.words import code_of
from tests.checking.bank.entry import Entry
from tests.checking.bank.modules import MultiHeadAttention

BANKS = {
    "open": "tests.checking.bank",
    "held-out": "tests.checking.bank.held_out",
    "laws": "tests.checking.bank.laws",
    "lessons": "tests.checking.bank.lessons.first_entries",
    "lessons-held-out": "tests.checking.bank.lessons.later_entries",
}


@dataclass(frozen=True)
class Outcome:
    """The outcome of one entry: the names in the order found, or the error of the call."""

    entry: Entry
    codes: tuple[str, ...]
    error: str
    seconds: float
    outcome: str = ""

    @property
    def found(self) -> bool:
        """True if anything was found at all."""
        return bool(self.codes)

    @property
    def named(self) -> bool:
        """True if the first name is one of those that are right."""
        return self.found and self.codes[0] in map(
            code_of, (self.entry.code or "", *self.entry.also)
        )


@dataclass(frozen=True)
class Rates:
    """The outcomes of a bank, counted."""

    outcomes: Sequence[Outcome]

    @property
    def wrong(self) -> list[Outcome]:
        """Those of code with a mistake."""
        return [each for each in self.outcomes if each.entry.code is not None]

    @property
    def right(self) -> list[Outcome]:
        """Those of correct code."""
        return [each for each in self.outcomes if each.entry.code is None]

    @property
    def missed(self) -> list[Outcome]:
        """Mistakes that were not found."""
        return [each for each in self.wrong if not each.found]

    @property
    def misnamed(self) -> list[Outcome]:
        """Mistakes that were found under another name."""
        return [each for each in self.wrong if each.found and not each.named]

    @property
    def alarms(self) -> list[Outcome]:
        """Correct code in which a mistake was found."""
        return [each for each in self.right if each.found]

    @property
    def uncallable(self) -> list[Outcome]:
        """Code, right or wrong, that check could not call."""
        return [each for each in self.outcomes if each.error]

    def __str__(self) -> str:
        wrong, right = len(self.wrong), len(self.right)
        found = wrong - len(self.missed)
        named = found - len(self.misnamed)
        lines = [
            f"{wrong} wrong: {found} found ({found / wrong:.1%}), {named} named ({named / wrong:.1%})",
            f"{right} right: {len(self.alarms)} false alarms",
            f"{len(self.uncallable)} could not be called",
        ]
        seconds = [each.seconds for each in self.outcomes]
        slowest = max(self.outcomes, key=lambda each: each.seconds)
        lines.append(
            f"CPU seconds a check: median {statistics.median(seconds):.2f}, "
            f"at most {max(seconds):.2f} ({slowest.entry.name}), in all {sum(seconds):.0f}"
        )
        for word, outcomes in (
            ("missed", self.missed),
            ("misnamed", self.misnamed),
            ("false alarm", self.alarms),
            ("not callable", self.uncallable),
            ("not judged", [each for each in self.right if "not judged" in each.outcome]),
        ):
            for each in outcomes:
                got = ", ".join(each.codes) or each.error or each.outcome or "nothing"
                wanted = " or ".join((each.entry.code or "right", *each.entry.also))
                lines.append(f"{word}: {each.entry.name}, wanted {wanted}, got {got}")
        return "\n".join(lines)


def outcome(entry: Entry) -> Outcome:
    """Check one entry; the time is that of this process, whatever else the machine does."""
    start = time.process_time()
    codes, error, judged = (), "", ""
    try:
        report = ch.check(entry.make(), takes=entry.takes, **entry.declared)
        codes = tuple(each.code for each in report.findings)
        judged = report.outcome if report.findings or report.ok else report.summary
    except Exception as raised:  # whether it refuses or breaks, nothing is found
        error = first_line(raised)
    return Outcome(entry, codes, error, time.process_time() - start, judged)


def rates(entries: Sequence[Entry]) -> Rates:
    """Check every entry."""
    return Rates([outcome(entry) for entry in entries])


def seconds_of_width_64() -> float:
    """CPU seconds of one check of a module of width 64."""
    sizes = {"d_in": 64, "d_out": 64, "num_heads": 4, "context_length": 64, "dropout": 0.1}
    start = time.process_time()
    report = ch.check(MultiHeadAttention, takes="x", args=sizes, causal=True, dropout=0.1)
    assert report.ok
    return time.process_time() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bank", nargs="?", default="open", choices=BANKS)
    bank = importlib.import_module(BANKS[parser.parse_args().bank])
    print(rates(bank.ENTRIES))
    print(f"one check of a module of width 64: {seconds_of_width_64():.2f} CPU seconds")
