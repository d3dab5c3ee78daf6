"""Lesson 16, whose class runs in a trained model."""

from pathlib import Path

from clearhead.lessons.lesson import read_lesson
from docs.site.session import Session
from tests.samples.needing import smollm2
from tests.test_docs import agrees, difference


def test_a_class_of_the_course_writes_in_a_trained_model(tmp_path: Path) -> None:
    smollm2()
    session = Session(read_lesson(16), tmp_path).run()
    assert session.live
    for block, printed in session.held:
        assert agrees(block.source, printed), difference(block.source, printed)
