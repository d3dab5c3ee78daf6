"""The way up to what draws."""

import subprocess
import sys

from clearhead._common.lazy import drawing


def test_it_is_the_module_itself() -> None:
    from clearhead.drawing import labels

    assert drawing("labels") is labels


def test_nothing_is_fetched_before_somebody_looks() -> None:
    code = "import sys, clearhead; assert 'clearhead.drawing' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
