"""The version is that of what is installed, and asking for it imports nothing heavy."""

import subprocess
import sys
from importlib.metadata import version

import clearhead as ch


def test_the_version_is_that_of_the_package() -> None:
    assert ch.__version__ == version("clearhead")
    assert "__version__" in dir(ch)


def test_it_comes_without_torch() -> None:
    code = "import sys, clearhead; clearhead.__version__; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
