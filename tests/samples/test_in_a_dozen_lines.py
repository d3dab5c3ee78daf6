"""The studies of a dozen lines, run as they stand on their page."""

import contextlib
import io
import re

import pytest

from tests.samples.needing import smollm2
from tests.surface import ROOT
from tests.test_docs import Block, blocks

PAGE = ROOT / "docs" / "applications" / "in_a_dozen_lines.md"
NUMBER = re.compile(r"[-+]?\d+\.\d+")
STUDIES = [
    each for each in blocks(PAGE, PAGE.read_text().splitlines()) if each.language == "python"
]


@pytest.mark.parametrize("study", STUDIES, ids=lambda each: str(each.start))
def test_a_study_prints_what_its_page_shows(study: Block) -> None:
    smollm2()
    assert len(study.source.splitlines()) <= 12
    assert study.output is not None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(study.source, str(PAGE), "exec"), {})
    found, shown = (
        ["".join(each.split()) for each in text.splitlines()]
        for text in (printed.getvalue(), study.output.source)
    )
    assert [NUMBER.sub("", each) for each in found] == [NUMBER.sub("", each) for each in shown]
    numbers = ([float(each) for each in NUMBER.findall(" ".join(some))] for some in (found, shown))
    one, other = numbers
    # What is printed is rounded to two digits or more, and a metric is a difference of logits near 10.
    assert one == pytest.approx(other, abs=0.02)
