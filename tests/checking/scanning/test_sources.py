"""The classes and functions that are worth trying, read off sources that nothing runs."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clearhead.checking.scanning.sources import Source, is_scanned, sources
from clearhead.errors import ModelError

CORE = """
raise SystemExit("this is only read")

def weighted(scores, value):
    return scores.softmax(-1) @ value

def attends(query, key, value):
    return weighted(query @ key.mT, value)

def trains(model, data, steps):
    return Layer(model)(data)

class Layer:
    def __call__(self, x):
        return attends(x, x, x)

class Perceptron:
    def __call__(self, x):
        return self.layer(x).relu()

class Correlation:
    def __call__(self, x):
        return x @ x.mT
"""
MODEL = """
from .core import Layer as Inner
from .core import Perceptron
from torch import nn
import flash_attn

class Block:
    def __init__(self):
        self.attention = Inner()

class Head:
    def __init__(self):
        self.inner = Perceptron()

class Fused:
    def __call__(self, q, k, v):
        return flash_attn.flash_attn_func(q, k, v)

class Encoder(nn.TransformerEncoderLayer):
    pass

class LatentAttention:
    pass
"""
GUARDED = """
if True:
    class FastAttention:
        pass
else:
    class SlowAttention:
        pass
"""


def names(found: list[Source]) -> dict[str, list[str]]:
    return {Path(each.file).name: [d.name for d in each.definitions] for each in found}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "scanned_package"
    for name, text in {
        "__init__.py": "",
        "core.py": CORE,
        "model.py": MODEL,
        "broken.py": "def f(:\n",
        "__main__.py": CORE,
        "setup.py": CORE,
        "conftest.py": CORE,
        "deeper/still/guarded.py": GUARDED,
        "test_core.py": CORE,
        "tests/cases.py": CORE,
        ".venv/other.py": CORE,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def recursion_limit() -> Iterator[None]:
    """Python's own limit: PyTorch's compiler raises it for the rest of the process."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(limit)


def test_a_folder_is_read_and_its_tests_are_not(package: Path) -> None:
    found = sources(str(package))
    assert names(found) == {
        "broken.py": [],
        "core.py": ["weighted", "attends"],
        "guarded.py": ["FastAttention", "SlowAttention"],
        "model.py": ["Encoder", "LatentAttention"],
    }
    broken = next(each for each in found if each.error)
    assert (broken.error, broken.line) == ("SyntaxError: invalid syntax (broken.py, line 1)", 1)
    assert all(each.module == each.file for each in found)


@pytest.mark.usefixtures("recursion_limit")
def test_a_folder_of_pipes_links_and_endless_code(package: Path) -> None:
    """A pipe would block, a link to a folder above has no end, and code may be nested too deeply to be read."""
    if hasattr(os, "mkfifo"):
        os.mkfifo(package / "pipe.py")
    (package / "tests" / "broken.py").symlink_to("nowhere")
    for name in ("again", "once_more"):
        (package / name).symlink_to(".", target_is_directory=True)
    cases = "".join(f"elif x == {each}:\n    pass\n" for each in range(3000))
    (package / "deep.py").write_text(f"if x:\n    pass\n{cases}", encoding="utf-8")
    found = sources(str(package))
    assert sorted(names(found)) == ["broken.py", "core.py", "deep.py", "guarded.py", "model.py"]
    deep = next(each for each in found if each.file.endswith("deep.py"))
    assert deep.error.startswith("RecursionError: maximum recursion depth")


def test_a_package_is_found_by_its_name_and_not_imported(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(package.parent))
    found = sources("scanned_package")
    assert {each.module for each in found} == {
        "scanned_package.broken", "scanned_package.core", "scanned_package.model",
        "scanned_package.deeper.still.guarded",
    }  # fmt: skip
    assert names(sources("scanned_package.model")) == {"model.py": ["Encoder", "LatentAttention"]}


def test_what_is_scanned_and_what_is_one_place(package: Path) -> None:
    assert is_scanned(str(package))
    assert is_scanned("torch.nn")
    assert is_scanned("mine.py")
    assert not is_scanned("torch.nn.MultiheadAttention")
    assert not is_scanned("mine.py:Attention")
    assert not is_scanned("nowhere")


@pytest.mark.parametrize("place", ["no/such/file.py", "no_such_module"])
def test_a_place_that_is_not_there_is_refused(place: str) -> None:
    with pytest.raises(ModelError) as caught:
        sources(place)
    assert str(caught.value) == (
        "[check.scan] a scan wants a folder, a file, or a package that can be imported; there is no "
        f"{place!r}."
    )


def test_what_is_read_is_reported(package: Path) -> None:
    shares: list[float] = []
    sources(str(package), lambda doing, done: shares.append(done))
    assert shares == [0.2, 0.4, 0.6, 0.8, 1.0]
