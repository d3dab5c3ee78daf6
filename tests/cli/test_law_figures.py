"""The laws of attention as figures: the numbers hold, and those of the broken ones do not."""

import re

import pytest

from clearhead.checking.rules import CODES
from clearhead.cli.law_figures import FIGURES, figure
from tests.cli.commands import lines


def columns(code: str) -> dict[str, list[float]]:
    """The numbers under each name."""
    head, *rows = figure(code).partition("\n\n")[0].splitlines()
    starts = [each.start() for each in re.finditer(r"(?<=  )\S|^\S", head)]
    ends = [*starts[1:], None]
    found = {}
    for start, end in zip(starts, ends, strict=True):
        cells = [row[start:end].split() for row in rows]
        found[head[start:end].strip()] = [float(each) for row in cells for each in row]
    return found


def test_every_law_has_a_figure() -> None:
    assert set(FIGURES) == {each for each in CODES if each.startswith("law.")}
    assert figure("mask.inverted") == ""


@pytest.mark.parametrize(
    ("code", "moved", "broken"),
    [
        ("law.value", 1.0, "of context + value"),
        ("law.pairs", 0.0, "keys alone turned"),
        ("law.length", 0.0, "log n in the scale"),
        ("law.samples", 0.0, "keys of sample 0"),
        ("law.again", 0.0, "mask of b kept"),
    ],
)
def test_what_holds_moves_by_what_is_said(code: str, moved: float, broken: str) -> None:
    found = columns(code)
    assert set(found["moved by"]) == {moved}
    assert max(abs(each - moved) for each in found[broken]) > 0.1


def test_the_slope_of_the_scores_is_the_scale() -> None:
    found = columns("law.scores")
    products, logs = found["q·(k − k₀)"], found["log w − log w₀"]
    assert max(abs(a / 2**0.5 - b) for a, b in zip(products, logs, strict=True)) < 1e-3
    assert "0.7071" in figure("law.scores")


def test_explain_prints_it() -> None:
    found = "\n".join(lines("explain", "law.value"))
    assert figure("law.value") in found
