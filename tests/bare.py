"""The library alone, as the wheel brings it without extras: every example of every docstring runs, or asks for
an extra by name, and two ranks share a text.

`make bare` runs it in an environment of its own, which has neither numpy nor pytest.
"""

import doctest
import importlib
import importlib.util
import pkgutil
import sys
from importlib.metadata import distributions, requires
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

import clearhead as ch
from clearhead.errors import MissingExtraError

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.DONT_ACCEPT_TRUE_FOR_1
EXTRAS = (
    "anywidget",
    "jaxtyping",
    "matplotlib",
    "numpy",
    "pytest",
    "rich",
    "safetensors",
    "tokenizers",
    "transformers",
    "triton",
    "typer",
)
"""What is not there: PyTorch runs without numpy, and asks for it in some of its methods."""
NEEDING = ("cli", "drawing", "integrations", "matrix.triton_kernels", "samples", "testing")
"""Where a module may need an extra to be imported, and an example to be run."""


def is_asking(error: BaseException, module: str) -> bool:
    """True for our own word that an extra is missing, and for another in the modules that are for one."""
    may = module.removeprefix("clearhead.").startswith(NEEDING)
    return isinstance(error, MissingExtraError) or (
        isinstance(error, ModuleNotFoundError) and error.name in EXTRAS and may
    )


class Examples(doctest.DocTestRunner):
    """Runs examples; those that ask for an extra by our own error are listed, and are no failure."""

    def __init__(self) -> None:
        super().__init__(optionflags=FLAGS | doctest.REPORT_ONLY_FIRST_FAILURE)
        self.asking: list[str] = []
        self.failures_found = 0

    def report_unexpected_exception(
        self,
        out: Any,
        test: doctest.DocTest,
        example: doctest.Example,
        exc_info: tuple[type[BaseException], BaseException, TracebackType],
    ) -> None:
        if is_asking(exc_info[1], test.name):
            self.asking.append(test.name)
            return
        self.failures_found += 1
        super().report_unexpected_exception(out, test, example, exc_info)

    def report_failure(
        self, out: Any, test: doctest.DocTest, example: doctest.Example, got: str
    ) -> None:
        if "MissingExtraError" in got:
            self.asking.append(test.name)
            return
        self.failures_found += 1
        super().report_failure(out, test, example, got)


def shared(
    query: Tensor, key: Tensor, value: Tensor, mesh: Any, tokens: int, layout: Any
) -> Tensor:
    mask = ch.causal()
    where = ch.across(mesh, tokens=tokens, mask=mask, layout=layout)
    return ch.attend(query, key, value, mask=mask, across=where)


def main() -> int:
    """Run all of it, print counts, and return the exit code."""
    # PyTorch for CUDA brings Triton.
    brought = tuple(requires("torch") or ())
    own = [name for name in EXTRAS if not any(each.startswith(name) for each in brought)]
    present = [name for name in own if importlib.util.find_spec(name)]
    assert not present, f"this environment is not bare: {present}"
    torch.set_num_threads(1)
    runner, finder, without, ran = Examples(), doctest.DocTestFinder(exclude_empty=True), [], 0
    for each in pkgutil.walk_packages(ch.__path__, "clearhead."):
        if each.name == "clearhead.__main__":
            continue
        try:
            module = importlib.import_module(each.name)
        except ImportError as error:
            if not is_asking(error, each.name):
                raise
            without.append(each.name)
            continue
        names = {"torch": torch, "ch": ch, **vars(module)}
        for test in finder.find(module, each.name, globs=names):
            torch.manual_seed(0)
            runner.run(test)
            ran += 1
    report = ch.check(shared, takes="qkv", causal=True, world=2)
    assert report.ok, str(report)
    installed = sorted({f"{each.name} {each.version}" for each in distributions()})
    print(f"bare: {', '.join(installed)}")
    print(f"bare: asked for an extra: {', '.join(sorted(runner.asking))}")
    print(f"bare: not imported, without their extra: {', '.join(without)}")
    print(f"bare: the examples of {ran} docstrings run, {runner.failures_found} failed")
    return int(runner.failures_found > 0)


if __name__ == "__main__":
    sys.exit(main())
