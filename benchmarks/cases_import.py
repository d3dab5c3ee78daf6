"""What `import clearhead` costs, in processes of their own."""

import os
import subprocess
import sys
from collections.abc import Callable

from benchmarks.harness import Sides, case


def _importing(name: str) -> Callable[[], int]:
    command = [sys.executable, "-c", f"import {name}"]
    # As on a user's machine, where only the first import compiles.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return lambda: subprocess.run(command, check=True, env=environment).returncode


@case("import", reach="<= 150000us", work="a fresh process, against `import torch`", memory=False)
def importing() -> Sides:
    return {"import clearhead": _importing("clearhead"), "import torch": _importing("torch")}
