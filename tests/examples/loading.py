"""The examples as modules."""

import importlib.util
from types import ModuleType

from tests.surface import ROOT


def example(name: str) -> ModuleType:
    """`examples/<name>.py`, read anew."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
