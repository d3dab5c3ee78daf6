"""The environment of every test, and of every page that a test runs."""

import os
import sys
from pathlib import Path

import pytest
import torch

SEED = 0

# Read when the libraries are imported, hence before any of them is, and inherited by subprocesses.
VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MPLBACKEND": "Agg",
    "OMP_NUM_THREADS": "1",
    # The profiler of PyTorch reads it once, whichever test is the first to use it.
    "KINETO_LOG_LEVEL": "99",
}


def prepare() -> None:
    """No network, no display, one thread: the processes of the tests take all cores, and two threads of each
    would wait for one another."""
    os.environ.update(VARIABLES)
    torch.set_num_threads(1)


def break_package(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a package of that name in front that misses one of its own, `no_such_module`."""
    (folder / f"{name}.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)
