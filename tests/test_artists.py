"""Who draws a thing is found by name."""

import subprocess
import sys

import pytest

from clearhead.artists import artist
from clearhead.drawing.labels import label


def test_it_is_the_function_itself() -> None:
    assert artist("labels.label") is label


@pytest.mark.parametrize("name", ["nowhere.label", "labels.nothing"])
def test_a_name_that_is_wrong_is_an_error(name: str) -> None:
    with pytest.raises((ModuleNotFoundError, AttributeError), match=r"nowhere|nothing"):
        artist(name)


def test_nothing_that_draws_is_imported_before_somebody_looks() -> None:
    code = "import sys, clearhead; print([n for n in sys.modules if 'clearhead.drawing' in n])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
