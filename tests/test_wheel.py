"""The wheel, that it works without extras, and the versions that a developer's environment has."""

import itertools
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "clearhead"


def build(folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


def test_the_package_is_in_it_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
        bytes_of = [read for name in content.namelist() if len(read := content.read(name)) > 100]
    assert len(set(bytes_of)) == len(bytes_of)  # no file is in it twice
    info = next(name for name in names if name.endswith("/METADATA")).removesuffix("METADATA")
    ours = {
        str(Path("clearhead") / each.relative_to(SOURCE))
        for each in SOURCE.rglob("*")
        if each.is_file() and "__pycache__" not in each.parts and each.name != "LICENSES.txt"
    }
    lessons = [each for each in (ROOT / "docs" / "lessons").rglob("*") if each.is_file()]
    pages = {f"clearhead/{each.relative_to(ROOT)}" for each in lessons}
    pictures = (ROOT / "docs" / "pictures" / "lessons").iterdir()
    pages |= {f"clearhead/docs/pictures/lessons/{each.name}" for each in pictures}
    assert {name for name in names if not name.startswith(info)} == ours | pages
    assert "clearhead/py.typed" in ours
    licences = {name.removeprefix(info) for name in names if name.startswith(f"{info}licenses/")}
    assert licences == {
        "licenses/LICENSE",
        "licenses/src/clearhead/drawing/page/assets/LICENSES.txt",
    }


def test_the_licences_of_what_the_page_bundles() -> None:
    """All that the bundle holds is named there; esbuild's lock file says what that is."""
    lock = json.loads((ROOT / "frontend" / "package-lock.json").read_text())["packages"]
    bundled = {
        name.removeprefix("node_modules/")
        for name, package in lock.items()
        if name and not package.get("dev")
    }
    text = (SOURCE / "drawing" / "page" / "assets" / "LICENSES.txt").read_text()
    for name in bundled:
        assert f"\n{name}\n{'-' * len(name)}\n\nThe MIT License (MIT)\n\nCopyright (c) " in text
    assert text.count("The MIT License") == len(bundled)


def test_two_builds_have_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    assert build(tmp_path).read_bytes() == wheel.read_bytes()


ALONE = """
import sys
sys.path.insert(0, sys.argv[1])

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2:]:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Refuse())
import torch, clearhead as ch
assert ch.__file__.startswith(sys.argv[1])
layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
with ch.watch(layer) as seen:
    layer(torch.randn(1, 5, 8))
assert seen[0].summary().entropy.shape == (1, 2, 5)
assert "<html" in seen.to_html(sys.argv[1] + "/page.html").read_text()
assert ch.check(ch.attend, takes="qkv").ok
str(ch.trace(ch.attend, *torch.randn(3, 2, 5, 4)))
"""


def test_it_works_alone(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path)
    extras = ["rich", "typer", "safetensors", "transformers", "matplotlib", "anywidget"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", ALONE, str(tmp_path), *extras],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_version_is_pinned_with_the_hashes_of_its_files() -> None:
    text = (ROOT / ".ci" / "lock.txt").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all(re.search(r" --hash=sha256:[0-9a-f]{64}\b", line) for line in lines)
    pins = [Requirement(line.partition(" --hash")[0]) for line in lines]
    versions = {pin.name: str(pin.specifier).removeprefix("==") for pin in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [project["dependencies"], *project["optional-dependencies"].values()]
    for each in map(Requirement, itertools.chain(*asked)):
        if each.name != "clearhead":
            assert each.specifier.contains(versions[each.name]), f"{each}: `make lock` pins it"
