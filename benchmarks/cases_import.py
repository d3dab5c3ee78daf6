"""What clearhead's imports cost, in processes of their own."""

import os
import subprocess
import sys
from collections.abc import Callable

from benchmarks.harness import Sides, case

CORE = "from clearhead import MultiHeadAttention, attend, watch"


def _running(*arguments: str) -> Callable[[], int]:
    command = [sys.executable, *arguments]
    # As on a user's machine, where only the first import compiles.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return lambda: (
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL).returncode
    )


@case(
    "import",
    reach="<= 150000us",
    work="a fresh process, against `import torch`",
    memory=False,
    rounds=15,
)
def importing() -> Sides:
    return {CORE: _running("-c", CORE), "import torch": _running("-c", "import torch")}


@case(
    "import-all",
    reach="<= 400000us",
    work="every public name in a fresh process, against `import torch`",
    memory=False,
    rounds=15,
)
def importing_all() -> Sides:
    everything = "from clearhead import *"
    return {everything: _running("-c", everything), "import torch": _running("-c", "import torch")}


@case(
    "command-line",
    reach="<= 0.2x",
    work="`clearhead --help` in a fresh process, against `import torch`",
    memory=False,
    rounds=15,
)
def command_line() -> Sides:
    return {
        "clearhead --help": _running("-m", "clearhead", "--help"),
        "import torch": _running("-c", "import torch"),
    }
