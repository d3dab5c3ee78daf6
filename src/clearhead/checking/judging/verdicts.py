"""The answers of a rule: a mistake, none, or that it cannot be known."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from clearhead.checking.evidence.cases import Broken

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    """A mistake.

    Attributes:
        way: the variant of its sentence in the catalogue.
        values: the values of its sentence.
        measured: a key of the catalogue, and its values; None without a measurement.
    """

    way: str
    values: Values = field(default_factory=dict)
    measured: tuple[str, Values] | None = None


@dataclass(frozen=True)
class Clear:
    """No mistake, as measured; `tick` is the report's line about the measurement, or ""."""

    tick: str = ""
    values: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Unknown:
    """It cannot be known; `why` is a reason of the catalogue, `asked` is False if it is not declared."""

    why: str
    values: Values = field(default_factory=dict)
    asked: bool = True


Verdict = Found | Clear | Unknown


@dataclass(frozen=True)
class Claim:
    """A mistake of one topic, before a rule takes it."""

    topic: str
    code: str
    found: Found


def broken_law(broken: Broken) -> Found:
    """Return the finding of a broken case: its gap as a number, or its text if the gap is not finite."""
    if isfinite(broken.gap):
        return Found(broken.way, {}, ("law", {"gap": f"{broken.gap:.3g}", "at": broken.at}))
    return Found(broken.way, {}, ("text", {"text": broken.at}))
