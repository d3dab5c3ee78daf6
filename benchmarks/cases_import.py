"""The cost of clearhead's imports, in processes of their own."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial

from benchmarks.harness import Sides, case

CORE = "from clearhead import MultiHeadAttention, attend, watch"
EVERYTHING = "from clearhead import *"


def _running(*arguments: str) -> Callable[[], int]:
    command = [sys.executable, *arguments]
    # As on a user's machine, where only the first import compiles.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return lambda: (
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL).returncode
    )


def _beside_torch(name: str, *arguments: str) -> Sides:
    return {name: _running(*arguments), "import torch": _running("-c", "import torch")}


# Processes scatter more than calls, and have no memory that could be told from that of torch.
process = partial(case, memory=False, rounds=15)


@process(
    "import",
    reach="<= 120000us",
    work="a fresh process, against `import torch`",
    limit="150 modules take 75 to 95 ms of a core once PyTorch is there, a quarter of it for 50 dataclasses. "
    "The rest is at the end of the process, where Python goes through 178 000 objects, of which 12 300 "
    "are ours, and through what PyTorch's import has left, which is not collected on the way.",
)
def importing() -> Sides:
    return _beside_torch(CORE, "-c", CORE)


@process(
    "import-all",
    reach="<= 400000us",
    work="every public name in a fresh process, against `import torch`",
)
def importing_all() -> Sides:
    return _beside_torch(EVERYTHING, "-c", EVERYTHING)


@process(
    "command-line",
    reach="<= 0.2x",
    work="`clearhead --help` in a fresh process, against `import torch`",
)
def command_line() -> Sides:
    return _beside_torch("clearhead --help", "-m", "clearhead", "--help")
